"""Units against networkx and scipy; packing against its budgets and a lower bound."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import random_graph

from gnn_dist.batch import BatchIndex
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.sampling import LocalTopology
from gnn_dist.sampling.subgraph import (
    Reach,
    induce,
    join,
    members,
    mini_batch,
    pack,
    random_unions,
)
from gnn_dist.storage import PartitionedGraph


def _topology(graph: Graph) -> LocalTopology:
    return LocalTopology(PartitionedGraph.from_graph(graph).part(0))


def _edges(unit) -> list[tuple[int, int]]:
    dst = np.repeat(np.arange(unit.num_nodes), np.diff(unit.indptr))
    return sorted(zip(unit.nodes[unit.indices].tolist(), unit.nodes[dst].tolist(), strict=True))


@pytest.mark.parametrize("direction", ["fan_in", "fan_out", "both"])
@pytest.mark.parametrize("hops", [0, 1, 3])
def test_a_unit_is_the_induced_graph_of_core_and_halo(hops, direction):
    graph = random_graph(80, 160, seed=3)
    dst = np.repeat(np.arange(80), np.diff(graph.indptr))
    whole = nx.MultiDiGraph(list(zip(graph.indices.tolist(), dst.tolist(), strict=True)))
    whole.add_nodes_from(range(80))
    core = np.array([5, 17, 3, 60])
    topology = _topology(graph)
    unit = induce(topology, core, hops, reach=Reach(topology, direction))
    reach = set(core.tolist())
    for _ in range(hops):
        sources = {u for v in reach for u in whole.predecessors(v)}
        destinations = {w for v in reach for w in whole.successors(v)}
        reach |= sources if direction != "fan_out" else set()
        reach |= destinations if direction != "fan_in" else set()
    assert unit.nodes[: unit.num_core].tolist() == core.tolist()
    assert sorted(unit.nodes.tolist()) == sorted(reach)
    assert _edges(unit) == sorted((u, v) for u, v in whole.subgraph(reach).edges())


@pytest.mark.parametrize("conv", ["mean", "attention"])
@pytest.mark.parametrize("direction", ["fan_in", "fan_out", "both"])
def test_with_a_hop_a_group_and_block_the_core_has_the_results_of_the_whole_graph(direction, conv):
    graph = random_graph(80, 160, seed=6)
    topology = _topology(graph)
    options = {"width": 33, "groups": 3, "layers": 1, "conv": conv, "grid": None}
    model = DeepGNN(5, 2, direction=direction, **options).double()
    x = torch.from_numpy(graph.node["x"]).double()
    index = BatchIndex(0, 0)

    def run(unit):
        batch = mini_batch(unit, topology, seed=2, index=index, global_seeds=1)
        return model(x[batch.input_nodes], batch.blocks)

    whole = run(induce(topology, np.arange(80)))
    reach, outside = Reach(topology, direction), 0
    for part in np.split(np.random.default_rng(0).permutation(80), 20):
        unit = induce(topology, part, 3, reach=reach)
        torch.testing.assert_close(run(unit), whole[part], rtol=1e-9, atol=1e-10)
        outside += 80 - unit.num_nodes
    assert outside  # units are not the whole graph


def test_units_side_by_side_keep_their_edges_and_share_none():
    graph = random_graph(80, 300, seed=4)
    topology = _topology(graph)
    units = [induce(topology, np.array(c), 1) for c in ([1, 2, 3], [50], [2, 70, 71])]
    whole = join(units)
    cores = np.concatenate([u.nodes[: u.num_core] for u in units])
    np.testing.assert_array_equal(whole.nodes[: whole.num_core], cores)
    assert _edges(whole) == sorted(e for u in units for e in _edges(u))
    scipy = pytest.importorskip("scipy.sparse")
    matrix = scipy.csr_matrix(
        (np.ones(whole.num_edges), whole.indices, whole.indptr), (whole.num_nodes,) * 2
    )
    count, label = scipy.csgraph.connected_components(matrix, directed=False)
    assert count >= len(units)
    ends = np.cumsum([0, *(u.num_core for u in units)])
    for a in range(3):
        for b in range(a):
            left, right = label[ends[a] : ends[a + 1]], label[ends[b] : ends[b + 1]]
            assert not set(left) & set(right)


def test_a_seeds_result_does_not_depend_on_packing():
    graph = random_graph(80, 300, seed=5)
    topology = _topology(graph)
    units = [induce(topology, np.arange(k, k + 20), 2) for k in (0, 20, 40)]
    model = DeepGNN(5, 2, width=32, layers=3, dropout=0.4, seed=1)
    x = torch.from_numpy(graph.node["x"])

    def run(unit):
        batch = mini_batch(unit, topology, seed=2, index=BatchIndex(0, 0), global_seeds=1)
        return dict(
            zip(batch.seeds.tolist(), model(x[batch.input_nodes], batch.blocks), strict=True)
        )

    together = run(join(units))
    for unit in units:
        for node, row in run(unit).items():
            torch.testing.assert_close(row, together[node], rtol=1e-4, atol=1e-4)


def test_members_and_random_unions_cover_every_node_once():
    assignment = np.array([2, 0, 0, -1, 2, 5, 0])
    groups = members(assignment)
    assert [g.tolist() for g in groups] == [[1, 2, 6], [0, 4], [5]]
    assert [g.tolist() for g in members(assignment, np.array([6, 5]))] == [[6], [5]]
    clusters = [np.arange(10 * k, 10 * k + 10) for k in range(7)]
    first, second = random_unions(clusters, 3, 1), random_unions(clusters, 3, 2)
    for unions in (first, second):
        assert sorted(np.concatenate(unions).tolist()) == list(range(70))
        assert [u.size for u in unions] == [30, 30, 10]
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 300)), min_size=1, max_size=40),
    st.integers(100, 250),
)
def test_packing_holds_both_budgets_and_is_near_the_fewest(units, max_nodes):
    nodes, edges = [n for n, _ in units], [e for _, e in units]
    max_cost = 900.0
    bins = pack(nodes, edges, max_nodes, max_cost, alpha=2.0, beta=1.0)
    assert sorted(k for b in bins for k in b) == list(range(len(units)))
    for b in bins:
        assert sum(nodes[k] for k in b) <= max_nodes
        assert sum(2 * nodes[k] + edges[k] for k in b) <= max_cost
    fewest = max(-(-sum(nodes) // max_nodes), np.ceil(sum(2 * n + e for n, e in units) / max_cost))
    assert len(bins) <= 2 * fewest + 1


def test_packing_comes_out_even():
    rng = np.random.default_rng(0)
    nodes = rng.integers(50, 400, 64)
    bins = pack(nodes, 2 * nodes, int(nodes.sum() / 8 * 1.1))
    cost = [sum(3 * nodes[k] for k in b) for b in bins]
    assert len(bins) == 8
    assert max(cost) / np.mean(cost) < 1.03


def test_a_unit_that_fits_nowhere_is_named():
    with pytest.raises(InputError, match=r"sub-graph 1 has 500 nodes.*max_nodes = 100.*more parts"):
        pack([10, 500], [0, 0], 100)
