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

from gnn_dist.kernels.bits import prefetch, trailing_zeros
from gnn_dist.rng import below, draw, node_state

ALL = -1
_CHUNK_ROWS = 64
_CHUNK_EDGES = 512
_AHEAD = 32  # rows between the prefetch of a row's extent and its use
_LINE = 64  # bytes
_SHORT = 64  # a row this short keeps the set of drawn positions in one register
_SMALL = 32  # up to this fan-out, positions of a long row are kept sorted by insertion
_ONE = np.uint64(1)
_S6, _M63 = np.int64(6), np.int64(63)
_S32, _M32 = np.uint64(32), np.uint64(0xFFFFFFFF)
_S11, _UNIT = np.uint64(11), 2.0**-53


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
def weighted_extents(indptr, weights, rows, fanout, replace):
    """``extents`` where edges of weight 0 are never drawn.

    ``weights`` float[e], in the order of the edges. Returns also the position of an edge whose
    weight is negative or not a number, or -1.
    """
    m = rows.size
    starts, lengths = np.empty(m, np.int64), np.empty(m, np.int64)
    out_indptr = np.empty(m + 1, np.int64)
    total, bad = 0, np.int64(-1)
    out_indptr[0] = 0
    for i in range(m):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        positive = 0
        for p in range(start, stop):
            if not weights[p] >= 0:
                bad = p
            positive += weights[p] > 0
        starts[i] = start
        lengths[i] = stop - start
        if replace:
            total += fanout if positive > 0 else 0
        else:
            total += min(positive, fanout)
        out_indptr[i + 1] = total
    return starts, lengths, out_indptr, bad


@njit(inline="always")
def _insert(out, first, n, value):
    """Insert ``value`` into the ascending ``out[first:first + n]``."""
    j = first + n
    while j > first and out[j - 1] > value:
        out[j] = out[j - 1]
        j -= 1
    out[j] = value


@njit(cache=True, nogil=True)
def _floyd_long(state, length, k, base, out, at, bitmap):
    """``k`` of ``length`` > 64 positions without replacement (Floyd), ascending."""
    if k <= _SMALL:
        for i in range(k):
            top = length - k + i
            t = below(draw(state, i), top + 1)
            j = at + i
            while j > at and out[j - 1] > base + t:
                j -= 1
            if j > at and out[j - 1] == base + t:  # drawn before: take the top, the largest so far
                out[at + i] = base + top
            else:
                for s in range(at + i, j, -1):
                    out[s] = out[s - 1]
                out[j] = base + t
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
        out[at : at + k].sort()


@njit(cache=True, nogil=True)
def _draw_with_replacement(state, length, k, base, out, at):
    if k <= _SMALL:
        for i in range(k):
            _insert(out, at, i, base + below(draw(state, i), length))
    else:
        for i in range(k):
            out[at + i] = base + below(draw(state, i), length)
        out[at : at + k].sort()


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
            by_line = length <= k * per_line
            if by_line and length:
                for p in range(start, start + length, per_line):
                    prefetch(indices, p)
                prefetch(indices, start + length - 1)
            if replace:
                _draw_with_replacement(state, length, k, start, scratch, at)
            elif k == length:
                for i in range(k):
                    scratch[at + i] = start + i
            elif length <= _SHORT:
                drawn = _floyd_short(state, length, k)
                for i in range(k):
                    scratch[np.uint64(at + i)] = start + trailing_zeros(drawn)
                    drawn &= drawn - _ONE
            else:
                _floyd_long(state, length, k, start, scratch, at, bitmap)
            if not by_line:
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


@njit(inline="always")
def _sift_down(keys, places, size):
    """Restore a heap with the smallest key on top after its top was replaced."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[i] <= keys[child]:
            return
        keys[i], keys[child] = keys[child], keys[i]
        places[i], places[child] = places[child], places[i]
        i = child


@njit(inline="always")
def _sift_up(keys, places, i):
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= keys[i]:
            return
        keys[i], keys[parent] = keys[parent], keys[i]
        places[i], places[parent] = places[parent], places[i]
        i = parent


@njit(cache=True, nogil=True)
def _heaviest_keys(state, weights, start, length, k, keys, out):
    """The ``k`` positions with the largest log(u)/w, ascending; edge ``j`` of the row has the
    draw ``j``, u in (0, 1]. Efraimidis and Spirakis, Information Processing Letters 97(5), 2006.
    """
    size = 0
    for j in range(length):
        w = np.float64(weights[start + j])
        if not w > 0:
            continue
        u = (np.float64(np.int64(draw(state, j) >> _S11)) + 1.0) * _UNIT
        score = np.log(u) / w
        if size < k:
            keys[size], out[size] = score, start + j
            _sift_up(keys, out, size)
            size += 1
        elif score > keys[0]:
            keys[0], out[0] = score, start + j
            _sift_down(keys, out, size)
    out[:k].sort()


@njit(cache=True, nogil=True)
def _by_inverse_cdf(state, weights, start, length, k, cumulative, out):
    total = 0.0
    last = 0
    for j in range(length):
        w = np.float64(weights[start + j])
        total += w
        cumulative[j] = total
        if w > 0:
            last = j
    for i in range(k):
        u = np.float64(np.int64(draw(state, i) >> _S11)) * _UNIT * total
        low, high = 0, last  # the first j with cumulative[j] > u; rounding cannot pass the last
        while low < high:
            middle = (low + high) >> 1
            if cumulative[middle] > u:
                high = middle
            else:
                low = middle + 1
        out[i] = start + low
    out[:k].sort()


@njit(cache=True, nogil=True)
def weighted_fill(indices, weights, key, ids, starts, lengths, out_indptr, replace, out, positions):
    """Passes 2 and 3 with weights float[e]; other arguments as for ``fill``.

    Without replacement edge ``j`` of a row is among the ``k`` largest of log(u_j)/w_j; with
    replacement each draw inverts the cumulated weights. Reads the whole row either way.
    """
    longest, widest = np.int64(0), np.int64(0)
    for i in range(starts.size):
        longest = max(longest, lengths[i])
        widest = max(widest, out_indptr[i + 1] - out_indptr[i])
    values = np.empty(longest if replace else widest, np.float64)
    chosen = np.empty(widest, np.int64)
    keep = positions.size > 0
    for i in range(starts.size):
        at = out_indptr[i]
        k = out_indptr[i + 1] - at
        if k == 0:
            continue
        state = node_state(key, ids[i])
        if replace:
            _by_inverse_cdf(state, weights, starts[i], lengths[i], k, values, chosen)
        else:
            _heaviest_keys(state, weights, starts[i], lengths[i], k, values, chosen)
        for j in range(k):
            out[at + j] = indices[chosen[j]]
        if keep:
            for j in range(k):
                positions[at + j] = chosen[j]
