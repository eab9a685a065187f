"""What follows a matrix product, on rows still in the cache: bias and ReLU, and their gradients.

Which entries passed the ReLU (and dropout) is kept for the gradient as one bit each, ``active``
uint8[n * F / 8], where a row is whole 64-byte vectors (``packs``), else as the entries themselves.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.vector import (
    add,
    load,
    multiply,
    over_columns_once,
    pointer,
    relu,
    splat,
    store,
    store_positive,
    where_active,
)


def packs(width: int, dtype: np.dtype) -> bool:
    """Whether rows of ``width`` numbers can be marked by bits."""
    return width * dtype.itemsize % 64 == 0


@njit(cache=True, forceinline=True)
def _bias_block(zero, c, args):
    rows, at, bias, rectify, active, mark = args
    value = add(load(zero, rows, at + c), load(zero, bias, c))
    if rectify:
        value = relu(value)
    store(rows, at + c, value)
    if mark:
        store_positive(active, (at + c) // 8, value)


@njit(cache=True, nogil=True)
def add_bias(lo, hi, rows, bias, rectify, active):
    """Add ``bias`` [F] to rows ``lo .. hi - 1`` of the flat ``rows`` in place, and take max(., 0)
    where ``rectify``; mark positive entries in the bits ``active`` unless it is empty."""
    width = bias.size
    pr, pb, pa = pointer(rows), pointer(bias), pointer(active)
    for r in range(lo, hi):
        args = (pr, r * width, pb, rectify, pa, active.size > 0)
        over_columns_once(_bias_block, bias, 0, width, args)


@njit(cache=True, forceinline=True)
def _mark_block(zero, c, args):
    rows, at, active = args
    store_positive(active, (at + c) // 8, load(zero, rows, at + c))


@njit(cache=True, nogil=True)
def mark_active(lo, hi, rows, width, active):
    """Mark the positive entries of rows ``lo .. hi - 1`` of the flat ``rows`` in bits."""
    pr, pa = pointer(rows), pointer(active)
    for r in range(lo, hi):
        over_columns_once(_mark_block, rows, 0, width, (pr, r * width, pa))


@njit(cache=True, forceinline=True)
def _masked_block(zero, c, args):
    grad, active, scale, at, out, to, totals = args
    value = multiply(load(zero, grad, at + c), splat(zero, scale))
    value = where_active(active, at + c, value)
    store(out, to + c, value)
    store(totals, c, add(load(zero, totals, c), value))


@njit(cache=True, nogil=True)
def masked(lo, hi, grad, active, scale, totals, out, first):
    """Rows ``lo .. hi - 1`` of ``scale * grad`` where ``active``, else 0.

    They are written to the flat ``out``, whose first row is row ``first``, and added to ``totals``
    [F].
    """
    width = totals.size
    pg, pa, po, pt = pointer(grad), pointer(active), pointer(out), pointer(totals)
    for r in range(lo, hi):
        args = (pg, pa, scale, r * width, po, (r - first) * width, pt)
        over_columns_once(_masked_block, out, 0, width, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    x, bits = np.ones(16, np.float32), np.zeros(2, np.uint8)
    add_bias(0, 1, x, x.copy(), True, bits)
    mark_active(0, 1, x, 16, bits)
    masked(0, 1, x, bits, np.float32(1), x.copy(), x.copy(), 0)
