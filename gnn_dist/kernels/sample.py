"""Sampling in-neighbours of a frontier from CSC arrays, in three passes.

1. ``extents``: where each row starts, how long it is, how many of its edges will be drawn.
2. positions: which ones, from counters alone (see ``gnn_dist.rng``), in ascending order.
3. gather: the sources at those positions.

Passes 2 and 3 alternate over chunks of the frontier that fit the first-level cache. Positions
never wait for memory, and the cache lines of a chunk are asked for before its gather, so that the
misses overlap; one loop that draws and reads edge by edge is several times slower.

Every draw is a pure function of the row's state (``rng.node_state(key, original id)``) and a
counter, so a row's edges depend on neither the other rows nor their order.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.bits import trailing_zeros
from gnn_dist.kernels.vector import prefetch
from gnn_dist.rng import below, draw, node_state

ALL = -1
_CHUNK_ROWS = 128
_CHUNK_EDGES = 1024
_AHEAD = 32  # rows between the prefetch of a row's extent and its use
_TAKE_AHEAD = 64
_LINE = 64  # bytes
_SHORT = 64  # a row this short keeps the set of drawn positions in one register
_SMALL = 32  # up to this fan-out, positions of a long row are compared all with all
_ONE = np.uint64(1)
_S6, _M63 = np.int64(6), np.int64(63)
_S32, _M32 = np.uint64(32), np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def extents(indptr, rows, fanout, replace):
    """Pass 1 without weights.

    ``indptr`` int64[n + 1], ``rows`` int64[m] < n, ``fanout`` >= 1 or -1 for all. Returns
    ``starts`` int64[m], ``lengths`` int64[m] and ``out_indptr`` int64[m + 1], the CSC pointers of
    the sample.
    """
    m = rows.size
    starts, lengths = np.empty(m, np.int64), np.empty(m, np.int64)
    out_indptr = np.empty(m + 1, np.int64)
    total = 0
    out_indptr[0] = 0
    for i in range(m):
        prefetch(indptr, rows[min(i + _AHEAD, m - 1)])
        start = indptr[rows[i]]
        length = indptr[rows[i] + 1] - start
        starts[i] = start
        lengths[i] = length
        if fanout < 0:
            total += length
        elif replace:
            total += fanout if length > 0 else 0
        else:
            total += min(length, fanout)
        out_indptr[i + 1] = total
    return starts, lengths, out_indptr


@njit(cache=True, nogil=True)
def sort_range(out, first, n):
    """Sort ``out[first:first + n]`` (Shell, gaps by 4/9; compiles in a tenth of numba's sort)."""
    gap = n
    while gap > 1:
        gap = max(np.int64(1), gap * 4 // 9)
        for i in range(first + gap, first + n):
            value = out[i]
            j = i
            while j >= first + gap and out[j - gap] > value:
                out[j] = out[j - gap]
                j -= gap
            out[j] = value


@njit(inline="always")
def _by_rank(drawn, k, base, out, at):
    """``base + drawn[:k]`` in ascending order to ``out[at:]``; no branch depends on the values, so
    that nothing is mispredicted: half the time of an insertion sort at any ``k`` <= 32."""
    for i in range(np.uint64(k)):
        value = drawn[i]
        rank = 0
        for j in range(i):
            rank += drawn[j] <= value
        for j in range(i + 1, np.uint64(k)):
            rank += drawn[j] < value
        out[at + rank] = base + value


@njit(cache=True, nogil=True)
def _floyd_long(state, length, k, base, out, at, small, bitmap):
    """``k`` of ``length`` > 64 positions without replacement (Floyd), ascending."""
    if k <= _SMALL:
        for i in range(k):
            top = length - k + i
            t = below(draw(state, i), top + 1)
            seen = False
            for j in range(np.uint64(i)):
                seen |= small[j] == t
            small[i] = top if seen else t
        _by_rank(small, k, base, out, at)
        return
    for i in range(k):
        top = length - k + i
        t = below(draw(state, i), top + 1)
        if (bitmap[t >> _S6] >> np.uint64(t & _M63)) & _ONE:
            t = top
        bitmap[t >> _S6] |= _ONE << np.uint64(t & _M63)
        out[at + i] = t
    words = (length + _M63) >> _S6
    if words <= 8 * k:  # reading the bitmap is cheaper than sorting
        n = at
        for w in range(words):
            word = bitmap[w]
            bitmap[w] = 0
            while word:
                out[n] = base + (w << _S6) + trailing_zeros(word)
                word &= word - _ONE
                n += 1
    else:
        for i in range(at, at + k):
            bitmap[out[i] >> _S6] = 0
            out[i] += base
        sort_range(out, at, k)


@njit(cache=True, nogil=True)
def _draw_with_replacement(state, length, k, base, out, at, small):
    if k <= _SMALL:
        for i in range(k):
            small[i] = below(draw(state, i), length)
        _by_rank(small, k, base, out, at)
    else:
        for i in range(k):
            out[at + i] = base + below(draw(state, i), length)
        sort_range(out, at, k)


@njit(inline="always")
def _floyd_short(state, length, k):
    """``k`` of ``length`` <= 64 positions without replacement (Floyd), as a bit mask.

    A word of 64 random bits serves two draws, each 32 bits times the number of choices: off
    uniform by at most 64 * 2**-32.
    """
    drawn = np.uint64(0)
    top = np.uint64(length - k)
    i = 0
    while i < k:
        bits = draw(state, i >> 1)
        t = ((bits & _M32) * (top + _ONE)) >> _S32
        t = top if (drawn >> t) & _ONE else t
        drawn |= _ONE << t
        top += _ONE
        i += 1
        if i < k:
            t = ((bits >> _S32) * (top + _ONE)) >> _S32
            t = top if (drawn >> t) & _ONE else t
            drawn |= _ONE << t
            top += _ONE
        i += 1
    return drawn


@njit(cache=True, nogil=True)
def fill(indices, key, ids, starts, lengths, out_indptr, fanout, replace, out, positions):
    """Passes 2 and 3 without weights.

    ``indices`` int[e]; ``key`` uint64; ``ids`` (int64[m], original), ``starts``, ``lengths`` and
    ``out_indptr`` of the rows. Writes the sources to ``out`` (int[total], dtype of ``indices``)
    and, where ``positions`` is int64[total] and not empty, the edges' positions in ``indices``.
    """
    m = starts.size
    longest, widest = np.int64(0), np.int64(0)
    for i in range(m):
        longest = max(longest, lengths[i])
        widest = max(widest, out_indptr[i + 1] - out_indptr[i])
    scratch = np.empty(_CHUNK_EDGES + widest, np.int64)
    small = np.empty(_SMALL, np.int64)
    # only the drawing of many from a long row needs the bitmap
    bitmap = np.zeros((longest >> _S6) + 1 if fanout > _SMALL and not replace else 1, np.uint64)
    per_line = _LINE // indices.itemsize
    keep = positions.size > 0
    low = 0
    while low < m:
        high, at = low, np.int64(0)
        while high < m and high - low < _CHUNK_ROWS and at < _CHUNK_EDGES:
            start, length = starts[high], lengths[high]
            k = out_indptr[high + 1] - out_indptr[high]
            state = node_state(key, ids[high])
            if replace:
                _draw_with_replacement(state, length, k, start, scratch, at, small)
                for i in range(at, at + k):
                    prefetch(indices, scratch[i])
            elif k == length:
                for i in range(k):
                    scratch[at + i] = start + i
                for p in range(start, start + k, per_line):
                    prefetch(indices, p)
            elif length <= _SHORT:
                drawn = _floyd_short(state, length, k)
                for i in range(k):
                    p = start + trailing_zeros(drawn)
                    drawn &= drawn - _ONE
                    scratch[np.uint64(at + i)] = p
                    prefetch(indices, p)
            else:
                _floyd_long(state, length, k, start, scratch, at, small, bitmap)
                for i in range(at, at + k):
                    prefetch(indices, scratch[i])
            at += k
            high += 1
        first = np.uint64(out_indptr[low])
        for i in range(np.uint64(at)):  # unsigned: numba need not look for negative indices
            out[first + i] = indices[np.uint64(scratch[i])]
        if keep:
            for i in range(np.uint64(at)):
                positions[first + i] = scratch[i]
        low = high


@njit(cache=True, nogil=True)
def copy_rows(indices, starts, lengths, out_indptr, out, positions):
    """Pass 3 where every edge of a row is taken; arguments as for ``fill``."""
    keep = positions.size > 0
    for i in range(starts.size):
        prefetch(indices, starts[min(i + _AHEAD, starts.size - 1)])
        start, at = starts[i], out_indptr[i]
        for j in range(lengths[i]):
            out[at + j] = indices[start + j]
        if keep:
            for j in range(lengths[i]):
                positions[at + j] = start + j


def take(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """``values[index]`` for numbers of 4 or 8 bytes, one a row, and int64[n] ``index``.

    Prefetches further ahead than ``gather``, which is made for rows of many numbers.
    """
    out = np.empty(index.size, values.dtype)
    width = {4: np.uint32, 8: np.uint64}[values.itemsize]
    _take(values.view(width), index, out.view(width))
    return out


@njit(cache=True, nogil=True)
def _take(values, index, out):
    last = index.size - 1
    for i in range(index.size):
        prefetch(values, index[min(i + _TAKE_AHEAD, last)])
        out[i] = values[np.uint64(index[i])]


def warmup() -> None:
    """Compile for int32 sources, and what is taken of int32 and int64 tables."""
    indptr, rows = np.array([0, 1], np.int64), np.zeros(1, np.int64)
    indices, out = np.zeros(1, np.int32), np.empty(1, np.int32)
    frontier = extents(indptr, rows, 1, False)
    fill(indices, np.uint64(0), rows, *frontier, 1, False, out, rows.copy())
    copy_rows(indices, *frontier, out, rows.copy())
    take(indices, rows)
    take(rows, rows)
