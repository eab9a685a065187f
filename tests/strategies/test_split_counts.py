"""What ``split`` is foreseen to do is what the ranks do, and what sets of nodes say."""

import numpy as np
import pytest
from support.ranks import run_ranks
from support.split_jobs import cut, job

from gnn_dist import strategies
from gnn_dist.cluster import Placement, World
from gnn_dist.config import Config
from gnn_dist.loading import Homes
from gnn_dist.strategies.access import epoch_plan
from gnn_dist.strategies.data import build_parts
from gnn_dist.strategies.split.counts import LayerCounts, beside
from gnn_dist.strategies.split.plan import count_first, first_batches
from gnn_dist.training import report

RANKS = 3


def few(data_parallel: int) -> Config:
    """A job of few enough batches that all of them are foreseen."""
    changes = {"split.data_parallel_layers": data_parallel, "cluster.workers": RANKS}
    return job("split", batch_size=30, **changes)


def by_sets(one: Config, placement: Placement, data_parallel: int) -> np.ndarray:
    """The counts by sets of global ids, edge by edge."""
    graph = cut(RANKS)
    plan = epoch_plan(one, graph, placement)
    homes = Homes.of(graph.offsets, placement)
    out = []
    for positions, batch in first_batches(one, graph, build_parts(one, graph).sampler, plan):
        ids = batch.input_nodes.numpy()
        owner = {int(v): int(r) for v, r in zip(ids, homes(ids), strict=True)}
        edges = [
            [(int(ids[s]), int(ids[d])) for s, d in block.edge_index().T] for block in batch.blocks
        ]
        depth = len(edges)
        counts = np.zeros((RANKS, depth + 1, 5), np.int64)
        if data_parallel:
            computes = [set(plan.share(positions, r).tolist()) for r in range(RANKS)]
        else:
            computes = [
                {int(v) for v in plan.global_ids[positions] if owner[int(v)] == r}
                for r in range(RANKS)
            ]
        for hop in range(depth):
            layer = depth - hop
            reads = []
            for r in range(RANKS):
                mine = [(s, d) for s, d in edges[layer - 1] if d in computes[r]]
                reads.append(computes[r] | {s for s, _ in mine})
                cross = received = 0
                if hop + 1 >= data_parallel:
                    cross = sum(owner[s] != r for s, _ in mine)
                    received = sum(owner[v] != r for v in reads[r])
                counts[r, layer] = len(computes[r]), len(mine), cross, received, len(reads[r])
            computes = reads
            if hop + 1 >= data_parallel:
                union = set().union(*reads)
                computes = [{v for v in union if owner[v] == r} for r in range(RANKS)]
        for r in range(RANKS):
            counts[r, 0, 0] = len(computes[r])
        out.append(counts)
    return np.stack(out)


@pytest.mark.parametrize("data_parallel", [0, 1, 3])
def test_counts_of_a_plan_are_those_of_sets_of_nodes(data_parallel):
    one = few(min(data_parallel, 2))
    graph, placement = cut(RANKS), Placement.build(rank=0, hosts=list("abc"), num_parts=RANKS)
    found = count_first(one, graph, build_parts(one, graph).sampler, placement, data_parallel)
    assert np.array_equal(found.values, by_sets(one, placement, data_parallel))


def trained(world: World, jobs: list[Config]) -> list[tuple]:
    out = []
    for one in jobs:
        strategy = strategies.build(one, world, cut(RANKS))
        before = strategy.communication()
        for _, share in strategy.shares(0, 0, strategy.num_batches()):
            strategy.backward(share)
        counts = strategy.communication()
        strategy.predict("val")
        assert {**strategy.communication(), "features": 0} == {**counts, "features": 0}
        out.append((before, counts))
    return out


def test_ranks_do_what_is_foreseen_and_evaluation_is_not_counted():
    jobs = [few(0), few(1)]
    for one, (before, counts) in zip(
        jobs, run_ranks(trained, RANKS, (jobs,), timeout=120)[0], strict=True
    ):
        assert before["sampling_bytes"] == before["input_bytes"] == before["shuffle_bytes"] == 0
        plan = strategies.plan(one, cut(RANKS))
        rows = plan.counts.table()
        assert len(rows) == len(counts["layers"]) == 4
        for planned, row in zip(rows, counts["layers"], strict=True):
            for name, value in planned.items():
                if name != "layer":
                    assert row[f"{name}, predicted"] == row[name] == value
        assert sum(row["rows shuffled"] for row in rows) > 0
        spec = cut(RANKS).schema.node["x"]
        row_bytes = spec.shape[0] * np.dtype(spec.dtype).itemsize
        moved = rows[1]["rows shuffled"] * len(plan.counts.values)
        assert counts["input_bytes"] == moved * row_bytes
        assert (counts["label_bytes"] > 0) == (one.split.data_parallel_layers > 0)
        head, *lines = plan.text().splitlines()
        assert all(name in head for name in rows[0])
        for row, line in zip(rows, lines, strict=False):
            assert line.split()[:2] == [row["layer"], f"{row['vertices']:,.0f}"]


def test_the_report_puts_measured_beside_predicted():
    predicted, measured = (LayerCounts(np.full((1, 2, 3, 5), n)) for n in (11, 13))
    counts = {
        "features": {"rows": {}, "bytes": {}},
        "layers": beside(predicted, measured),
        "compared": [{"strategy": "data", "step s": 0.25}],
    }
    page = report._communication({"communication": counts})
    for words in ("cross edges, predicted", "<td>22</td><td>26</td>", "11, 11", "13, 13", "0.25"):
        assert words in page


def test_imbalance_is_the_busiest_rank_over_the_mean_in_the_mean_of_batches():
    values = np.zeros((2, 2, 2, 5), np.int64)
    values[0, :, 0, 0] = 3, 1
    values[1, :, 0, 0] = 5, 5
    counts = LayerCounts(values)
    assert counts.imbalance().tolist() == [(1.5 + 1) / 2, 1.0]
    assert counts.work_imbalance() == (1.5 + 1) / 2
