"""Several global batches in one call: the same batches, one round a hop for all of them."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import storage
from gnn_dist.batch import BatchIndex, global_digest
from gnn_dist.cluster import Placement
from gnn_dist.sampling import LocalTopology, NeighborSampler, PartitionedTopology, Share
from gnn_dist.storage import PartitionedGraph

FANOUTS = (4, -1, 2)
OPTIONS = ({}, {"replace": True}, {"weights": "weight"}, {"weights": "weight", "replace": True})
BATCHES = 16


def cut(num_parts):
    graph = random_graph(80, 900, seed=4)
    assignment = np.random.default_rng(1).integers(0, num_parts, 80).astype(np.int32)
    return graph, storage.assemble(graph, assignment, num_parts)


def seeds_of(batch):
    """Original ids; the last batch is short, so that some ranks have no seed in it."""
    chosen = np.random.default_rng(batch).permutation(80)
    return chosen[: 9 if batch < BATCHES - 1 else 1]


def in_bulk(parts, hosts, bulk, options):
    """The shares of each rank, and the calls that each rank made."""
    book, size = parts.global_ids(), len(hosts)
    sampler = NeighborSampler(FANOUTS, edge_ids=True, edge=("weight",), **options)

    def run(rank, exchange):
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=parts.num_parts)
        topology = PartitionedTopology(parts, placement, exchange)
        shares = [
            Share(BatchIndex(1, b), book[seeds_of(b)][rank::size], seeds_of(b).size)
            for b in range(BATCHES)
        ]
        batches = []
        for first in range(0, BATCHES, bulk):
            batches += sampler.sample_bulk(topology, shares[first : first + bulk], seed=5)
        return batches, exchange.calls

    return run_threads(size, run)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("hosts", [["a", "b"], ["a", "a", "b"], ["a", "b", "c", "d"]], ids="".join)
def test_batches_do_not_depend_on_how_many_are_drawn_in_one_call(hosts, options):
    graph, parts = cut(4)
    whole = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    sampler = NeighborSampler(FANOUTS, edge_ids=True, edge=("weight",), **options)
    found = {bulk: in_bulk(parts, hosts, bulk, options) for bulk in (1, 5, 16)}
    for b in range(BATCHES):
        alone = sampler.sample(whole, seeds_of(b), seed=5, index=BatchIndex(1, b))
        for ranks in found.values():
            shares = [batches[b] for batches, _ in ranks]
            assert global_digest(shares, parts.original_ids()) == alone.digest(np.arange(80))
    for (ones, _), (sixteen, _) in zip(found[1], found[16], strict=True):
        for one, other in zip(ones, sixteen, strict=True):
            assert one.index == other.index
            assert one.global_seeds == other.global_seeds
            assert torch.equal(one.input_nodes, other.input_nodes)
            for a, b in zip(one.blocks, other.blocks, strict=True):
                for name in ("indptr", "indices", "edge_ids", "weight", "ids"):
                    assert torch.equal(getattr(a, name), getattr(b, name)), name
                assert (a.key, a.num_src) == (b.key, b.num_src)


def test_rounds_a_batch_fall_with_the_number_of_batches_in_one_call():
    _, parts = cut(4)
    for bulk, calls in ((1, BATCHES), (5, 4), (16, 1)):
        for _, counted in in_bulk(parts, ["a", "b"], bulk, {}):
            assert counted == 2 * len(FANOUTS) * calls  # a question and an answer each hop
