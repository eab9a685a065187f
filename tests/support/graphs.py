"""Small graphs for tests."""

import numpy as np

from gnn_dist.datasets.synthetic import sbm
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph, assemble


def random_graph(
    num_nodes: int = 60, num_edges: int = 400, seed: int = 0, features: int = 5, skew: bool = True
) -> Graph:
    """Parallel edges, self-loops and empty rows included; features, labels, weights, splits."""
    rng = np.random.default_rng(seed)
    p = 1.0 / np.arange(1, num_nodes + 1) if skew else np.ones(num_nodes)
    p = rng.permutation(p / p.sum())
    src = rng.integers(0, num_nodes, num_edges)
    dst = rng.choice(num_nodes, num_edges, p=p)
    ids = rng.permutation(num_nodes)
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        node={
            "x": rng.standard_normal((num_nodes, features)).astype(np.float32),
            "y": rng.integers(0, 3, num_nodes),
        },
        edge={"weight": rng.uniform(0.1, 2.0, num_edges).astype(np.float32)},
        splits={
            "train": ids[: num_nodes // 2],
            "val": ids[num_nodes // 2 : 3 * num_nodes // 4],
            "test": ids[3 * num_nodes // 4 :],
        },
        info={"name": "random", "num_classes": 3},
    )


def communities_in_two_parts() -> PartitionedGraph:
    """A block model with skewed degrees whose communities are dealt to two parts."""
    graph = sbm(
        num_nodes=6000, num_classes=12, avg_degree=14, homophily=0.7, degree_exponent=2.5,
        num_features=1, seed=1,
    )  # fmt: skip
    return assemble(graph, (graph.node["y"] % 2).astype(np.int32), 2)
