"""What does not suit a job is told before a worker starts, and costs no earlier run anything."""

from pathlib import Path

import numpy as np
import pytest

from gnn_dist import cli

N, E = 40, 160


def arrays(**changes):
    rng = np.random.default_rng(0)
    usual = {
        "src": rng.integers(0, N, E),
        "dst": rng.integers(0, N, E),
        "x": rng.standard_normal((N, 3)).astype(np.float32),
        "y": rng.integers(0, 3, N),
        "train": np.arange(20),
        "val": np.arange(20, 30),
        "test": np.arange(30, N),
    }
    return {name: array for name, array in {**usual, **changes}.items() if array is not None}


def train(tmp_path: Path, data, *flags: str) -> list[str]:
    file = tmp_path / "graph.npz"
    np.savez(file, **data)
    return [
        "train", "--dataset.name=files", f"--dataset.args.path={file}", "--sampler.fanouts=2,2",
        "--train.epochs=1", "--train.batch_size=10", "--partition.name=range",
        "--model.args.hidden=4", f"--output={tmp_path / 'out'}", *flags,
    ]  # fmt: skip


LABELS = np.random.default_rng(1).integers(0, 2, (N, 3))
BAD = {
    "features of one dimension": ({"x": np.ones(N)}, [], ["graph.node.x", "[N]", "[N, F]"]),
    "features of three": ({"x": np.ones((N, 2, 3))}, [], ["graph.node.x", "[N, 2, 3]"]),
    "features of no width": ({"x": np.ones((N, 0))}, [], ["graph.node.x", "[N, 0]", "F >= 1"]),
    "a class below 0": (
        {"y": np.where(np.arange(N) == 33, -1, 2)}, [],
        ["task.target", "node 33 has -1", "0 .. 2", "'test'"]),
    "a class beyond reason": ({"y": np.arange(N) * 10**9}, [], ["39000000000", "num_classes"]),
    "labels of no torch type": (
        {"y": np.arange(N).astype(np.uint64) % 3}, [], ["task.target", "uint64", "int64"]),
    "a label that is not 0 or 1": (
        {"y": LABELS + 0.5}, ["--task.kind=multilabel"], ["task.target", "node 0", "0 or 1"]),
    "no training nodes": ({"train": np.zeros(N, bool)}, [], ["train split", "0 nodes"]),
    "batches all dropped": (
        {}, ["--loader.drop_last=true", "--train.batch_size=30"], ["train split", "30"]),
    "negative sampling weights": (
        {"edge_w": np.where(np.arange(E) == 7, -2.0, 1)}, ["--sampler.weights=w"],
        ["sampler.weights", "-2.0 for edge 7"]),
    "too few rows": ({"x": np.ones((N - 1, 3))}, [], ["'x' has 39 rows", "'y' 40"]),
    "a split of two dimensions": (
        {"train": np.arange(8).reshape(4, 2)}, [], ["splits.train", "(4, 2)"]),
    "no metric": ({}, ["--task.metrics=[]"], ["task.metrics", "empty"]),
    "a fan-out beyond 32 bits": (
        {}, [f"--sampler.fanouts={10**20},2"], ["sampler.fanouts", str(10**20), "-1 for all"]),
    "an item that is no YAML": (
        {}, ["--sampler.fanouts=3,a: b: c"], ["sampler.fanouts.1", "a: b: c"]),
    "an endless value": ({}, [f"--train.epochs={'x' * 9999}"], ["train.epochs", "xxx..."]),
    "an infinite rate": ({}, ["--train.lr=.inf"], ["train.lr", "inf", "finite"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_suit_the_job_is_told_before_it_starts(case, tmp_path, capsys):
    changes, flags, words = BAD[case]
    earlier = tmp_path / "out" / "metrics.json"
    earlier.parent.mkdir()
    earlier.write_text("{}")
    assert cli.main(train(tmp_path, arrays(**changes), *flags)) == 2
    said = capsys.readouterr().err
    assert len(said) < 500
    for word in words:
        assert word in said, said
    assert earlier.read_text() == "{}"  # an earlier run stays as it is


@pytest.mark.parametrize("dtype", [bool, np.float32, np.int64])
def test_labels_are_scored_whatever_their_type(dtype, tmp_path, capsys):
    flags = ["--task.kind=multilabel", "--train.baselines=false"]
    assert cli.main(train(tmp_path, arrays(y=LABELS.astype(dtype)), *flags)) == 0
    assert "roc_auc" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_ends_the_run_with_a_sentence(tmp_path, capsys):
    huge = np.full((N, 3), 3e38, np.float32)
    assert cli.main(train(tmp_path, arrays(x=huge))) == 1
    said = capsys.readouterr().err
    assert "the loss is nan" in said
    assert "Traceback" not in said


def test_two_classes_may_be_booleans(tmp_path):
    assert cli.main(train(tmp_path, arrays(y=np.arange(N) % 2 == 1))) == 0


def test_the_pipeline_looks_at_the_labels_too(tmp_path, capsys):
    flags = ["--train.strategy=pipeline", "--model.name=deep", "--sampler.name=parts"]
    arguments = [
        a for a in train(tmp_path, arrays(y=np.arange(N) % 3 - 1), *flags) if "hidden" not in a
    ]
    assert cli.main([*arguments, "--model.args.width=8"]) == 2
    assert "node 0 has -1" in capsys.readouterr().err


def test_a_split_without_nodes_cannot_be_evaluated(tmp_path, capsys):
    arguments = train(tmp_path, arrays(val=np.zeros(0, int)), "--train.baselines=false")
    assert cli.main(arguments) == 0
    assert cli.main(["evaluate", str(tmp_path / "out"), "--split", "val"]) == 2
    assert "--split val: has no nodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("left_out", "first"),
    [
        (("test",), ["val", "accuracy", "f1_macro"]),
        (("test", "val"), ["nothing", "to", "evaluate:"]),
    ],
)
def test_what_there_is_is_evaluated(tmp_path, capsys, left_out, first):
    data = arrays(**dict.fromkeys(left_out))
    assert cli.main(train(tmp_path, data, "--cluster.workers=0")) == 0
    assert capsys.readouterr().out.split()[:3] == first
