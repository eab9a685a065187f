"""A run that stops and goes on ends with the very same weights."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.graphs import random_graph

from gnn_dist import config, storage
from gnn_dist.cluster import WorkerContext, World
from gnn_dist.errors import InputError
from gnn_dist.training import checkpoints, worker
from gnn_dist.training.worker import Payload


@pytest.fixture(scope="module")
def partition(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "partition"
    graph = random_graph(200, 1500, seed=4)
    assignment = (np.arange(200) % 2).astype(np.int32)
    storage.write(storage.assemble(graph, assignment, 2), path, partitioner={"name": "mod"})
    return path


def job(**changes) -> config.Config:
    values = {
        "partition.path": "unused",
        "sampler.fanouts": [3, 3],
        "model.args": {"hidden": 8, "dropout": 0.5},
        "train.batch_size": 12,
        "train.epochs": 3,
        "train.baselines": False,
        "train.keep_checkpoints": 50,
        "seed": 3,
    }
    return config.load(None, {**values, **{k.replace("__", "."): v for k, v in changes.items()}})


def run(
    folder: Path, partition: Path, *, resume: bool = False, said: list[str] | None = None, **changes
) -> worker.Result:
    folder.mkdir(exist_ok=True)
    keep = (lambda text: None) if said is None else said.append
    context = WorkerContext(World.local(), show=lambda text: None, keep=keep, warn=keep)
    return worker.train(context, Payload(job(**changes), partition, folder, resume))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.newest(folder / "checkpoints")
    assert newest is not None
    state = newest.load()
    flat = {f"model.{k}": v for k, v in state["model"].items()}
    for index, moments in state["optimizer"]["state"].items():
        flat.update({f"optimizer.{index}.{k}": v for k, v in moments.items()})
    return flat


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory, partition) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(folder, partition, train__checkpoint_every=5)
    return folder


@pytest.mark.parametrize("steps", [1, 9, 13, 18])
def test_a_stop_at_any_step_changes_no_bit(tmp_path, partition, whole, steps):
    # 100 training nodes, 9 batches an epoch: inside an epoch, at its end, in the second, at its end
    run(tmp_path, partition, train__max_steps=steps)
    assert checkpoints.newest(tmp_path / "checkpoints").position.step == steps
    result = run(tmp_path, partition, resume=True)
    assert_same(weights(tmp_path), weights(whole))
    assert result.metrics["epochs"][-1]["epoch"] == 2


def test_a_checkpoint_inside_an_epoch_goes_on_inside_it(tmp_path, partition, whole):
    shutil.copytree(whole / "checkpoints" / "step-00000005", tmp_path / "checkpoints/step-00000005")
    run(tmp_path, partition, resume=True)
    assert_same(weights(tmp_path), weights(whole))


def test_a_damaged_newest_checkpoint_costs_only_its_own_steps(tmp_path, partition, whole):
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    newest = checkpoints.newest(tmp_path / "checkpoints").path
    (newest / "state.pt").write_bytes(b"not a checkpoint")
    said: list[str] = []
    run(tmp_path, partition, resume=True, said=said)
    assert newest.name in said[0]
    assert "taking the one before it" in said[0]
    assert_same(weights(tmp_path), weights(whole))


def test_prefetching_and_the_partition_change_no_bit(tmp_path, partition, whole):
    run(tmp_path, partition, loader__prefetch=0)
    assert_same(weights(tmp_path), weights(whole))


def test_a_run_without_an_end_to_resume_starts_anew(tmp_path, partition, whole):
    run(tmp_path, partition, resume=True)
    assert_same(weights(tmp_path), weights(whole))


def test_a_run_goes_on_with_the_strategy_that_auto_took(whole):
    newest = checkpoints.newest(whole / "checkpoints")
    assert newest.extra["strategy"] == "data"
    split = dataclasses.replace(newest, extra={**newest.extra, "strategy": "split"})

    def taken(strategy: str, *where) -> str:
        return worker._as_before(job(train__strategy=strategy), *where).train.strategy

    assert taken("auto", split, 2) == "split"
    assert taken("auto", None, 2) == "auto"
    assert taken("auto", split, 1) == "auto"  # where it takes data
    assert taken("data", split, 2) == "data"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model__args": {"hidden": 9}}, "another model"),
        ({"train__batch_size": 13}, "other settings"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, partition, whole, change, words):
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(InputError, match=words):
        run(tmp_path, partition, resume=True, **change)


def test_early_stopping_ends_after_evaluations_without_a_better_one(tmp_path, partition):
    result = run(tmp_path, partition, train__epochs=60, train__patience=2, train__lr=1e-9)
    values = [record["val"]["accuracy"] for record in result.metrics["epochs"]]
    assert len(values) < 60
    assert max(values[-2:]) <= max(values[:-2])


def test_the_best_weights_are_the_ones_that_are_scored(tmp_path, partition):
    result = run(tmp_path, partition, train__epochs=6, train__lr=0.05)
    best = max(record["val"]["accuracy"] for record in result.metrics["epochs"])
    assert result.metrics["val"]["accuracy"] == best


def test_a_loss_that_is_not_finite_says_what_to_do(tmp_path, partition):
    with pytest.raises(FloatingPointError, match=r"train\.lr"):
        run(tmp_path, partition, train__optimizer="sgd", train__lr=1e30)


def test_payloads_are_plain_values():
    payload = Payload(job(), Path("p"), Path("f"))
    assert dataclasses.replace(payload, resume=True).resume
