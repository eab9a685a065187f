"""Dynamic jobs on real ranks: the losses and predictions of one process, rows as planned."""

from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks
from support.snapshot_jobs import ARGS, job

from gnn_dist import storage
from gnn_dist.cluster import World
from gnn_dist.datasets import temporal
from gnn_dist.dynamic.stored import to_graph
from gnn_dist.strategies.snapshot_job import SnapshotJob


def run_policies(world: World, policies: list[str], history: str) -> list[dict[str, Any]]:
    return [run_one(world, policy, history) for policy in policies]


def run_one(world: World, policy: str, history: str) -> dict[str, Any]:
    graph = to_graph(temporal.synthetic(**ARGS))
    assignment = np.random.default_rng(0).integers(0, world.size, 40).astype(np.int32)
    cut = storage.assemble(graph, assignment, world.size)
    settings = job(sampler__args={"policy": policy, "history": history})
    strategy = SnapshotJob.build(settings, world, cut)
    optimizer = torch.optim.Adam(strategy.model.parameters(), 0.01)
    losses = []
    for epoch in range(2):
        for _, share in strategy.shares(epoch, 0, strategy.num_batches()):
            losses.append(strategy.backward(share).loss)
            optimizer.step()
    return {
        "losses": losses,
        "predictions": strategy.predict("test"),
        "communication": strategy.communication(),
    }


@pytest.mark.parametrize("history", ["window", "truncated"])
def test_ranks_train_alike_and_report_the_rows_that_were_planned(history: str) -> None:
    alone = run_one(World.local(), "grouped", history)
    policies = ["vertices", "snapshots", "auto"] + ["windows"] * (history == "window")
    answers = run_ranks(run_policies, 2, (policies, history), timeout=200)
    for found in zip(*answers, strict=True):
        for rank in found:
            assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        for ours, theirs in zip(found[0]["predictions"], alone["predictions"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
        assert found[1]["predictions"] is None
        if history == "window":
            lines = found[0]["communication"]["foreseen"]
            assert len(lines) == 6
            for line in lines:
                if not line[""].startswith("memory"):  # an estimate
                    assert line["measured"] == line["planned"], (found[0]["policy"], line)
