"""Cutting a graph in memory, against a loop over its edges in original ids."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import random_graph
from support.partitions import check_against_edge_list, check_round_trips

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph, assemble


def assign(graph: Graph, num_parts: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_parts, graph.num_nodes).astype(np.int32)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_every_edge_is_stored_once_by_the_owner_of_its_destination(num_parts):
    graph = random_graph()
    assert graph.edge_ids is not None
    assignment = assign(graph, num_parts)
    cut = assemble(graph, assignment, num_parts)
    check_against_edge_list(graph, assignment, cut)
    check_round_trips(cut)


@st.composite
def cut_graphs(draw):
    num_nodes = draw(st.integers(1, 12))
    num_edges = draw(st.integers(0, 30))
    ids = st.integers(0, num_nodes - 1)
    edges = st.lists(ids, min_size=num_edges, max_size=num_edges)
    src, dst = np.array(draw(edges), np.int64), np.array(draw(edges), np.int64)
    num_parts = draw(st.integers(1, 4))
    parts = st.integers(0, num_parts - 1)
    assignment = draw(st.lists(parts, min_size=num_nodes, max_size=num_nodes))
    graph = Graph.from_edges(
        src,
        dst,
        num_nodes,
        node={"x": np.arange(num_nodes * 2.0).reshape(num_nodes, 2)},
        edge={"weight": np.arange(num_edges)},
        splits={"train": np.unique(draw(st.lists(ids)))},
    )
    return graph, np.array(assignment), num_parts


@settings(max_examples=60, deadline=None)
@given(cut_graphs())
def test_any_graph_and_assignment_empty_parts_included(drawn):
    graph, assignment, num_parts = drawn
    cut = assemble(graph, assignment, num_parts)
    check_against_edge_list(graph, assignment, cut)
    check_round_trips(cut)


def test_the_owner_of_a_node_skips_empty_parts():
    graph = random_graph(6, 10)
    cut = assemble(graph, np.array([3, 1, 1, 3, 1, 3]), 5)
    assert cut.offsets.tolist() == [0, 0, 3, 3, 6, 6]
    assert cut.owner(np.arange(6)).tolist() == [1, 1, 1, 3, 3, 3]


def test_one_part_is_the_graph_itself_without_a_copy():
    graph = random_graph()
    cut = PartitionedGraph.from_graph(graph)
    check_against_edge_list(graph, np.zeros(graph.num_nodes, int), cut)
    check_round_trips(cut)
    assert cut.part(0).indices is graph.indices
    assert cut.part(0).node["x"] is graph.node["x"]
    assert not cut.part(0).halo.size


def test_a_split_lists_all_its_nodes_by_original_id():
    graph = random_graph()
    cut = assemble(graph, assign(graph, 3), 3)
    for name, ids in graph.splits.items():
        global_ids, original = cut.split(name)
        assert original.tolist() == ids.tolist()
        np.testing.assert_array_equal(cut.original_ids()[global_ids], original)
    with pytest.raises(InputError, match=r"no split 'dev'; use train, val, test"):
        cut.split("dev")


def test_float16_features_are_float32_kept_in_float16():
    graph = Graph.from_edges([0], [1], 2, node={"x": np.ones((2, 3), np.float16)})
    spec = assemble(graph, np.array([0, 1]), 2).schema.node["x"]
    assert (spec.dtype, spec.stored, spec.shape) == ("float32", "float16", (3,))


def test_a_part_is_made_once_and_a_fresh_one_each_time():
    cut = assemble(random_graph(), assign(random_graph(), 2), 2)
    assert cut.part(1) is cut.part(1)
    assert cut.fresh_part(1) is not cut.part(1)
    with pytest.raises(InputError, match="no part 2; this graph has parts 0 to 1"):
        cut.part(2)


def test_a_cut_graph_can_be_pickled():
    graph = random_graph()
    assignment = assign(graph, 2)
    check_against_edge_list(
        graph, assignment, pickle.loads(pickle.dumps(assemble(graph, assignment, 2)))
    )


@pytest.mark.parametrize(
    ("assignment", "num_parts", "message"),
    [
        (np.zeros(5, int), 2, r"shape \(5,\) for 6 nodes"),
        (np.zeros((6, 1), int), 2, r"shape \(6, 1\) for 6 nodes"),
        (np.zeros(6), 2, "must be integers, these are float64"),
        (np.array([0, 0, 0, 0, 2, 0]), 2, "node 4 is given part 2; parts run from 0 to 1"),
        (np.array([0, -1, 0, 0, 0, 0]), 2, "node 1 is given part -1"),
        (np.zeros(6, int), 0, "num_parts: must be at least 1, not 0"),
    ],
)
def test_a_bad_assignment_is_named(assignment, num_parts, message):
    with pytest.raises(InputError, match=message):
        assemble(random_graph(6, 10), assignment, num_parts)
