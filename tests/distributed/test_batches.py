"""A batch is a function of (graph, sampler, seed, epoch, index), and of nothing else."""

import itertools

import numpy as np
import pytest
from support.graphs import random_graph
from support.ranks import run_ranks

from gnn_dist import partitioners, storage
from gnn_dist.batch import MiniBatch, global_digest
from gnn_dist.cluster import World
from gnn_dist.features import FeatureStore
from gnn_dist.loading import EpochPlan, Homes, Loader
from gnn_dist.sampling import NeighborSampler, PartitionedTopology

BATCHES = 20
FANOUTS = (4, 3, 2)


def graph():
    return random_graph(300, 3000, seed=3)


def partitioned(num_parts: int, how: str) -> storage.PartitionedGraph:
    whole = graph()
    ids = np.arange(whole.num_nodes)
    if how == "range":
        assignment = ids * num_parts // whole.num_nodes
    elif how in partitioners.BUILTIN:
        assignment = partitioners.partition(whole, num_parts, how, seed=0)
    else:
        assignment = np.random.default_rng(int(how)).integers(0, num_parts, whole.num_nodes)
    return storage.assemble(whole, assignment.astype(np.int32), num_parts)


def shares(world: World, num_parts: int, how: str, mode: str, prefetch: int) -> list[MiniBatch]:
    parts = partitioned(num_parts, how)
    placement = world.placement(num_parts, mode)
    train, original = parts.split("train")
    loader = Loader(
        EpochPlan(train, original, Homes.of(parts.offsets, placement)(train), 16, world.size, 7),
        NeighborSampler(FANOUTS, edge_ids=True),
        PartitionedTopology(parts, placement, world.sampling),
        FeatureStore(parts, placement, world.features),
        seed=7,
        rank=world.rank,
        prefetch=prefetch,
    )
    batches = []
    for epoch in range(-(-BATCHES // loader.plan.num_batches)):
        for batch, _ in loader.epoch(epoch):
            x = batch.x.materialise() if hasattr(batch.x, "materialise") else batch.x
            expected = graph().node["x"][parts.original_ids()[batch.input_nodes.numpy()]]
            assert np.array_equal(x.numpy(), expected)
            batch.x = None
            batches.append(batch)
    return batches[:BATCHES]


def digests(per_rank: list[list[MiniBatch]], num_parts: int, how: str) -> list[str]:
    original = partitioned(num_parts, how).original_ids()
    return [global_digest(batch, original) for batch in zip(*per_rank, strict=True)]


@pytest.fixture(scope="module")
def reference() -> list[str]:
    found = digests([shares(World.local(), 1, "range", "auto", 0)], 1, "range")
    assert len(set(found)) == BATCHES
    return found


@pytest.mark.parametrize("prefetch", [0, 8])
@pytest.mark.parametrize("how", ["range", "1", "metis", "refennel"])
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_batches_do_not_depend_on_the_partition_or_prefetching(num_parts, how, prefetch, reference):
    found = digests([shares(World.local(), num_parts, how, "auto", prefetch)], num_parts, how)
    assert found == reference


LAYOUTS = [(1, "range"), *itertools.product((2, 4), ("1", "metis"))]


def all_layouts(world: World, mode: str) -> list[list[MiniBatch]]:
    """Every layout and prefetch depth in one start of the processes."""
    return [
        shares(world, num_parts, how, mode, prefetch)
        for num_parts, how in LAYOUTS
        for prefetch in (0, 8)
    ]


@pytest.mark.parametrize("mode", ["auto", "per-rank"])
@pytest.mark.parametrize("size", [2, 4])
def test_batches_do_not_depend_on_worker_count_or_placement(size, mode, reference):
    per_rank = run_ranks(all_layouts, size, (mode,), timeout=120)
    for k, (num_parts, how) in enumerate(layout for layout in LAYOUTS for _ in range(2)):
        batches = [layouts[k] for layouts in per_rank]
        seeds = [sum(len(batch.seeds) for batch in own) for own in batches]
        assert min(seeds) > 0, "every rank had seeds"
        assert digests(batches, num_parts, how) == reference, (num_parts, how, k)
