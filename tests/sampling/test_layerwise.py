import pickle

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import storage
from gnn_dist.batch import BatchIndex, global_digest
from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.nn.convs import GCNConv, SAGEConv
from gnn_dist.sampling import (
    FastGcnSampler,
    LadiesSampler,
    LocalTopology,
    PartitionedTopology,
    Share,
    full_neighbour_block,
)
from gnn_dist.storage import PartitionedGraph

KINDS = {"ladies": LadiesSampler, "fastgcn": FastGcnSampler}


def whole(graph):
    return LocalTopology(PartitionedGraph.from_graph(graph).part(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hosts", "num_parts"), [(["a", "b"], 3), (["a", "a", "b"], 2)])
def test_batches_do_not_depend_on_partition_and_ranks(kind, hosts, num_parts):
    graph, size = random_graph(80, 900, seed=4), len(hosts)
    assignment = np.random.default_rng(1).integers(0, num_parts, 80).astype(np.int32)
    parts = storage.assemble(graph, assignment, num_parts)
    sampler = KINDS[kind]([12, -1, 20], edge_ids=True)
    seeds = np.random.default_rng(0).permutation(80)[:10]
    indexes = [BatchIndex(0, b) for b in range(3)]

    def run(rank, exchange):
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=num_parts)
        topology = PartitionedTopology(parts, placement, exchange)
        every = parts.global_ids()[seeds]
        shares = [Share(i, every[rank::size], seeds.size, every) for i in indexes]
        return sampler.sample_bulk(topology, shares, seed=1)

    for b, shares in enumerate(zip(*run_threads(size, run), strict=True)):
        alone = sampler.sample(whole(graph), seeds, seed=1, index=indexes[b])
        assert global_digest(shares, parts.original_ids()) == alone.digest(np.arange(80))


@pytest.mark.parametrize("kind", KINDS)
def test_the_weighted_mean_over_the_drawn_edges_is_unbiased(kind):
    graph, batches = random_graph(50, 600, seed=6, skew=False), 4000
    topology, seeds = whole(graph), np.arange(12)
    x = np.random.default_rng(3).standard_normal(50) + 1.0
    sampler = KINDS[kind]([25])
    drawn = np.zeros((batches, 12))
    for b in range(batches):
        batch = sampler.sample(topology, seeds, seed=4, index=BatchIndex(0, b))
        block = batch.blocks[0]
        terms = block.weight.numpy() * x[batch.input_nodes.numpy()][block.indices.numpy()]
        np.add.at(drawn[b], block.destinations().numpy(), terms)
        drawn[b] /= np.maximum(block.degrees().numpy(), 1)
    exact = np.array(
        [x[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].mean() for v in seeds]
    )
    error = drawn.std(axis=0) / np.sqrt(batches)
    assert (np.abs(drawn.mean(axis=0) - exact) < 4.5 * error).all()
    assert (error < 0.03).all()


@pytest.mark.parametrize("kind", KINDS)
def test_self_loops_are_kept_and_all_edges_are_the_whole_row(kind):
    graph = random_graph(40, 400, seed=1)
    topology, seeds = whole(graph), np.arange(40)
    loops = {v for v in seeds if v in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]}
    assert loops
    block = KINDS[kind]([2]).sample(topology, seeds, seed=0, index=BatchIndex(0, 0)).blocks[0]
    own = block.destinations() == block.indices
    assert set(block.indices[own].tolist()) == loops
    every = KINDS[kind]([-1], edge_ids=True).sample(topology, seeds, seed=0, index=BatchIndex(0, 0))
    full, _ = full_neighbour_block(topology, seeds, edge_ids=True)
    assert torch.equal(every.blocks[0].edge_ids, full.edge_ids)
    assert (every.blocks[0].weight == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("conv", [lambda: SAGEConv(3, 2), lambda: GCNConv(3, 2, norm="right")])
def test_weights_reach_the_aggregation(kind, conv):
    torch.manual_seed(0)
    graph = random_graph(50, 600, seed=6)
    batch = KINDS[kind]([20]).sample(whole(graph), np.arange(12), seed=4, index=BatchIndex(0, 0))
    block, layer = batch.blocks[0], conv().double()
    x = torch.randn(block.num_src, 3, dtype=torch.float64)
    terms = torch.zeros(12, 3, dtype=torch.float64)
    terms.index_add_(0, block.destinations(), block.weight.double()[:, None] * x[block.indices])
    if isinstance(layer, SAGEConv):
        mean = terms / block.degrees().clamp(min=1)[:, None]
        rows = torch.cat((x[:12], mean), dim=1)
    else:
        rows = (terms + x[:12]) / (block.degrees() + 1)[:, None]
    expected = torch.nn.functional.linear(rows, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x, block), expected)


def test_what_a_layer_wise_sampler_does_not_do_is_refused():
    for options, key in (({"replace": True}, "replace"), ({"weights": "w"}, "weights")):
        with pytest.raises(InputError, match=f"sampler.{key}: a layer-wise sampler"):
            LadiesSampler([3], **options)
    with pytest.raises(InputError, match=r"sampler.fanouts"):
        FastGcnSampler([0])
    assert pickle.loads(pickle.dumps(LadiesSampler([3], edge=["a"]))).edge == ("a",)
