"""What micro-batches are of: budgets of random unions, halos that reach what the model reads."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph

from gnn_dist import storage
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import World
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureStore
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.sampling import PartitionedTopology
from gnn_dist.sampling.subgraph import induce, mini_batch
from gnn_dist.strategies.pipeline.batches import SubgraphBatches, SubgraphSettings

PARTS = np.repeat(np.arange(6), [10, 20, 12, 18, 15, 5])


def _batches(kind, **settings):
    graph, world = random_graph(80, 160, seed=3), World.local()
    parts = storage.assemble(graph, PARTS.astype(np.int32), 6)
    placement = world.placement(6, "auto")
    topology = PartitionedTopology(parts, placement, world.sampling)
    features = FeatureStore(parts, placement, world.features)
    settings = SubgraphSettings(**settings)
    return SubgraphBatches(parts, topology, features, kind, settings, 7, "y"), topology, features


def _micros(batches, model, epoch=0):
    for number, plans in enumerate(batches.epoch(epoch)):
        for plan in plans:
            index = BatchIndex(epoch, number)
            yield batches.build(plan, index, 1, model, inputs=True, targets=False)


def test_random_unions_hold_the_budgets_in_every_epoch():
    model = DeepGNN(5, 1, width=8, layers=1)
    batches, _, _ = _batches("clusters", clusters=2, max_nodes=38, max_cost=160.0, beta=1.0)
    sizes = set()
    for epoch in range(20):
        micros = list(_micros(batches, model, epoch))
        assert len(micros) == 3
        sizes |= {m.size for m in micros}
    assert max(n for n, _ in sizes) == 38  # 20 and 18 together
    assert max(n + e for n, e in sizes) <= 160
    assert len(sizes) > 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_nodes": 37}, r"the 2 largest parts has 38 nodes, above max_nodes = 37.*clusters"),
        ({"max_cost": 38.0}, r"a union of 2 parts may have a cost of .*above max_cost = 38"),
    ],
)
def test_budgets_that_a_random_union_could_exceed_are_refused(settings, says):
    with pytest.raises(InputError, match=says):
        _batches("clusters", clusters=2, **settings)


@pytest.mark.parametrize("direction", ["fan_in", "fan_out", "both"])
def test_parts_with_a_hop_a_group_and_block_have_the_results_of_the_whole_graph(direction):
    model = DeepGNN(5, 2, width=32, groups=2, layers=1, direction=direction)
    batches, topology, features = _batches("parts", hops=2, direction=direction)
    everyone = np.arange(80)
    unit = induce(topology, everyone)
    batch = mini_batch(unit, topology, seed=7, index=BatchIndex(0, 0), global_seeds=1)
    whole = model(features.fetch("x", everyone), batch.blocks)
    for micro in _micros(batches, model):
        batch = micro.batch
        torch.testing.assert_close(
            model(batch.x, batch.blocks), whole[batch.seeds], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(("halo", "reads"), [("fan_in", "both"), ("fan_out", "fan_in")])
def test_a_halo_that_misses_what_the_model_reads_is_refused(halo, reads):
    model = DeepGNN(5, 1, width=8, layers=2, direction=reads)
    batches, _, _ = _batches("parts", hops=2, direction=halo)
    with pytest.raises(InputError, match=f"along {halo}, but the model reads {reads}"):
        next(_micros(batches, model))
    without, _, _ = _batches("parts", hops=0, direction=halo)
    assert next(_micros(without, model)).num_nodes


def test_an_unknown_direction_is_refused():
    with pytest.raises(InputError, match=r"'up' is not one of fan_in, fan_out, both"):
        SubgraphSettings(direction="up")
