"""Rows of a table by index."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import flat, load, prefetch, store, zeros1, zeros32, zeros256

_AHEAD = 8  # rows; more does not help, fewer leaves cache misses exposed
_LINE = 64


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
        parallel.run(_widen_rows, index.size, *args, work=out.size // 8)
        return out
    size = width * dtype.itemsize
    unit = next(u for u in (np.uint64, np.uint32, np.uint16, np.uint8) if size % u().nbytes == 0)
    args = (_as(table, unit), index, _as(out, unit), size // unit().nbytes)
    parallel.run(_copy_rows, index.size, *args, work=out.nbytes // 32)
    return out


def _as(array: np.ndarray, unit: type) -> np.ndarray:
    return array.reshape(-1).view(np.uint8).view(unit)


@njit(cache=True, nogil=True)
def _copy_rows(lo, hi, table, index, out, width):
    line = _LINE // table.itemsize
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead = np.int64(index[r + _AHEAD]) * width
            for c in range(0, width, line):
                prefetch(table, ahead + c)
        source = np.int64(index[r]) * width
        target = r * width
        for c in range(width):
            out[target + c] = table[source + c]


@njit(cache=True, nogil=True)
def _widen_rows(lo, hi, table, index, out, width):
    line = _LINE // table.itemsize
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead = np.int64(index[r + _AHEAD]) * width
            for c in range(0, width, line):
                prefetch(table, ahead + c)
        source = np.int64(index[r]) * width
        target = r * width
        c = 0
        while c + 64 <= width:
            store(out, target + c, load(zeros256(out), table, source + c))
            c += 64
        while c + 8 <= width:
            store(out, target + c, load(zeros32(out), table, source + c))
            c += 8
        while c < width:
            store(out, target + c, load(zeros1(out), table, source + c))
            c += 1


def warmup() -> None:
    """Compile for the dtypes of a run."""
    index = np.zeros(1, np.int64)
    for dtype in (np.float32, np.float64, np.float16, np.int64, np.uint8):
        for ids in (index, index.astype(np.int32)):
            gather(np.zeros((1, 1), dtype), ids)
