"""A long run takes no more memory, files or threads than a short one."""

import gc
from pathlib import Path

import numpy as np
import psutil
from support.graphs import random_graph
from support.ranks import run_ranks

from gnn_dist import config, storage, strategies
from gnn_dist.cluster import World
from gnn_dist.strategies.base import StepReport
from gnn_dist.training.build import build_trainer

EPOCHS = 200


class Usage:
    """An observer that notes what the process holds after every epoch."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.records: list[tuple[int, int, int]] = []

    def step(self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport) -> None:
        return None

    def epoch(self, record: dict) -> None:
        gc.collect()
        held = self.process.memory_info().rss, self.process.num_fds(), self.process.num_threads()
        self.records.append(held)

    def close(self) -> None:
        return None


def train(world: World, path: Path, folder: Path) -> list[tuple[int, int, int]]:
    job = config.load(
        None,
        {
            "partition.path": str(path),
            "sampler.fanouts": [4, 4],
            "model.args": {"hidden": 32, "dropout": 0.2},
            "train.epochs": EPOCHS,
            "train.batch_size": 64,
            "train.evaluate_every": 10,
            "cluster.placement": "per-rank",
            "cache.name": "degree",
            "cache.fraction": 0.2,
        },
    )
    graph = storage.open_partition(path)
    usage = Usage()
    strategy = strategies.build(job, world, graph)
    trainer = build_trainer(job, world, graph, strategy, folder, usage)
    gc.freeze()  # to look through all that was imported takes longer than an epoch
    trainer.fit()
    return usage.records


def test_two_hundred_epochs_hold_what_ten_hold(tmp_path):
    graph = random_graph(400, 4000, seed=1, features=64)
    path = tmp_path / "partition"
    assignment = (np.arange(400) % 2).astype(np.int32)
    storage.write(storage.assemble(graph, assignment, 2), path, partitioner={"name": "mod"})
    for records in run_ranks(train, 2, (path, tmp_path / "checkpoints"), timeout=240):
        assert len(records) == EPOCHS
        memory, files, threads = np.array(records).T
        early = memory[10:40].max()
        late = np.median(memory[-30:])
        assert late < 1.03 * early + 4e6, (early / 1e6, late / 1e6)
        assert files[-20:].max() <= files[10:].min() + 1
        assert threads[-20:].max() <= threads[10:].min() + 2
