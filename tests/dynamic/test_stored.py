"""A sequence survives being stored as a graph, partitioned or not."""

import numpy as np
import pytest

from gnn_dist import storage
from gnn_dist.datasets import temporal
from gnn_dist.dynamic import SnapshotSequence
from gnn_dist.dynamic.stored import from_partition, to_graph
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph


def sequences() -> dict[str, SnapshotSequence]:
    grown = temporal.synthetic(30, 120, 7, growth=0.2, features=3)
    rng = np.random.default_rng(0)
    edges = [grown.snapshot(t).edge_index() for t in range(7)]
    valued = SnapshotSequence.from_lists(
        edges, 30, weights=[rng.integers(1, 3, e.shape[1]).astype(np.float32) for e in edges],
        edge_labels=[rng.integers(0, 2, e.shape[1]) for e in edges],
        times=np.arange(8.0), info={"name": "valued"},
    )  # fmt: skip
    return {"grown": grown, "valued": valued}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["grown", "valued"])
def test_a_sequence_comes_back_from_a_partition(name: str, parts: int) -> None:
    sequence = sequences()[name]
    graph = to_graph(sequence)
    assignment = np.random.default_rng(0).integers(0, parts, 30).astype(np.int32)
    assignment[:parts] = np.arange(parts)
    cut = storage.assemble(graph, assignment, parts)
    back = from_partition(cut)
    assert back.num_snapshots == sequence.num_snapshots
    for t in range(sequence.num_snapshots):
        np.testing.assert_array_equal(back.keys(t), sequence.keys(t))
        ours, theirs = back.snapshot(t).weight, sequence.snapshot(t).weight
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)
        if sequence.edge_labels is not None:
            np.testing.assert_array_equal(back.edge_labels[t], sequence.edge_labels[t])
        np.testing.assert_array_equal(back.active_at(t), sequence.active_at(t))
    np.testing.assert_array_equal(back.x, sequence.x)
    for field in ("y", "times"):
        ours, theirs = getattr(back, field), getattr(sequence, field)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)
    assert back.info["name"] == sequence.info["name"]


def test_an_edge_that_stays_is_stored_once() -> None:
    edge = np.array([[0], [1]])
    sequence = SnapshotSequence.from_lists([edge] * 3 + [edge[::-1]] + [edge], 2)
    graph = to_graph(sequence)
    runs = sorted(zip(graph.edge["start"].tolist(), graph.edge["stop"].tolist(), strict=True))
    assert runs == [(0, 3), (3, 4), (4, 5)]


def test_other_graphs_are_refused() -> None:
    plain = PartitionedGraph.from_graph(Graph.from_edges(np.array([0]), np.array([1])))
    with pytest.raises(InputError, match="no snapshot sequence"):
        from_partition(plain)
    with pytest.raises(InputError, match="no snapshot has an edge"):
        to_graph(SnapshotSequence.from_lists([np.zeros((2, 0), int)], 3))
