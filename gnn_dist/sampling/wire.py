"""Sampled rows as bytes: one buffer an answer, so that a hop costs one round of answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_dist.sampling.topology import Neighbours

_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """What an answer holds; known on both sides from the call and the graph's schema.

    Attributes:
        index: dtype of source ids.
        edge_ids: whether original edge ids follow.
        edge: dtype and shape of a row of each edge tensor that follows, in this order.
    """

    index: np.dtype
    edge_ids: bool
    edge: Mapping[str, tuple[np.dtype, tuple[int, ...]]]


def pack(drawn: Neighbours, layout: Layout) -> Tensor:
    """uint8[bytes]: int32 row lengths, sources, edge ids, edge tensors, each 8-byte aligned."""
    columns = [np.diff(drawn.indptr).astype(np.int32), drawn.indices]
    if layout.edge_ids:
        assert drawn.edge_ids is not None
        columns.append(drawn.edge_ids)
    columns += [drawn.edge[name].astype(d, copy=False) for name, (d, _) in layout.edge.items()]
    out = np.empty(sum(_aligned(column.nbytes) for column in columns), np.uint8)
    at = 0
    for column in columns:
        end = at + column.nbytes
        out[at:end] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        at += _aligned(column.nbytes)
        out[end:at] = 0
    return torch.from_numpy(out)


def unpack(packed: Tensor, num_rows: int, layout: Layout) -> Neighbours:
    """The inverse of ``pack`` for ``num_rows`` rows; the arrays are views of ``packed``."""
    columns = _Columns(packed.numpy())
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(columns.take(np.dtype(np.int32), num_rows), out=indptr[1:])
    total = int(indptr[-1])
    return Neighbours(
        indptr,
        columns.take(layout.index, total),
        columns.take(np.dtype(np.int64), total) if layout.edge_ids else None,
        {name: columns.take(dtype, total, *shape) for name, (dtype, shape) in layout.edge.items()},
    )


class _Columns:
    """Reads one aligned array after the other."""

    def __init__(self, buffer: np.ndarray) -> None:
        self._buffer = buffer
        self._at = 0

    def take(self, dtype: np.dtype, *shape: int) -> np.ndarray:
        size = dtype.itemsize * math.prod(shape)
        column = self._buffer[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += _aligned(size)
        return column


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
