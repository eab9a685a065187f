"""What follows a matrix product, on rows still in the cache: bias and ReLU, and their gradients."""

import numpy as np
from numba import njit

from gnn_dist.kernels.vector import (
    add,
    load,
    multiply,
    over_columns,
    over_columns_once,
    pointer,
    relu,
    splat,
    store,
    where_positive,
)


@njit(cache=True, forceinline=True)
def _bias_block(zero, c, args):
    rows, at, bias, rectify = args
    value = add(load(zero, rows, at + c), load(zero, bias, c))
    store(rows, at + c, relu(value) if rectify else value)


@njit(cache=True, nogil=True)
def add_bias(lo, hi, rows, bias, rectify):
    """Add ``bias`` [F] to rows ``lo .. hi - 1`` of the flat ``rows`` in place, and take max(., 0)
    where ``rectify``."""
    width = bias.size
    pr, pb = pointer(rows), pointer(bias)
    for r in range(lo, hi):
        over_columns_once(_bias_block, bias, 0, width, (pr, r * width, pb, rectify))


@njit(cache=True, forceinline=True)
def _masked_block(zero, c, args):
    grad, active, scale, at, out, to = args
    value = multiply(load(zero, grad, at + c), splat(zero, scale))
    store(out, to + c, where_positive(load(zero, active, at + c), value))


@njit(cache=True, nogil=True)
def masked(lo, hi, grad, active, scale, width, out, first):
    """Rows ``lo .. hi - 1`` of ``scale * grad`` where ``active`` is positive, else 0.

    They are written to the flat ``out``, whose first row is row ``first``.
    """
    pg, pa, po = pointer(grad), pointer(active), pointer(out)
    for r in range(lo, hi):
        args = (pg, pa, scale, r * width, po, (r - first) * width)
        over_columns(_masked_block, out, 0, width, args)


@njit(cache=True, forceinline=True)
def _total_block(zero, c, args):
    rows, width, count, out = args
    acc = zero
    for r in range(count):
        acc = add(acc, load(zero, rows, r * width + c))
    store(out, c, acc)


@njit(cache=True, nogil=True)
def column_total(rows, count, out):
    """Column sums of the first ``count`` rows of the flat ``rows``, in ``out`` [F]."""
    args = (pointer(rows), out.size, count, pointer(out))
    over_columns(_total_block, out, 0, out.size, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    x = np.ones(1, np.float32)
    add_bias(0, 1, x, x, True)
    masked(0, 1, x, x, np.float32(1), 1, x.copy(), 0)
    column_total(x, 1, x.copy())
