"""Largest value over the in-edges of each row, column by column."""

import numpy as np
from numba import njit

from gnn_dist.errors import InputError
from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import (
    add,
    flat,
    item,
    load,
    over_columns,
    pointer,
    positions,
    store,
    take_larger,
    where_place,
)


def spmm_max(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``(values [num_dst, F], edge int32[num_dst, F])``: the largest ``x[indices[e], c]`` over the
    edges of each row and the first edge that has it; 0 and -1 for a row without edges. NaN counts
    as larger than every number."""
    if indices.size > np.iinfo(np.int32).max:
        raise InputError(
            f"max aggregation: a block has {indices.size} edges, more than the "
            f"{np.iinfo(np.int32).max} it can number; use smaller batches"
        )
    rows, width = indptr.size - 1, x.shape[1]
    values = np.empty((rows, width), x.dtype)
    edge = np.empty((rows, width), np.int32)
    if values.size:
        args = (indptr, indices, flat(x), width, flat(values), flat(edge))
        parallel.run_rows(_spmm_max, indptr, *args)
    return values, edge


def spmm_max_backward(
    transposed: tuple[np.ndarray, np.ndarray, np.ndarray], grad: np.ndarray, edge: np.ndarray
) -> np.ndarray:
    """Gradient of ``spmm_max`` with respect to ``x``: all of an entry's gradient goes to its
    ``edge``. ``transposed`` is (indptr, destinations, position) by source."""
    indptr, width = transposed[0], grad.shape[1]
    out = np.empty((indptr.size - 1, width), grad.dtype)
    if out.size:
        args = (*transposed, flat(grad), flat(edge), width, flat(out))
        parallel.run_rows(_spmm_max_backward, indptr, *args)
    return out


@njit(cache=True, forceinline=True)
def _max_block(zero, c, args):
    x, width, rows, lo, hi, values, edge, at = args
    best, places = zero, positions(zero, -1)
    if lo < hi:
        best = load(zero, x, np.int64(item(rows, lo)) * width + c)
        places = positions(zero, lo)
    for e in range(lo + 1, hi):
        value = load(zero, x, np.int64(item(rows, e)) * width + c)
        best, places = take_larger(best, places, value, e)
    store(values, at + c, best)
    store(edge, at + c, places)


@njit(cache=True, nogil=True)
def _spmm_max(row_lo, row_hi, indptr, indices, x, width, values, edge):
    px, pi, pv, pe = pointer(x), pointer(indices), pointer(values), pointer(edge)
    for r in range(row_lo, row_hi):
        args = (px, width, pi, indptr[r], indptr[r + 1], pv, pe, r * width)
        over_columns(_max_block, values, 0, width, args)


@njit(cache=True, forceinline=True)
def _max_backward_block(zero, c, args):
    rows, position, lo, hi, grad, edge, width, out, at = args
    acc = zero
    for k in range(lo, hi):
        entry = np.int64(item(rows, k)) * width + c
        acc = add(acc, where_place(edge, entry, item(position, k), load(zero, grad, entry)))
    store(out, at + c, acc)


@njit(cache=True, nogil=True)
def _spmm_max_backward(row_lo, row_hi, indptr, destinations, position, grad, edge, width, out):
    pd, pp, pg, pe, po = (
        pointer(destinations),
        pointer(position),
        pointer(grad),
        pointer(edge),
        pointer(out),
    )
    for s in range(row_lo, row_hi):
        args = (pd, pp, indptr[s], indptr[s + 1], pg, pe, width, po, s * width)
        over_columns(_max_backward_block, out, 0, width, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    indptr, indices, position = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.int64)
    values, edge = spmm_max(indptr, indices, np.ones((1, 1), np.float32))
    spmm_max_backward((indptr, indices, position), values, edge)
