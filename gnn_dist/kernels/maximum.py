"""Largest value over the in-edges of each row, column by column."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel


def spmm_max(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``(values [num_dst, F], edge int32/int64[num_dst, F])``: the largest ``x[indices[e], c]``
    over the edges of each row and the first edge that has it; 0 and -1 for a row without edges.
    NaN counts as larger than every number."""
    rows, width = indptr.size - 1, x.shape[1]
    values = np.empty((rows, width), x.dtype)
    edge = np.empty((rows, width), np.int32 if indices.size < 2**31 else np.int64)
    if values.size:
        parallel.run_rows(_spmm_max, indptr, indptr, indices, x, values, edge)
    return values, edge


def spmm_max_backward(
    transposed: tuple[np.ndarray, np.ndarray, np.ndarray], grad: np.ndarray, edge: np.ndarray
) -> np.ndarray:
    """Gradient of ``spmm_max`` with respect to ``x``: all of an entry's gradient goes to its
    ``edge``. ``transposed`` is (indptr, destinations, position) by source."""
    indptr, destinations, position = transposed
    out = np.zeros((indptr.size - 1, grad.shape[1]), grad.dtype)
    if out.size:
        args = (indptr, destinations, position, grad, edge, out)
        parallel.run_rows(_spmm_max_backward, indptr, *args)
    return out


@njit(cache=True, nogil=True)
def _spmm_max(row_lo, row_hi, indptr, indices, x, values, edge):
    width = x.shape[1]
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        if lo == hi:
            for c in range(width):
                values[r, c] = 0
                edge[r, c] = -1
            continue
        source = indices[lo]
        for c in range(width):
            values[r, c] = x[source, c]
            edge[r, c] = lo
        for e in range(lo + 1, hi):
            source = indices[e]
            for c in range(width):
                best, value = values[r, c], x[source, c]
                larger = not (value <= best) and best == best
                values[r, c] = value if larger else best
                edge[r, c] = e if larger else edge[r, c]


@njit(cache=True, nogil=True)
def _spmm_max_backward(row_lo, row_hi, indptr, destinations, position, grad, edge, out):
    width = grad.shape[1]
    for s in range(row_lo, row_hi):
        for k in range(indptr[s], indptr[s + 1]):
            r, e = destinations[k], position[k]
            for c in range(width):
                out[s, c] += grad[r, c] if edge[r, c] == e else 0


def warmup() -> None:
    """Compile for the dtypes of a run."""
    indptr, indices, position = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.int64)
    values, edge = spmm_max(indptr, indices, np.ones((1, 1), np.float32))
    spmm_max_backward((indptr, indices, position), values, edge)
