"""Graphs for benches that need a size and a degree distribution, and nothing planted."""

import numpy as np

from gnn_dist.graph import Graph, index_dtype


def power_law(num_nodes: int, num_edges: int, exponent: float = 3.0, seed: int = 0) -> Graph:
    """Chung and Lu's model: both ends of an edge are drawn in proportion to expected degrees that
    fall off with ``exponent``. Hubs are hubs in both directions; ids say nothing of the degree."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(num_nodes).astype(index_dtype(num_nodes))
    power = (exponent - 1) / (exponent - 2)  # inverse of the cumulated degree by rank

    def ends() -> np.ndarray:
        return place[(num_nodes * rng.random(num_edges) ** power).astype(np.int64)]

    return Graph.from_edges(ends(), ends(), num_nodes)
