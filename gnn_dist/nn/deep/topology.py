"""A sub-graph as the deep model's blocks read it: weighted rows, and the same transposed."""

from dataclasses import dataclass

import numpy as np

from gnn_dist.batch import Block
from gnn_dist.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """One direction of aggregation: ``out[i] = own[i] x[i] + sum_e weight[e] x[indices[e]]``.

    Attributes:
        indptr, indices: int64[N + 1], int32[E].
        weight: float[E]; own: float[N]. For attention they are what is computed, and unused here.
        back_indptr, back_indices: the transpose, in which the gradient flows.
        back_position: int64[E], for each edge of the transpose its place in ``indices``.
        back_weight: float[E].
    """

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray
    own: np.ndarray
    back_indptr: np.ndarray
    back_indices: np.ndarray
    back_position: np.ndarray
    back_weight: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class DeepTopology:
    """Everything about a micro-batch that is not a tensor of the model.

    Attributes:
        num_nodes: N.
        sweeps: one or two directions.
        ids: int64[N] original ids; key: of the draws (dropout).
    """

    num_nodes: int
    sweeps: tuple[Sweep, ...]
    ids: np.ndarray
    key: int = 0


def prepare(
    block: Block, conv: str, direction: str, dtype: np.dtype, gin_eps: float = 0.0
) -> DeepTopology:
    """From a square block (every source is a destination; local ids).

    Degrees are those within the block. Edge weights of the block multiply the convolution's own.
    """
    if block.num_src != block.num_dst:
        raise InputError(
            f"deep model: the block maps {block.num_src} nodes to {block.num_dst}; every block of "
            "the stack reads the same sub-graph, so use a sub-graph sampler (circuits, parts with "
            "a halo, random clusters), not a neighbour sampler"
        )
    n = block.num_dst
    indptr, indices = block.indptr.cpu().numpy(), block.indices.cpu().numpy()
    t_indptr, t_indices, position = (t.cpu().numpy() for t in block.transposed())
    given = None if block.weight is None else block.weight.detach().cpu().numpy().astype(dtype)
    forward = (indptr, indices, np.arange(indices.size), given)
    inverse = np.empty(indices.size, np.int64)
    inverse[position] = np.arange(indices.size)
    backward = (t_indptr, t_indices, position, None if given is None else given[position])
    sweeps = []
    if direction in ("fan_in", "both"):
        sweeps.append(_sweep(n, forward, backward, position, conv, dtype, gin_eps))
    if direction in ("fan_out", "both"):
        sweeps.append(_sweep(n, backward, forward, inverse, conv, dtype, gin_eps))
    ids = np.arange(n) if block.ids is None else block.ids[:n].cpu().numpy()
    return DeepTopology(n, tuple(sweeps), ids, block.key)


def _sweep(n, rows, transposed, position, conv, dtype, gin_eps) -> Sweep:
    indptr, indices, _, given = rows
    degree = np.diff(indptr)
    destination = np.repeat(np.arange(n), degree)
    own = np.zeros(n, dtype)
    if conv == "mean":
        weight = (1.0 / np.maximum(degree, 1)).astype(dtype)[destination]
    elif conv == "gcn":
        root = 1.0 / np.sqrt(degree + 1.0)
        weight = (root[destination] * root[indices]).astype(dtype)
        own = (root * root).astype(dtype)
    else:
        weight = np.ones(indices.size, dtype)
        own = np.full(n, 1.0 + gin_eps, dtype)
    if given is not None:
        weight = weight * given
    return Sweep(
        indptr,
        np.ascontiguousarray(indices, np.int32),
        weight,
        own,
        transposed[0],
        np.ascontiguousarray(transposed[1], np.int32),
        position,
        weight[position],
    )
