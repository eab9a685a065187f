"""Rows of a table by index."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import (
    flat,
    item,
    load,
    over_columns,
    pointer,
    prefetch,
    store,
)

_AHEAD = 8  # rows; more does not help, fewer leaves cache misses exposed
_LINE = 128  # bytes: the other cache line of a pair comes by itself


def gather(table: np.ndarray, index: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``table[index]`` for ``table`` of any shape [N, ...] and ``index`` int32/int64[n].

    float16 rows are widened to float32; every other dtype is copied. ``out``, when given, has the
    shape and dtype of the result, is C-contiguous, and is filled and returned.
    """
    shape = (index.size, *table.shape[1:])
    half = table.dtype == np.float16
    dtype = np.dtype(np.float32) if half else table.dtype
    if out is None:
        out = np.empty(shape, dtype)
    assert (out.shape, out.dtype, out.flags.c_contiguous) == (shape, dtype, True)
    if not out.size:
        return out
    table = np.ascontiguousarray(table)
    width = out.size // index.size
    if half:
        args = flat(table), index, flat(out), width
        parallel.run(_rows, index.size, *args, work=out.size // 8)
        return out
    unit = np.float32 if width * dtype.itemsize % 4 == 0 else np.uint8  # only moved: any will do
    args = (_as(table, unit), index, _as(out, unit), width * dtype.itemsize // unit().nbytes)
    kernel = _rows if unit is np.float32 else _copy_bytes
    parallel.run(kernel, index.size, *args, work=out.nbytes // 32)
    return out


def _as(array: np.ndarray, unit: type) -> np.ndarray:
    return array.reshape(-1).view(np.uint8).view(unit)


@njit(cache=True, nogil=True)
def _copy_bytes(lo, hi, table, index, out, width):
    for r in range(lo, hi):
        source, target = np.int64(index[r]) * width, r * width
        for c in range(width):
            out[target + c] = table[source + c]


@njit(cache=True, forceinline=True)
def _row_block(zero, c, args):
    table, source, out, target = args
    store(out, target + c, load(zero, table, source + c))


@njit(cache=True, nogil=True)
def _rows(lo, hi, table, index, out, width):
    """Rows of float32, or of float16 that are widened."""
    line = _LINE // table.itemsize
    pt, pi, po = pointer(table), pointer(index), pointer(out)
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead = np.int64(item(pi, r + _AHEAD)) * width
            for c in range(0, width, line):
                prefetch(pt, ahead + c)
        args = (pt, np.int64(item(pi, r)) * width, po, r * width)
        over_columns(_row_block, out, 0, width, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    for ids in (np.zeros(1, np.int64), np.zeros(1, np.int32)):
        for dtype in (np.float32, np.float16, np.uint8):
            gather(np.zeros((1, 1), dtype), ids)
