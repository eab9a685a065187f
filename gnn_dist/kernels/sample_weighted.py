"""Sampling in-neighbours with weights: the passes of ``gnn_dist.kernels.sample``.

Without replacement the k edges with the largest log(u)/w of a row are drawn, which is the order of
the keys u^(1/w): Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
Processing Letters 97(5), 2006. With replacement each draw inverts the cumulated weights. Either
way the whole row of weights is read. An edge of weight 0 is never drawn.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.sample import sort_range
from gnn_dist.rng import draw, node_state, unit

_S11, _UNIT = np.uint64(11), 2.0**-53


@njit(cache=True, nogil=True)
def weighted_extents(indptr, weights, rows, fanout, replace):
    """Pass 1, as ``sample.extents``, where edges of weight 0 are never drawn.

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
def _sift_down(keys, out, at, size):
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
        out[at + i], out[at + child] = out[at + child], out[at + i]
        i = child


@njit(inline="always")
def _sift_up(keys, out, at, i):
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= keys[i]:
            return
        keys[i], keys[parent] = keys[parent], keys[i]
        out[at + i], out[at + parent] = out[at + parent], out[at + i]
        i = parent


@njit(cache=True, nogil=True)
def _largest_keys(state, weights, start, length, k, keys, out, at):
    """The ``k`` positions with the largest log(u)/w, ascending; edge ``j`` has draw ``j``."""
    size = 0
    for j in range(length):
        w = np.float64(weights[start + j])
        if not w > 0:
            continue
        u = (np.float64(np.int64(draw(state, j) >> _S11)) + 1.0) * _UNIT  # in (0, 1]
        score = np.log(u) / w
        if size < k:
            keys[size], out[at + size] = score, start + j
            _sift_up(keys, out, at, size)
            size += 1
        elif score > keys[0]:
            keys[0], out[at] = score, start + j
            _sift_down(keys, out, at, size)
    sort_range(out, at, k)


@njit(cache=True, nogil=True)
def _by_inverse_cdf(state, weights, start, length, k, cumulative, out, at):
    total = 0.0
    last = 0
    for j in range(length):
        w = np.float64(weights[start + j])
        total += w
        cumulative[j] = total
        if w > 0:
            last = j
    for i in range(k):
        u = unit(draw(state, i)) * total
        low, high = 0, last  # the first j with cumulative[j] > u; rounding cannot pass the last
        while low < high:
            middle = (low + high) >> 1
            if cumulative[middle] > u:
                high = middle
            else:
                low = middle + 1
        out[at + i] = start + low
    sort_range(out, at, k)


@njit(cache=True, nogil=True)
def weighted_positions(weights, key, ids, starts, lengths, out_indptr, replace, positions):
    """Pass 2 with weights float[e]: the positions of the edges drawn, int64[total].

    Other arguments as for ``sample.fill``.
    """
    longest, widest = np.int64(0), np.int64(0)
    for i in range(starts.size):
        longest = max(longest, lengths[i])
        widest = max(widest, out_indptr[i + 1] - out_indptr[i])
    values = np.empty(longest if replace else widest, np.float64)
    for i in range(starts.size):
        at = out_indptr[i]
        k = out_indptr[i + 1] - at
        if k == 0:
            continue
        state = node_state(key, ids[i])
        if replace:
            _by_inverse_cdf(state, weights, starts[i], lengths[i], k, values, positions, at)
        else:
            _largest_keys(state, weights, starts[i], lengths[i], k, values, positions, at)


def warmup() -> None:
    """Compile for float32 weights."""
    indptr, rows, weights = (
        np.array([0, 1], np.int64),
        np.zeros(1, np.int64),
        np.ones(1, np.float32),
    )
    *frontier, _ = weighted_extents(indptr, weights, rows, 1, False)
    weighted_positions(weights, np.uint64(0), rows, *frontier, False, rows.copy())
