"""Nets of graphs and of .hgr files; Mt-KaHyPar's balance, determinism and cut."""

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist.datasets.hgr import hgr, read_hgr
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.partitioners.hypergraph import connectivity, mtkahypar, nets_of


def _sets(indptr, pins):
    return sorted(sorted(p.tolist()) for p in np.split(pins, indptr[1:-1]))


def test_a_net_is_a_node_and_its_readers():
    graph = Graph.from_edges(np.array([0, 0, 0, 1, 2]), np.array([1, 2, 2, 2, 2]), 4)
    indptr, pins, vertices = nets_of(graph)
    assert vertices == 4
    assert _sets(indptr, pins) == [[0, 1, 2], [1, 2]]
    parts = np.array([0, 1, 2, 0])
    assert connectivity(indptr, pins, parts) == 2 + 1


def test_a_hypergraph_comes_back_from_its_graph(tmp_path):
    path = tmp_path / "a.hgr"
    path.write_text("% a comment\n3 5 11\n2 1 2 3\n7 4 5\n1 5 1\n1\n2\n3\n4\n5\n")
    read = read_hgr(path)
    assert read.edge_weights.tolist() == [2, 7, 1]
    assert read.vertex_weights.tolist() == [1, 2, 3, 4, 5]
    graph = hgr(path=str(path))
    assert graph.num_nodes == 8
    indptr, pins, vertices = nets_of(graph)
    assert vertices == 5
    assert [p.tolist() for p in np.split(pins, indptr[1:-1])] == [[0, 1, 2], [3, 4], [4, 0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1|first line"),
        ("2 3\n1 2\n", "has 2 lines where 3 are announced"),
        ("1 3\n1 4\n", "names vertex 4; vertices are 1 to 3"),
        ("1 3 7\n1 2\n", "the code 7"),
        ("1 3\n1 x\n", "line 2: '1 x' is not numbers"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, says):
    path = tmp_path / "bad.hgr"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_hgr(path)


def test_real_netlists_have_the_counts_that_are_known(shared_data):
    graph = read_hgr(shared_data / "hgr" / "ibm01.hgr")
    assert (graph.num_vertices, graph.num_hyperedges) == (12752, 14111)
    assert graph.indptr[-1] == graph.pins.size
    assert (np.diff(graph.indptr) >= 2).all()


def test_parts_are_balanced_the_same_every_time_and_better_than_chance():
    pytest.importorskip("mtkahypar")
    graph = random_graph(300, 500, seed=2)
    parts = mtkahypar(graph, 4, seed=1)
    assert parts.dtype == np.int32
    assert np.bincount(parts, minlength=4).max() <= 300 / 4 * 1.03 + 1
    np.testing.assert_array_equal(parts, mtkahypar(graph, 4, seed=1))
    indptr, pins, _ = nets_of(graph)
    chance = np.random.default_rng(0).permutation(np.arange(300) % 4)
    assert connectivity(indptr, pins, parts) < 0.8 * connectivity(indptr, pins, chance)
    weights = np.ones(300)
    weights[:30] = 9
    heavy = mtkahypar(graph, 2, node_weights=weights, seed=1, imbalance=0.05)
    assert np.bincount(heavy, weights).max() <= weights.sum() / 2 * 1.06


def test_hyperedges_follow_their_vertices(tmp_path):
    pytest.importorskip("mtkahypar")
    path = tmp_path / "two.hgr"
    lines = [f"{a} {a + 1}" for a in (*range(1, 10), *range(11, 20))]
    path.write_text("\n".join([f"{len(lines)} 20", *lines]))
    graph = hgr(path=str(path))
    parts = mtkahypar(graph, 2, seed=0)
    assert parts.size == graph.num_nodes
    assert len(set(parts[:10])) == 1
    assert len(set(parts[10:20])) == 1
    assert parts[20] == parts[0]
    assert parts[-1] == parts[19]


def test_bad_arguments_are_named():
    graph = random_graph(20, 40)
    with pytest.raises(InputError, match="preset: 'fast'"):
        mtkahypar(graph, 2, seed=0, preset="fast")
    with pytest.raises(InputError, match="imbalance: -1"):
        mtkahypar(graph, 2, seed=0, imbalance=-1)
    assert mtkahypar(graph, 1, seed=0).tolist() == [0] * 20
