import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

EDGES = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40),
    )
)


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """(source, destination) by edge id."""
    ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
    listed = [(0, 0)] * graph.num_edges
    for k, edge in enumerate(ids):
        dst = int(np.searchsorted(graph.indptr, k, side="right")) - 1
        listed[edge] = (int(graph.indices[k]), dst)
    return listed


@given(EDGES)
def test_an_edge_list_is_kept_edge_by_edge(case):
    n, pairs = case
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(src, dst, n, edge={"place": np.arange(len(pairs))})
    assert edges_of(graph) == pairs
    assert graph.edge_in_csc_order("place").tolist() == (
        list(range(len(pairs))) if graph.edge_ids is None else graph.edge_ids.tolist()
    )
    assert graph.in_degrees().tolist() == np.bincount(dst, minlength=n).tolist()
    assert graph.out_degrees().tolist() == np.bincount(src, minlength=n).tolist()
    for v in range(n):  # in-neighbours stand in the order of the list
        row = graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()
        assert row == [s for s, d in pairs if d == v]


def test_plain_lists_will_do():
    graph = Graph.from_edges([0, 1], [1, 2], 3)
    assert edges_of(graph) == [(0, 1), (1, 2)]
    assert Graph.from_edges([], [], 2).num_edges == 0


def test_a_sparse_matrix_has_an_edge_for_every_entry():
    matrix = sp.random(20, 20, 0.2, random_state=0, format="csr")
    graph = Graph.from_scipy(matrix)
    coo = matrix.tocoo()
    assert edges_of(graph) == list(zip(coo.row.tolist(), coo.col.tolist(), strict=True))
    assert graph.edge["weight"].tolist() == coo.data.tolist()


@pytest.mark.parametrize("directed", [True, False])
def test_a_networkx_graph_keeps_its_neighbours(directed):
    source = nx.gnp_random_graph(15, 0.3, seed=1, directed=directed)
    source.add_edge(3, 3)
    nx.set_edge_attributes(source, 2.5, "weight")
    graph = Graph.from_networkx(source)
    both = source.to_directed()
    assert sorted(edges_of(graph)) == sorted(both.edges)
    assert set(graph.edge["weight"].tolist()) == {2.5}


def test_pyg_data_brings_tensors_edges_and_masks():
    data_module = pytest.importorskip("torch_geometric.data")
    data = data_module.Data(
        x=torch.rand(4, 3),
        y=torch.tensor([0, 1, 1, 0]),
        edge_index=torch.tensor([[0, 3, 1], [2, 0, 2]]),
        edge_attr=torch.rand(3, 2),
        train_mask=torch.tensor([True, False, True, False]),
    )
    graph = Graph.from_pyg(data)
    assert edges_of(graph) == [(0, 2), (3, 0), (1, 2)]
    assert np.array_equal(graph.node["x"], data.x.numpy())
    assert np.array_equal(graph.edge["attr"], data.edge_attr.numpy())
    assert graph.splits["train"].tolist() == [0, 2]


def test_the_digest_tells_graphs_apart():
    def make(**changes):
        arguments = {
            "src": np.array([0, 1, 2]),
            "dst": np.array([1, 2, 0]),
            "num_nodes": 3,
            "node": {"x": np.eye(3, dtype=np.float32)},
            "splits": {"train": np.array([0, 2])},
        }
        return Graph.from_edges(**{**arguments, **changes}).digest

    same = make()
    assert make() == same
    assert make(dst=np.array([1, 0, 2])) != same
    assert make(node={"x": np.eye(3, dtype=np.float64)}) != same
    assert make(node={"z": np.eye(3, dtype=np.float32)}) != same
    assert make(splits={"train": np.array([0, 1])}) != same
    assert make(num_nodes=None, node={}, splits={}) != same


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"src": [0, 5]}, ["src", "entry 1", "5", "0 to 2"]),
        ({"dst": [-1, 0]}, ["dst", "-1"]),
        ({"src": [0.5, 1.0]}, ["integers", "float64"]),
        ({"src": [0]}, ["(1,)", "(2,)"]),
        ({"node": {"x": np.ones((4, 2))}}, ["node.x", "(4, 2)", "3 rows"]),
        ({"node": {"x": np.array([0.0, np.inf, 1.0])}}, ["node.x", "row 1"]),
        ({"node": {"a b": np.ones(3)}}, ["identifier", "'a b'"]),
        ({"node": {"x": np.array(["a", "b", "c"])}}, ["node.x", "<U1"]),
        ({"edge": {"w": np.ones(3)}}, ["edge.w", "2 edges"]),
        ({"splits": {"train": [0, 3]}}, ["splits.train", "3"]),
        ({"splits": {"train": [1, 1]}}, ["splits.train", "twice"]),
        ({"splits": {"train": np.ones(2, bool)}}, ["splits.train", "mask"]),
        ({"num_nodes": 0, "src": [], "dst": []}, ["no nodes"]),
    ],
)
def test_what_cannot_be_a_graph_is_named(arguments, words):
    values = {"src": [0, 1], "dst": [1, 2], "num_nodes": 3, **arguments}
    with pytest.raises(InputError) as error:
        Graph.from_edges(**values)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("indptr", [[0, 2, 1, 2], [1, 2], [0], [[0, 1]]])
def test_a_broken_indptr_is_refused(indptr):
    with pytest.raises(InputError, match="indptr"):
        Graph(np.array(indptr), np.array([0, 0]))


def test_a_graph_cannot_be_changed():
    graph = Graph.from_edges([0], [1], 2)
    with pytest.raises(AttributeError):
        graph.indptr = np.zeros(3)
