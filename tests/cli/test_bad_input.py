"""A mistake is one clear sentence and exit code 2; nothing is half-written."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist import cli
from gnn_dist.graph import Graph

HERE = f"{__name__}"


def good() -> Graph:
    """A data set that is fine."""
    return random_graph(40, 200)


def other() -> Graph:
    """Another data set."""
    return random_graph(40, 200, seed=9)


def missing_node() -> Graph:
    """An edge names a node that does not exist."""
    return Graph.from_edges(np.array([0, 7]), np.array([1, 2]), 5)


def short_features() -> Graph:
    """Features with too few rows."""
    return Graph.from_edges(np.array([0]), np.array([1]), 3, node={"x": np.ones((2, 4))})


def nan_features() -> Graph:
    """NaN in the features."""
    x = np.ones((3, 4))
    x[1, 2] = np.nan
    return Graph.from_edges(np.array([0]), np.array([1]), 3, node={"x": x})


def wrong_length(graph, num_parts, *, seed):
    return np.zeros(graph.num_nodes - 1, np.int32)


def out_of_range(graph, num_parts, *, seed):
    return np.full(graph.num_nodes, num_parts, np.int32)


def empty_part(graph, num_parts, *, seed):
    return np.zeros(graph.num_nodes, np.int32)


class NoLayers:
    """Not an nn.Module."""

    def __init__(self):
        pass


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command in an empty folder: (exit code, what it said)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        try:
            code = cli.main(arguments)
        except SystemExit as ended:  # argparse
            code = ended.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.err

    return call


def train(**changes: str) -> list[str]:
    values = {
        "dataset.name": f"{HERE}.good",
        "output": "out",
        "sampler.fanouts": "3,3",
        "train.batch_size": "10",
        "train.epochs": "1",
        "model.args.hidden": "4",
        "partition.name": "range",
    }
    values.update({k.replace("__", "."): v for k, v in changes.items()})
    return ["train", *(f"--{k}={v}" for k, v in values.items())]


BAD = {
    "unknown key": ({"train__bach_size": "3"}, ["train.bach_size", "batch_size"]),
    "value out of range": ({"train__lr": "-1"}, ["train.lr", "-1"]),
    "batch size below 1": ({"train__batch_size": "0"}, ["train.batch_size", "0"]),
    "fan-outs and layers": ({"model__layers": "3"}, ["sampler.fanouts", "3, 3", "3 layers"]),
    "edge to nowhere": ({"dataset__name": f"{HERE}.missing_node"}, ["edges", "7", "0 to 4"]),
    "feature rows": ({"dataset__name": f"{HERE}.short_features"}, ["node.x", "(2, 4)", "3 rows"]),
    "feature nan": ({"dataset__name": f"{HERE}.nan_features"}, ["node.x", "row 1", "NaN"]),
    "more parts than nodes": ({"partition__parts": "41"}, ["41", "40"]),
    "partitioner length": (
        {"partition__name": f"{HERE}.wrong_length", "partition__parts": "2"}, ["39", "40"]),
    "partitioner range": (
        {"partition__name": f"{HERE}.out_of_range", "partition__parts": "2"}, ["out_of_range"]),
    "partitioner empty": (
        {"partition__name": f"{HERE}.empty_part", "partition__parts": "2"}, ["empty", "1"]),
    "partitioner name": ({"partition__name": "metiss"}, ["metiss", "metis"]),
    "data set name": ({"dataset__name": "sbmm"}, ["sbmm", "sbm"]),
    "data set argument": (
        {"dataset__name": "sbm", "dataset__args__nodes": "9"}, ["nodes", "num_nodes"]),
    "model name": ({"model__name": "sagee"}, ["sagee", "sage"]),
    "model argument": ({"model__args__hiden": "9"}, ["hiden", "hidden"]),
    "model that is none": ({"model__name": f"{HERE}.NoLayers"}, ["NoLayers", "hidden"]),
    "task target": ({"task__target": "label"}, ["task.target", "label", "y"]),
    "task kind": ({"task__kind": "regression"}, ["regression", "int64"]),
    "metric name": ({"task__metrics": "acuracy"}, ["acuracy", "accuracy"]),
    "sampling weights": ({"sampler__weights": "w"}, ["sampler.weights", "'w'", "weight"]),
    "cache name": ({"cache__name": "lru", "cache__fraction": "0.1"}, ["lru", "degree"]),
    "strategy name": ({"train__strategy": "dta"}, ["dta", "data"]),
    "edge tensor of gcn": ({"model__name": "gcn"}, ["gcn", "dataset.transforms"]),
    "truncated AIGER": ({"dataset__args__circuits": "cut.aig"}, ["cut", "truncated", "fetch"]),
    "undefined gate": ({"dataset__args__circuits": "undefined.bench"}, ["'b'", "not defined"]),
    "combinational loop": ({"dataset__args__circuits": "loop.bench"}, ["loop", "'x' -> 'y'"]),
    "missing partition": (
        {"partition__path": "nowhere"}, ["nowhere"]),
}  # fmt: skip


CIRCUITS = {
    "cut.aig": b"aig 3 2 0 1 1\n6\n\x02",
    "undefined.bench": b"INPUT(a)\nOUTPUT(y)\ny = AND(a, b)\n",
    "loop.bench": b"INPUT(a)\nOUTPUT(x)\nx = AND(a, y)\ny = NOT(x)\n",
}


@pytest.mark.parametrize("case", BAD)
def test_training_names_the_field_the_value_and_the_remedy(case, run, tmp_path):
    changes, words = BAD[case]
    arguments = train(**changes)
    if case == "missing partition":
        arguments = [a for a in arguments if not a.startswith("--dataset.name")]
    if "dataset__args__circuits" in changes:
        arguments += ["--dataset.name=circuits", "--task.kind=regression"]
        for name, data in CIRCUITS.items():
            (tmp_path / name).write_bytes(data)
    code, said = run(*arguments)
    assert code == 2, said
    for word in words:
        assert word in said, said
    assert not (tmp_path / "out" / "metrics.json").exists()
    assert not list(tmp_path.glob("**/*.tmp"))


def test_a_mistake_does_not_cost_the_earlier_run(run, tmp_path):
    assert run(*train())[0] == 0
    kept = (tmp_path / "out" / "metrics.json").read_text()
    assert run(*train(model__name="sagee"))[0] == 2
    assert run(*train(task__metrics="acuracy"))[0] == 2
    assert (tmp_path / "out" / "metrics.json").read_text() == kept
    assert (tmp_path / "out" / "checkpoints" / "best").is_dir()


def test_a_partition_of_another_graph_or_made_otherwise_is_refused(run, tmp_path):
    path = {"partition__path": str(tmp_path / "parts")}
    partition = ["partition", *train(**path)[1:]]
    assert run(*partition)[0] == 0
    code, said = run(*train(**path, dataset__name=f"{HERE}.other"))
    assert code == 2
    assert "another graph" in said
    code, said = run(*train(**path, partition__name="hash"))
    assert code == 2
    assert "range" in said
    assert "hash" in said


@pytest.mark.parametrize("damage", ["byte", "missing file", "no manifest", "newer", "absent"])
def test_a_damaged_partition_is_found_by_verify(run, tmp_path, damage):
    parts = tmp_path / "parts"
    assert run("partition", *train(partition__path=str(parts))[1:])[0] == 0
    assert run("partition", "--verify", str(parts))[0] == 0
    files = sorted(parts.glob("**/*.npy"), key=lambda f: f.stat().st_size)
    manifest = parts / "manifest.json"
    word = ""
    if damage == "byte":
        data = bytearray(files[-1].read_bytes())
        data[-1] ^= 1
        files[-1].write_bytes(data)
        word = files[-1].name
    elif damage == "missing file":
        files[0].unlink()
        word = files[0].name
    elif damage == "no manifest":
        manifest.unlink()
        word = "manifest"
    elif damage == "newer":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 99}))
        word = "99"
    else:
        parts = Path("elsewhere")
        word = "elsewhere"
    code, said = run("partition", "--verify", str(parts))
    assert code == 2
    assert word in said
    if damage != "byte":  # only checksums see that
        code, said = run(*[a for a in train(partition__path=str(parts)) if "dataset" not in a])
        assert code == 2
        assert word in said
        assert not (tmp_path / "out").exists()


def test_resuming_what_is_no_run_says_so(run):
    code, said = run("train", "--resume", "nowhere")
    assert code == 2
    assert "nowhere" in said
    assert "config.yaml" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model.args.hidden", "9"], ["model.args", "'hidden': 9", "'hidden': 4", "--output"]),
        (["--model.name", "gin"], ["model.name", "'gin'", "'sage'"]),
        (["--train.batch_size", "11"], ["train.batch_size", "11", "10"]),
        (["--dataset.name", f"{HERE}.other"], ["dataset.name", "other", "good"]),
        (["--output", "elsewhere"], ["--output", "--resume out"]),
    ],
)
def test_resuming_otherwise_is_refused_and_costs_the_run_nothing(run, tmp_path, flags, words):
    assert run(*train())[0] == 0
    kept = {f: f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()}
    code, said = run("train", "--resume", "out", *flags)
    assert code == 2
    for word in words:
        assert word in said, said
    assert {f: f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()} == kept


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(run, tmp_path, caplog):
    assert run(*train(train__checkpoint_every="1"))[0] == 0
    newest = max((tmp_path / "out" / "checkpoints").glob("step-*"))
    (newest / "state.pt").write_bytes(b"no")
    code, said = run("train", "--resume", "out")
    assert code == 0
    assert f"{newest.name}: state.pt is damaged" in said + caplog.text
    (tmp_path / "out" / "checkpoints" / "best" / "state.pt").write_bytes(b"no")
    code, said = run("evaluate", "out")
    assert code == 2
    assert "best" in said
    assert "name a complete one" in said


def test_a_command_without_a_configuration_says_what_to_give(run):
    code, said = run("train")
    assert code == 2
    assert "configs/quickstart.yaml" in said


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_folder_that_is_no_run_is_named(run, command):
    code, said = run(command, "nowhere")
    assert code == 2
    assert "nowhere" in said


def test_flags_of_a_command_that_takes_none_are_refused(run):
    code, said = run("doctor", "--train.lr", "3")
    assert code == 2
    assert "train.lr" in said
