"""Rows of a table to given places of another, and sorted sets of ids."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import flat, load, over_columns, pointer, prefetch, store

_AHEAD = 8  # rows
_LINE = 128  # bytes: the other cache line of a pair comes by itself
_DIGIT = 11  # bits


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
        parallel.run(_rows, index.size, *args, work=index.size * width // 8)
        return
    assert table.dtype == out.dtype, (table.dtype, out.dtype)
    size = width * out.itemsize
    unit = np.float32 if size % 4 == 0 else np.uint8  # only moved: any will do
    source, target = (a.reshape(-1).view(np.uint8).view(unit) for a in (table, out))
    args = source, index, target, position, size // unit().nbytes
    kernel = _rows if unit is np.float32 else _copy_bytes
    parallel.run(kernel, index.size, *args, work=index.size * size // 32)


@njit(cache=True, nogil=True)
def _copy_bytes(lo, hi, table, index, out, position, width):
    for r in range(lo, hi):
        source, target = index[r] * width, position[r] * width
        for c in range(width):
            out[target + c] = table[source + c]


@njit(cache=True, forceinline=True)
def _row_block(zero, c, args):
    table, source, out, target = args
    store(out, target + c, load(zero, table, source + c))


@njit(cache=True, nogil=True)
def _rows(lo, hi, table, index, out, position, width):
    """Rows of float32, or of float16 that are widened."""
    line = _LINE // table.itemsize
    pt, po = pointer(table), pointer(out)
    for r in range(lo, hi):
        if r + _AHEAD < hi:
            ahead, to = index[r + _AHEAD] * width, position[r + _AHEAD] * width
            for c in range(0, width, line):
                prefetch(pt, ahead + c)
                prefetch(po, to + c)
        args = (pt, index[r] * width, po, position[r] * width)
        over_columns(_row_block, out, 0, width, args)


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
def distinct(ids):
    """The different ones of ``ids`` (int64[n], any order), ascending, and the place of each id
    among them, int64[n]. A radix sort: three times as fast as ``np.unique`` with its inverse."""
    n = ids.size
    place = np.empty(n, np.int64)
    if n == 0:
        return ids.copy(), place
    low, high = ids.min(), ids.max()
    keys, order = ids - low, np.arange(n)
    next_keys, next_order = np.empty(n, np.int64), np.empty(n, np.int64)
    digits = (1 << _DIGIT) - 1
    shift = 0
    while (high - low) >> shift:
        ends = np.zeros(digits + 2, np.int64)
        for i in range(n):
            ends[(keys[i] >> shift & digits) + 1] += 1
        for d in range(digits):
            ends[d + 1] += ends[d]
        for i in range(n):
            d = keys[i] >> shift & digits
            next_keys[ends[d]] = keys[i]
            next_order[ends[d]] = order[i]
            ends[d] += 1
        keys, next_keys = next_keys, keys
        order, next_order = next_order, order
        shift += _DIGIT
    last = -1
    for i in range(n):
        if i == 0 or keys[i] + low != next_keys[last]:
            last += 1
            next_keys[last] = keys[i] + low
        place[order[i]] = last
    return next_keys[: last + 1].copy(), place


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
def spread(indptr, indices, rows, first, times, fanouts, replace, total):
    """Add to ``total[u]`` the log of the probability that no row draws in-neighbour ``u``.

    In each of ``times[i]`` (float) independent trials, row ``rows[i]`` is reached for the first
    time by hop ``h`` with probability ``first[i, h]`` (hop 0: as a seed), and then draws
    ``fanouts[l]`` (-1: all) of its in-edges in every hop ``l >= h`` of those given.
    """
    for i in range(rows.size):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        degree = stop - start
        if degree == 0:
            continue
        drawn, missed = 0.0, 0.0
        for h in range(fanouts.size):
            chance = _chance(fanouts[h], 1.0 / degree, degree, replace)
            missed = (missed + first[i, h]) * (1.0 - chance)
            drawn += first[i, h]
        log = times[i] * np.log1p(-min(1.0, max(0.0, drawn - missed)))
        if log != 0.0:
            for e in range(start, stop):
                total[indices[e]] += log


@njit(cache=True, nogil=True)
def weighted_spread(indptr, indices, weights, rows, first, times, fanouts, replace, total):
    """As ``spread``, where an edge is drawn with probability proportional to its weight."""
    for i in range(rows.size):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        whole = 0.0
        positive = 0
        for e in range(start, stop):
            whole += weights[e]
            positive += weights[e] > 0
        for e in range(start, stop):
            drawn, missed = 0.0, 0.0
            for h in range(fanouts.size):
                chance = 1.0  # by fan-out -1 also edges of weight 0
                if fanouts[h] >= 0:
                    share = weights[e] / whole if whole > 0 else 0.0
                    chance = _chance(fanouts[h], share, positive, replace) if share > 0 else 0.0
                missed = (missed + first[i, h]) * (1.0 - chance)
                drawn += first[i, h]
            log = times[i] * np.log1p(-min(1.0, max(0.0, drawn - missed)))
            if log != 0.0:
                total[indices[e]] += log


@njit(inline="always")
def _chance(fanout, share, choices, replace):
    """Probability that an edge is among those drawn, of ``choices`` edges, ``share`` of a draw.

    For unequal shares without replacement, ``fanout * share`` stands for the exact probability.
    """
    if fanout < 0 or (fanout >= choices and not replace):
        return 1.0
    if replace:
        return 1.0 - (1.0 - share) ** fanout
    return min(1.0, fanout * share)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    index = np.zeros(1, np.int64)
    for dtype in (np.float32, np.float64, np.float16, np.int64, np.uint8):
        table = np.zeros((1, 1), dtype)
        out = np.zeros((1, 1), np.float32 if dtype == np.float16 else dtype)
        place(table, index, out, index)
    find(index, index)
    union(index, index)
    distinct(index)
    one, total = np.ones(1), np.zeros(1)
    indptr = np.array([0, 1])
    for sources in (index, index.astype(np.int32)):
        spread(indptr, sources, index, one[:, None], one, index, False, total)
