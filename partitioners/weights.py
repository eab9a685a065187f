"""Node weights for balancing, and weights as the integers that some libraries want."""

from collections.abc import Sequence

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

LARGEST_TOTAL = 1 << 30  # sums stay within 32 bits, which some builds of METIS use


def balance_weights(
    graph: Graph, balance: str | Sequence[str], node_weights: np.ndarray | None = None
) -> np.ndarray:
    """One weight a node for the constraints named: float64[N], mean 1.

    ``nodes`` is 1 a node, ``edges`` its in-degree, ``train`` 1 a training node and 0 otherwise;
    ``node_weights`` is a further one. Several are folded into their mean after each is scaled to a
    mean of 1: what the libraries balance is then their sum, not each of them.
    """
    names = [balance] if isinstance(balance, str) else list(balance)
    constraints = [] if node_weights is None else [np.asarray(node_weights, np.float64)]
    for name in names:
        if name == "nodes":
            constraints.append(np.ones(graph.num_nodes))
        elif name == "edges":
            constraints.append(graph.in_degrees().astype(np.float64))
        elif name == "train":
            if not len(graph.splits.get("train", ())):
                raise InputError(
                    "partitioner.args.balance: 'train' needs a train split, and the graph has none"
                )
            weight = np.zeros(graph.num_nodes)
            weight[graph.splits["train"]] = 1.0
            constraints.append(weight)
        else:
            raise InputError(
                f"partitioner.args.balance: {name!r} is not one of nodes, edges, train"
            )
    if not constraints:
        raise InputError("partitioner.args.balance: is empty; name nodes, edges or train")
    folded = np.zeros(graph.num_nodes)
    for weight in constraints:
        if weight.shape != folded.shape:
            raise InputError(
                f"node_weights: has shape {weight.shape} for {graph.num_nodes} nodes; "
                "give one weight each"
            )
        folded += weight / (weight.mean() or 1.0)
    return folded / len(constraints) if folded.any() else np.ones(graph.num_nodes)


def integer_weights(weights: np.ndarray) -> np.ndarray:
    """Weights float64[n] >= 0 as int64[n] with a sum of at most 2³⁰.

    Integers that fit are kept; others are scaled and rounded, and what was above 0 stays so.
    """
    total = float(weights.sum())
    if total <= LARGEST_TOTAL and (weights == np.rint(weights)).all():
        return weights.astype(np.int64)
    scaled = np.rint(weights * (LARGEST_TOTAL / 2 / total)).astype(np.int64)
    return np.maximum(scaled, weights > 0)


def fill_empty(
    assignment: np.ndarray, num_parts: int, node_weights: np.ndarray | None = None
) -> np.ndarray:
    """Give every empty part the lightest node (the first of those) of the then largest part."""
    counts = np.bincount(assignment, minlength=num_parts)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        nodes = np.flatnonzero(assignment == largest)
        node = nodes[0 if node_weights is None else int(node_weights[nodes].argmin())]
        assignment[node] = part
        counts[largest] -= 1
        counts[part] = 1
    return assignment
