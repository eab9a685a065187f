"""Cut, halos and balance, counted with sets."""

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist.graph import Graph
from gnn_dist.partitioners import quality
from gnn_dist.storage import assemble, open_partition, write


@pytest.fixture(params=[0, 1])
def case(request):
    graph = random_graph(seed=request.param)
    return graph, np.random.default_rng(request.param).integers(0, 4, graph.num_nodes)


def test_counts_are_those_of_a_loop_over_edges(case, tmp_path):
    graph, assignment = case
    edges, cut = [0] * 4, [0] * 4
    halo: list[set[int]] = [set() for _ in range(4)]
    for v in range(graph.num_nodes):
        for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist():
            p = assignment[v]
            edges[p] += 1
            if assignment[u] != p:
                cut[p] += 1
                halo[p].add(u)
    cut_graph = assemble(graph, assignment, 4)
    write(cut_graph, tmp_path / "cut", partitioner={"name": "random"})
    for found in (
        quality(graph, assignment),
        quality(cut_graph),
        quality(open_partition(tmp_path / "cut")),
    ):
        assert found.nodes.tolist() == [int((assignment == p).sum()) for p in range(4)]
        assert found.edges.tolist() == edges
        assert found.cut.tolist() == cut
        assert found.halo.tolist() == [len(h) for h in halo]
        train = assignment[graph.splits["train"]]
        assert found.train.tolist() == [int((train == p).sum()) for p in range(4)]
        assert found.cut_edges == sum(cut)
        assert found.cut_fraction == sum(cut) / graph.num_edges
        assert found.node_balance == max(found.nodes) / (graph.num_nodes / 4)
        assert found.edge_balance == max(edges) / (graph.num_edges / 4)
        assert found.train_balance == max(found.train) / (graph.splits["train"].size / 4)
        assert found.replication == 1 + sum(map(len, halo)) / graph.num_nodes


def test_the_table_has_a_line_a_part_and_the_totals(case):
    graph, assignment = case
    found = quality(graph, assignment)
    lines = found.table().splitlines()
    assert lines[0].split() == ["part", "nodes", "edges", "train", "halo", "cut"]
    for p in range(4):
        assert lines[1 + p].split()[:3] == [str(p), str(found.nodes[p]), str(found.edges[p])]
    assert lines[5].split()[:2] == ["max/mean", f"{found.node_balance:.3f}"]
    assert f"edge cut {found.cut_edges} of 400" in lines[6]


def test_as_dict_is_plain_json(case):
    import json

    graph, assignment = case
    found = json.loads(json.dumps(quality(graph, assignment).as_dict()))
    assert found["parts"] == 4
    assert found["nodes"] == np.bincount(assignment).tolist()


def test_a_graph_without_edges_or_training_nodes():
    found = quality(Graph(np.zeros(4), np.empty(0, int)), np.array([0, 1, 1]))
    assert (found.cut_fraction, found.train_balance, found.edge_balance) == (0.0, 1.0, 1.0)
    assert found.node_balance == pytest.approx(4 / 3)
