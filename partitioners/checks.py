"""What goes into a partitioner and what comes out is checked here, whoever wrote it."""

import warnings
from typing import Any

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

USUAL_IMBALANCE = 1.2


class BalanceWarning(UserWarning):
    """A partition is less balanced than is usual; training will wait for the heaviest part."""


def check_num_parts(graph: Graph, num_parts: int) -> None:
    if isinstance(num_parts, bool) or not isinstance(num_parts, int | np.integer) or num_parts < 1:
        raise InputError(f"num_parts: must be an integer of at least 1, not {num_parts!r}")
    if num_parts > graph.num_nodes:
        raise InputError(
            f"num_parts: {num_parts} parts for {graph.num_nodes} nodes; "
            f"every part needs a node, so ask for at most {graph.num_nodes}"
        )


def check_weights(
    field: str, weights: np.ndarray | None, length: int, what: str
) -> np.ndarray | None:
    """``weights`` as float64[length], or ``InputError``."""
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.shape != (length,):
        raise InputError(
            f"{field}: has shape {array.shape} for {length} {what}; give one weight each"
        )
    if array.dtype.kind not in "fiub":
        raise InputError(f"{field}: weights must be numbers, these are {array.dtype}")
    array = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise InputError(
            f"{field}: entry {bad[0]} is {array[bad[0]]:g}; weights must be finite and at least 0"
        )
    if length and not array.any():
        raise InputError(f"{field}: all weights are 0; leave them out to weigh {what} alike")
    return array


def check_answer(name: str, answer: Any, num_nodes: int, num_parts: int) -> np.ndarray:
    """What partitioner ``name`` returned as int32[N], or ``InputError``."""
    try:
        array = np.asarray(answer)
    except Exception as error:
        raise InputError(
            f"partitioner {name!r}: returned {type(answer).__name__}, which is no array; "
            "return the part of every node as int32[N]"
        ) from error
    if array.dtype.kind not in "iu":
        raise InputError(
            f"partitioner {name!r}: returned {type(answer).__name__} of {array.dtype}; "
            "return the part of every node as integers, int32[N]"
        )
    if array.shape != (num_nodes,):
        raise InputError(
            f"partitioner {name!r}: returned shape {array.shape} for {num_nodes} nodes; "
            "return the part of every node"
        )
    bad = np.flatnonzero((array < 0) | (array >= num_parts))
    if bad.size:
        raise InputError(
            f"partitioner {name!r}: puts node {bad[0]} in part {array[bad[0]]}; "
            f"parts run from 0 to {num_parts - 1}"
        )
    empty = np.flatnonzero(np.bincount(array.astype(np.int64), minlength=num_parts) == 0)
    if empty.size:
        raise InputError(
            f"partitioner {name!r}: leaves part {empty[0]} of {num_parts} empty; "
            "ask for fewer parts, or use another partitioner"
        )
    return array.astype(np.int32)


def check_balance(
    name: str,
    assignment: np.ndarray,
    num_parts: int,
    node_weights: np.ndarray | None,
    max_imbalance: float | None,
) -> None:
    """Compare the heaviest part with the mean; see ``gnn_dist.partitioners.partition``."""
    load = np.bincount(assignment, node_weights, minlength=num_parts)
    mean = load.sum() / num_parts
    heaviest_node = 1.0 if node_weights is None else float(node_weights.max())
    limit = USUAL_IMBALANCE if max_imbalance is None else max_imbalance
    if load.max() <= limit * mean + heaviest_node:
        return
    what = "nodes" if node_weights is None else "node weight"
    text = (
        f"partitioner {name!r}: part {int(load.argmax())} has {load.max():g} of {what}, "
        f"{load.max() / mean:.2f} times the mean"
    )
    if max_imbalance is not None:
        raise InputError(
            f"{text}, more than the {max_imbalance:g} of max_imbalance; use another partitioner "
            "(metis balances), other arguments, or allow more"
        )
    warnings.warn(f"{text}; the others will wait for it", BalanceWarning, stacklevel=3)
