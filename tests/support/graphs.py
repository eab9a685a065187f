"""Small graphs for tests."""

import numpy as np

from gnn_dist.graph import Graph


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
