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


@njit(cache=True, nogil=True)
def find(ids, among):
    """Place of each of ``ids`` in ``among``, -1 for none; both int64, ascending, distinct."""
    place = np.empty(ids.size, np.int64)
    if ids.size * 16 < among.size:
        for i in range(ids.size):
            k = np.searchsorted(among, ids[i])
            place[i] = k if k < among.size and among[k] == ids[i] else -1
        return place
    k = 0
    for i in range(ids.size):
        while k < among.size and among[k] < ids[i]:
            k += 1
        place[i] = k if k < among.size and among[k] == ids[i] else -1
    return place


@njit(cache=True, nogil=True)
def union(a, b):
    """The ids in ``a`` or ``b``; all int64, ascending, distinct."""
    out = np.empty(a.size + b.size, np.int64)
    i = j = n = 0
    while i < a.size and j < b.size:
        if a[i] < b[j]:
            out[n] = a[i]
            i += 1
        else:
            j_is_same = a[i] == b[j]
            out[n] = b[j]
            j += 1
            i += j_is_same
        n += 1
    while i < a.size:
        out[n] = a[i]
        i += 1
        n += 1
    while j < b.size:
        out[n] = b[j]
        j += 1
        n += 1
    return out[:n].copy()


@njit(cache=True, nogil=True)
def spread(indptr, indices, rows, reached, times, fanout, replace, total):
    """Add to ``total[u]`` the log of the probability that no row draws in-neighbour ``u``.

    Row ``rows[i]`` is reached with probability ``reached[i]`` in each of ``times[i]`` (float)
    independent trials, and each time draws ``fanout`` (-1: all) of its in-edges.
    """
    for i in range(rows.size):
        first, last = indptr[rows[i]], indptr[rows[i] + 1]
        degree = last - first
        if degree == 0 or reached[i] == 0.0:
            continue
        if fanout < 0 or (fanout >= degree and not replace):
            drawn = 1.0
        elif replace:
            drawn = 1.0 - (1.0 - 1.0 / degree) ** fanout
        else:
            drawn = fanout / degree
        missed = times[i] * np.log1p(-min(1.0, drawn * reached[i]))
        for e in range(first, last):
            total[indices[e]] += missed


@njit(cache=True, nogil=True)
def weighted_spread(indptr, indices, weights, rows, reached, times, fanout, replace, total):
    """As ``spread``, where an edge is drawn with probability proportional to its weight.

    Without replacement the probability is taken as ``min(1, fanout * weight / sum)``.
    """
    for i in range(rows.size):
        first, last = indptr[rows[i]], indptr[rows[i] + 1]
        if reached[i] == 0.0:
            continue
        whole = 0.0
        positive = 0
        for e in range(first, last):
            whole += weights[e]
            positive += weights[e] > 0
        for e in range(first, last):
            if weights[e] <= 0 and fanout >= 0:
                continue
            if fanout < 0 or (fanout >= positive and not replace):
                drawn = 1.0
            elif replace:
                drawn = 1.0 - (1.0 - weights[e] / whole) ** fanout
            else:
                drawn = min(1.0, fanout * weights[e] / whole)
            total[indices[e]] += times[i] * np.log1p(-min(1.0, drawn * reached[i]))


def warmup() -> None:
    """Compile for the dtypes of a run."""
    index = np.zeros(1, np.int64)
    for dtype in (np.float32, np.float64, np.float16, np.int64, np.uint8):
        table = np.zeros((1, 1), dtype)
        out = np.zeros((1, 1), np.float32 if dtype == np.float16 else dtype)
        place(table, index, out, index)
    find(index, index)
    union(index, index)
    one, total = np.ones(1), np.zeros(1)
    indptr = np.array([0, 1])
    for sources in (index, index.astype(np.int32)):
        spread(indptr, sources, index, one, one, 1, False, total)
