"""Rows of a table to given places of another, and sorted sets of ids."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import flat, load, prefetch, store, zeros1, zeros32

_AHEAD = 8  # rows
_LINE = 64


def place(table: np.ndarray, index: np.ndarray, out: np.ndarray, position: np.ndarray) -> None:
    """``out[position] = table[index]`` for rows of any shape; both int64[n], positions distinct.

    A float16 table fills a float32 ``out``; else the dtypes are the same.
    """
    width = int(np.prod(out.shape[1:], dtype=np.int64))
    if not index.size or not width:
        return
    table = np.ascontiguousarray(table)
    if table.dtype == np.float16 and out.dtype == np.float32:
        args = flat(table), index, flat(out), position, width
        parallel.run(_widen, index.size, *args, work=index.size * width // 8)
        return
    assert table.dtype == out.dtype, (table.dtype, out.dtype)
    size = width * out.itemsize
    unit = next(u for u in (np.uint64, np.uint32, np.uint16, np.uint8) if size % u().nbytes == 0)
    source, target = (a.reshape(-1).view(np.uint8).view(unit) for a in (table, out))
    args = source, index, target, position, size // unit().nbytes
    parallel.run(_copy, index.size, *args, work=index.size * size // 32)


@njit(cache=True, nogil=True)
def _copy(lo, hi, table, index, out, position, width):
    line = _LINE // table.itemsize
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead = index[r + _AHEAD] * width
            for c in range(0, width, line):
                prefetch(table, ahead + c)
        source = index[r] * width
        target = position[r] * width
        for c in range(width):
            out[target + c] = table[source + c]


@njit(cache=True, nogil=True)
def _widen(lo, hi, table, index, out, position, width):
    line = _LINE // table.itemsize
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead = index[r + _AHEAD] * width
            for c in range(0, width, line):
                prefetch(table, ahead + c)
        source = index[r] * width
        target = position[r] * width
        c = 0
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
        table = np.zeros((1, 1), dtype)
        out = np.zeros((1, 1), np.float32 if dtype == np.float16 else dtype)
        place(table, index, out, index)
