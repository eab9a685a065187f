"""A partitioned graph against the edge list that it was made from."""

import numpy as np

from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph


def check_against_edge_list(
    graph: Graph, assignment: np.ndarray, cut: PartitionedGraph, widen: bool = False
) -> None:
    """Every node and edge of ``graph`` is where ``assignment`` says, once, in order."""
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    seen_nodes: list[int] = []
    seen_edges: list[int] = []
    book = cut.original_ids()
    for p in range(cut.num_parts):
        part = cut.part(p)
        owned = [v for v in range(graph.num_nodes) if assignment[v] == p]
        assert part.original_ids.tolist() == owned
        assert (part.first, part.last) == (len(seen_nodes), len(seen_nodes) + len(owned))
        assert part.indptr.dtype == part.edge_ids.dtype == part.original_ids.dtype == np.int64
        halo = set()
        for row, v in enumerate(owned):
            places = np.flatnonzero(destinations == v)  # in the graph's own order
            ids = places if graph.edge_ids is None else graph.edge_ids[places]
            here = slice(part.indptr[row], part.indptr[row + 1])
            sources = graph.indices[places]
            assert book[part.indices[here]].tolist() == sources.tolist()
            assert part.edge_ids[here].tolist() == ids.tolist()
            for name, rows in graph.edge.items():
                np.testing.assert_array_equal(part.edge[name][here], rows[ids])
            halo |= {int(u) for u in sources if assignment[u] != p}
            seen_edges += ids.tolist()
        assert book[part.halo].tolist() == sorted(halo, key=lambda u: (assignment[u], u))
        assert (np.diff(part.halo) > 0).all()
        for name, rows in graph.node.items():
            wanted = rows[owned].astype(np.float16) if widen and name == "x" else rows[owned]
            np.testing.assert_array_equal(part.node[name], wanted)
        for name, ids in graph.splits.items():
            assert book[part.splits[name]].tolist() == [v for v in owned if v in set(ids)]
        seen_nodes += owned
    assert sorted(seen_nodes) == list(range(graph.num_nodes))
    assert sorted(seen_edges) == list(range(graph.num_edges))


def check_round_trips(cut: PartitionedGraph) -> None:
    everything = np.arange(cut.num_nodes)
    np.testing.assert_array_equal(cut.global_ids()[cut.original_ids()], everything)
    np.testing.assert_array_equal(cut.original_ids()[cut.global_ids()], everything)
    for p in range(cut.num_parts):
        part = cut.part(p)
        owned = np.arange(part.first, part.last)
        np.testing.assert_array_equal(cut.original_ids()[owned], part.original_ids)
        np.testing.assert_array_equal(cut.global_ids()[part.original_ids], owned)
        assert (cut.owner(owned) == p).all()
