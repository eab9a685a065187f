"""A run that lacks disk or memory, or whose files are changed, says so in one sentence."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.graphs import random_graph

from gnn_dist import config, storage, strategies
from gnn_dist.cluster import World
from gnn_dist.cluster.memory import out_of_memory
from gnn_dist.errors import InputError, OutOfMemory
from gnn_dist.strategies.base import StepReport
from gnn_dist.training import checkpoints
from gnn_dist.training.build import build_trainer


def train(folder: Path, limit: int, size: int, **flags: str) -> subprocess.CompletedProcess[str]:
    values = {
        "dataset.name": "sbm",
        "dataset.args": "{num_nodes: 1000, num_classes: 4, signal: 2}",
        "sampler.fanouts": "4,4",
        "train.batch_size": "200",
        "train.epochs": "2",
        "train.baselines": "false",
        "output": "run",
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    return subprocess.run(
        [sys.executable, "-m", "gnn_dist", "train", *(f"--{k}={v}" for k, v in values.items())],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(limit, (size, size)),
    )


def test_a_checkpoint_that_does_not_fit_leaves_nothing_half_written(tmp_path):
    # The state of model and optimiser is twice as large as a file may be, all else is smaller.
    flags = {"sampler__fanouts": "4,4,4", "model__args__hidden": "600", "output": "large"}
    done = train(tmp_path, resource.RLIMIT_FSIZE, 4_000_000, **flags)
    assert done.returncode == 1, done.stderr
    assert "large/checkpoints/" in done.stderr
    assert "go on with --resume" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    left = [p for p in (tmp_path / "large" / "checkpoints").rglob("*") if p.is_file()]
    assert left == []


def test_hidden_rows_that_do_not_fit_name_their_file(tmp_path):
    flags = {"sampler__fanouts": "2,2", "model__args__hidden": "1500"}
    done = train(tmp_path, resource.RLIMIT_FSIZE, 4_000_000, **flags)
    assert done.returncode == 1, done.stderr
    assert "-hidden-" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_disk_that_fills_later_keeps_the_newest_complete_checkpoint(tmp_path, monkeypatch):
    about = {"graph": "g", "config": "c", "model": {}}
    checkpoints.save(tmp_path, checkpoints.Position(1, 0, 5), {"w": torch.ones(3)}, **about)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*step-00000006"):
        checkpoints.save(tmp_path, checkpoints.Position(1, 1, 6), {"w": torch.ones(3)}, **about)
    newest = checkpoints.newest(tmp_path)
    assert newest is not None
    assert newest.position.step == 5
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]


def test_a_model_that_does_not_fit_says_what_the_rank_held(tmp_path):
    done = train(tmp_path, resource.RLIMIT_AS, 8 << 30, model__args__hidden="60000000")
    assert done.returncode == 1, done.stderr
    assert "the driver ran out of memory, its peak was " in done.stderr
    assert "lower train.batch_size" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_what_is_a_lack_of_memory(error, is_one):
    found = out_of_memory(error, rank=3)
    assert (found is not None) == is_one
    if found is not None:
        assert "rank 3 ran out of memory" in str(found)
        assert out_of_memory(found, rank=3) is None, "it is told once"
        assert isinstance(found, OutOfMemory)


class Meddler:
    """An observer that meddles with a file of the partition after the first epoch."""

    def __init__(self, file: Path, how: str) -> None:
        self.file = file
        self.how = how

    def step(self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport) -> None:
        return None

    def epoch(self, record: dict) -> None:
        if record["epoch"] == 0 and self.how == "change":
            with self.file.open("r+b") as handle:
                handle.seek(-1, os.SEEK_END)
                handle.write(b"!")
        elif record["epoch"] == 0 and self.how == "remove":
            self.file.unlink()

    def close(self) -> None:
        return None


@pytest.mark.parametrize(
    ("how", "words"), [("change", "was changed while"), ("remove", "went missing while")]
)
def test_a_file_that_changes_under_a_run_is_named_before_the_next_checkpoint(tmp_path, how, words):
    path = tmp_path / "partition"
    graph = storage.PartitionedGraph.from_graph(random_graph(200, 1000, seed=1))
    storage.write(graph, path, partitioner={"name": "range"})
    job = config.load(
        None,
        {
            "partition.path": str(path),
            "sampler.fanouts": [4, 4],
            "train.epochs": 3,
            "train.batch_size": 50,
        },
    )
    opened = storage.open_partition(path)
    world = World.local("cpu", 30)
    strategy = strategies.build(job, world, opened)
    file = path / "part-00000" / "node.x.npy"
    folder = tmp_path / "checkpoints"
    trainer = build_trainer(job, world, opened, strategy, folder, Meddler(file, how))
    with pytest.raises(InputError, match=rf"part-00000/node\.x\.npy {words}.*--resume"):
        trainer.fit()
    newest = checkpoints.newest(folder)
    assert newest is not None
    assert newest.position.epoch == 1, "what was trained before is kept, what came after is not"
