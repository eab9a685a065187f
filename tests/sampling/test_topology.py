import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import storage
from gnn_dist.batch import BatchIndex, global_digest
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.sampling import (
    ALL,
    LocalTopology,
    NeighborSampler,
    PartitionedTopology,
    full_neighbour_block,
)
from gnn_dist.sampling.topology import Neighbours
from gnn_dist.sampling.wire import Layout, pack, unpack
from gnn_dist.storage import PartitionedGraph


def whole(graph):
    return LocalTopology(PartitionedGraph.from_graph(graph).part(0))


def in_parts(graph, num_parts, seed=0):
    assignment = np.random.default_rng(seed).integers(0, num_parts, graph.num_nodes)
    return storage.assemble(graph, assignment, num_parts)


def matrix_of(graph):
    """CSR with one row a destination; the values are edge ids plus one."""
    ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_matrix((ids + 1, graph.indices, graph.indptr), shape)


@pytest.mark.parametrize("num_parts", [0, 1, 3])
def test_all_neighbours_are_the_rows_of_the_adjacency_matrix(num_parts):
    graph = random_graph(40, 200, seed=1)
    if num_parts == 0:
        topology, book = whole(graph), np.arange(40)
    else:
        parts = in_parts(graph, num_parts)
        topology = PartitionedTopology(parts, Placement.single(num_parts), LocalExchange())
        book = parts.original_ids()
    nodes = np.random.default_rng(0).permutation(40)[:25]
    drawn = topology.sample(nodes, ALL, 0, edge_ids=True)
    expected = matrix_of(graph)[book[nodes]]
    np.testing.assert_array_equal(drawn.indptr, expected.indptr)
    np.testing.assert_array_equal(book[drawn.indices], expected.indices)
    np.testing.assert_array_equal(drawn.edge_ids + 1, expected.data)
    np.testing.assert_array_equal(topology.original_ids(nodes), book[nodes])


def test_a_full_neighbour_block_has_every_in_edge():
    graph = random_graph(40, 200, seed=2)
    parts = in_parts(graph, 2)
    topology = PartitionedTopology(parts, Placement.single(2), LocalExchange())
    book, nodes = parts.original_ids(), np.array([3, 30, 11, 0])
    block, sources = full_neighbour_block(topology, nodes, edge_ids=True, edge=["weight"])
    assert sources[:4].tolist() == nodes.tolist()
    assert len(set(sources.tolist())) == sources.size == block.num_src
    expected = matrix_of(graph)[book[nodes]]
    np.testing.assert_array_equal(block.indptr, expected.indptr)
    np.testing.assert_array_equal(book[sources[block.indices]], expected.indices)
    np.testing.assert_array_equal(block.edge_ids + 1, expected.data)
    np.testing.assert_array_equal(block.weight, graph.edge["weight"][block.edge_ids])
    with pytest.raises(InputError, match="nodes: node 3 is given twice"):
        full_neighbour_block(topology, np.array([3, 3]))


def test_a_local_topology_needs_the_whole_graph():
    parts = in_parts(random_graph(40, 200), 2)
    for part in (parts.part(0), parts.part(1)):
        with pytest.raises(InputError, match=r"is not the whole graph; use PartitionedTopology"):
            LocalTopology(part)


def test_whether_calls_are_collective_is_the_placements_to_say():
    parts = in_parts(random_graph(40, 200), 2)
    single = PartitionedTopology(parts, Placement.single(2), LocalExchange())
    assert not single.collective
    assert not whole(random_graph()).collective

    def on_rank(hosts, mode):
        def run(rank, exchange):
            placement = Placement.build(rank=rank, hosts=hosts, num_parts=2, mode=mode)
            topology = PartitionedTopology(parts, placement, exchange)
            topology.sample(np.arange(5), 2, 0)
            return topology.collective, exchange.calls

        return run_threads(2, run)

    assert on_rank(["a", "a"], "auto") == [(False, 0), (False, 0)]
    assert on_rank(["a", "b"], "auto") == [(True, 2), (True, 2)]
    assert on_rank(["a", "a"], "per-rank") == [(True, 2), (True, 2)]


OPTIONS = (
    {},
    {"replace": True},
    {"weights": "weight"},
    {"weights": "weight", "replace": True},
    {"edge_ids": True, "edge": ("weight", "attr", "half")},
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("hosts", "num_parts"),
    [(["a", "b"], 2), (["a", "b"], 5), (["a", "b", "c", "d"], 2), (["a", "a", "b"], 4)],
)
def test_rows_of_other_hosts_are_the_rows_of_the_whole_graph(hosts, num_parts, options):
    graph = random_graph(60, 600, seed=3)
    edge = {
        **graph.edge,
        "attr": np.random.default_rng(0).standard_normal((600, 2, 2)),
        "half": np.arange(600).astype(np.float16),
    }
    graph = Graph(graph.indptr, graph.indices, graph.edge_ids, edge=edge)
    parts, local = in_parts(graph, num_parts), whole(graph)
    book, global_ids = parts.original_ids(), parts.global_ids()
    # rank 0 asks for many nodes, every other rank for fewer, the last for none
    asked = [np.random.default_rng(r).permutation(60)[: 40 - 13 * r] for r in range(len(hosts))]
    asked[-1] = asked[-1][:0]

    def run(rank, exchange):
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=num_parts)
        topology = PartitionedTopology(parts, placement, exchange)
        assert set(topology._rows) == set(placement.local_parts)  # no other part is opened
        nodes = global_ids[asked[rank]]
        return [topology.sample(nodes, fanout, 99, **options) for fanout in (4, ALL)]

    for rank, drawn in enumerate(run_threads(len(hosts), run)):
        for fanout, there in zip((4, ALL), drawn, strict=True):
            here = local.sample(asked[rank], fanout, 99, **options)
            np.testing.assert_array_equal(there.indptr, here.indptr)
            np.testing.assert_array_equal(book[there.indices], here.indices)
            assert there.indices.dtype == here.indices.dtype
            assert (there.edge_ids is None) == (here.edge_ids is None)
            if here.edge_ids is not None:
                np.testing.assert_array_equal(there.edge_ids, here.edge_ids)
            assert set(there.edge) == set(here.edge)
            for name, rows in here.edge.items():
                np.testing.assert_array_equal(there.edge[name], rows)
                assert there.edge[name].dtype == rows.dtype


@pytest.mark.parametrize("mode", ["auto", "per-rank"])
@pytest.mark.parametrize(("size", "num_parts"), [(2, 1), (2, 2), (4, 2), (4, 4), (3, 5)])
def test_global_batches_do_not_depend_on_ranks_parts_and_placement(size, num_parts, mode):
    graph = random_graph(80, 900, seed=4)
    parts = in_parts(graph, num_parts)
    sampler = NeighborSampler([4, 3, 2], edge_ids=True)
    seeds = np.random.default_rng(0).permutation(80)[:18]
    dealt = np.split(parts.global_ids()[seeds], [0, 5, 12][:size])[:size]
    dealt[-1] = np.setdiff1d(parts.global_ids()[seeds], np.concatenate(dealt[:-1]))

    def run(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["h"] * size, num_parts=num_parts, mode=mode)
        topology = PartitionedTopology(parts, placement, exchange)
        return [
            sampler.sample(topology, dealt[rank], seed=1, index=BatchIndex(0, b)) for b in range(3)
        ]

    for b, shares in enumerate(zip(*run_threads(size, run), strict=True)):
        alone = sampler.sample(whole(graph), seeds, seed=1, index=BatchIndex(0, b))
        assert global_digest(shares, parts.original_ids()) == alone.digest(np.arange(80))


def test_wide_ids_cross_the_wire():
    """A graph with int64 sources, as above 2^31 nodes."""
    drawn = Neighbours(
        np.array([0, 2, 2, 3]),
        np.array([2**40, 1, 2**33]),
        np.array([7, 8, 2**50]),
        {"flag": np.array([True, False, True]), "attr": np.ones((3, 3), np.float32)},
    )
    layout = Layout(
        np.dtype(np.int64),
        True,
        {"flag": (np.dtype(bool), ()), "attr": (np.dtype(np.float32), (3,))},
    )
    packed = pack(drawn, layout)
    assert packed.dtype == torch.uint8
    got = unpack(packed, 3, layout)
    np.testing.assert_array_equal(got.indptr, drawn.indptr)
    np.testing.assert_array_equal(got.indices, drawn.indices)
    np.testing.assert_array_equal(got.edge_ids, drawn.edge_ids)
    for name, rows in drawn.edge.items():
        np.testing.assert_array_equal(got.edge[name], rows)
        assert got.edge[name].dtype == rows.dtype
