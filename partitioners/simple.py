"""Partitioners that do not look at edges: the baselines, and node order as it is."""

import numpy as np

from gnn_dist import rng
from gnn_dist.graph import Graph
from gnn_dist.partitioners.weights import fill_empty


def random_parts(graph: Graph, num_parts: int, *, seed: int) -> np.ndarray:
    """Nodes in random order, dealt out: part sizes differ by at most 1."""
    key = rng.fold(seed, rng.Stream.PARTITION)
    order = rng.permutation(key, np.arange(graph.num_nodes))
    assignment = np.empty(graph.num_nodes, np.int32)
    assignment[order] = np.arange(graph.num_nodes) % num_parts
    return assignment


def hash_parts(graph: Graph, num_parts: int, *, seed: int) -> np.ndarray:
    """A hash of each node's id modulo the number of parts: no table is needed to find an owner.

    Sizes vary as those of a random draw do; an empty part is given a node.
    """
    key = rng.fold(seed, rng.Stream.PARTITION)
    hashes = rng.node_draws(key, np.arange(graph.num_nodes))
    return fill_empty((hashes % np.uint64(num_parts)).astype(np.int32), num_parts)


def range_parts(
    graph: Graph, num_parts: int, *, node_weights: np.ndarray | None = None
) -> np.ndarray:
    """Consecutive node ids, cut where the running sum of node weights passes k/P of the total.

    Good where ids have locality already, as those of a crawl or of several circuits in one graph.
    """
    num_nodes = graph.num_nodes
    weights = np.ones(num_nodes) if node_weights is None else node_weights
    middle = np.cumsum(weights) - weights / 2
    first = np.searchsorted(middle, middle[-1] * np.arange(num_parts) / num_parts)
    first[0] = 0
    # Each part keeps at least one node, and leaves one for each part after it.
    for part in range(1, num_parts):
        first[part] = max(first[part], first[part - 1] + 1)
    first = np.minimum(first, num_nodes - num_parts + np.arange(num_parts))
    sizes = np.diff(np.append(first, num_nodes))
    return np.repeat(np.arange(num_parts, dtype=np.int32), sizes)
