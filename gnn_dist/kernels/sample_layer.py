"""Layer-wise draws: LABOR's shared variates, and the masses and edges of LADIES and FastGCN.

The kernels read whole rows: ``indptr`` int64[n + 1] and ``sources`` int[e] are all in-edges of the
frontier, as ``Topology.sample`` gives them for fan-out -1.
"""

import numpy as np
from numba import njit

from gnn_dist.rng import below, draw, node_state, unit

UNITS = 1 << 36
"""The mass of an entry 1 of A∘A: a source may have 2²⁷ of them."""


@njit(cache=True, nogil=True)
def shared_positions(indptr, indices, rows, fanout, key, book):
    """LABOR-0: of each of ``rows`` (int64[m]) the edges whose *source* drew below fanout / degree.

    The variate belongs to the source alone, so rows choose the same sources where they can. A row
    of which no source did takes the one that drew least. ``book`` int64[N] has original ids, or is
    empty where they are the ids. Returns ``out_indptr`` int64[m + 1] and the positions, ascending
    within a row.
    """
    m = rows.size
    out_indptr = np.zeros(m + 1, np.int64)
    out = np.empty(max(m * max(fanout, 1), 16), np.int64)
    total = 0
    for i in range(m):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        length = stop - start
        if total + length > out.size:
            grown = np.empty(max(2 * out.size, total + length), np.int64)
            grown[:total] = out[:total]
            out = grown
        limit = np.float64(fanout) / np.float64(max(length, 1))
        first, least, lowest = total, start, 2.0
        for p in range(start, stop):
            source = indices[p]
            original = book[source] if book.size else np.int64(source)
            variate = unit(draw(node_state(key, original), 0)) if limit < 1.0 else 0.0
            if variate < lowest:
                least, lowest = p, variate
            out[total] = p
            total += variate < limit
        if total == first and length > 0:
            out[total] = least
            total += 1
        out_indptr[i + 1] = total
    return out_indptr, out[:total]


@njit(cache=True, nogil=True)
def squared_masses(indptr, place, mass):
    """Add the column sums of A∘A to ``mass`` int64[c], in units of 2⁻³⁶; A has rows that sum to 1.

    ``place`` int[e]: the column of each edge's source. Sums of whole numbers do not depend on their
    order. An entry of A∘A counts as one unit at least, so that every source may be drawn.
    """
    for i in range(indptr.size - 1):
        length = indptr[i + 1] - indptr[i]
        entry = max(np.int64(1), UNITS // (length * length)) if length else np.int64(0)
        for e in range(indptr[i], indptr[i + 1]):
            mass[place[e]] += entry


@njit(cache=True, nogil=True)
def draw_with_replacement(cumulative, key, count, times):
    """``count`` draws in proportion to the steps of ``cumulative`` int64[c], by inversion; adds to
    ``times`` int64[c] how often each was drawn."""
    state = node_state(key, np.int64(0))
    last = cumulative.size - 1
    for i in range(count):
        wanted = below(draw(state, i), cumulative[last])
        low, high = np.int64(0), last  # the first step above what is wanted
        while low < high:
            middle = (low + high) >> 1
            if cumulative[middle] > wanted:
                high = middle
            else:
                low = middle + 1
        times[low] += 1


@njit(cache=True, nogil=True)
def keep_edges(indptr, sources, factor, frontier, rows):
    """The edges of ``rows`` whose source was drawn, and self-loops.

    ``factor`` float64[e]: the importance of each edge's source, 0 where it was not drawn.
    ``frontier`` int64[n]: the ids of all rows; ``rows`` int[m]: those wanted. An edge from a node
    to itself is always kept, with factor 1. Returns ``out_indptr`` int64[m + 1], the positions kept
    and their weight float32: what makes the *mean* of weight · row over the kept edges an unbiased
    estimate of the mean over all edges of the row.
    """
    m = rows.size
    out_indptr = np.zeros(m + 1, np.int64)
    total = np.int64(0)
    for k in range(m):
        i = rows[k]
        for e in range(indptr[i], indptr[i + 1]):
            total += factor[e] > 0.0 or sources[e] == frontier[i]
        out_indptr[k + 1] = total
    positions = np.empty(total, np.int64)
    weight = np.empty(total, np.float32)
    at = np.int64(0)
    for k in range(m):
        i = rows[k]
        kept = out_indptr[k + 1] - out_indptr[k]
        scale = np.float64(kept) / np.float64(max(indptr[i + 1] - indptr[i], 1))
        for e in range(indptr[i], indptr[i + 1]):
            own = sources[e] == frontier[i]
            if factor[e] > 0.0 or own:
                positions[at] = e
                weight[at] = (1.0 if own else factor[e]) * scale
                at += 1
    return out_indptr, positions, weight


def warmup() -> None:
    """Compile for int32 sources."""
    indptr, rows = np.array([0, 1], np.int64), np.zeros(1, np.int64)
    sources, ones = np.zeros(1, np.int32), np.ones(1, np.int64)
    for book in (rows, rows[:0]):
        shared_positions(indptr, sources, rows, 1, np.uint64(0), book)
    squared_masses(indptr, sources, ones.copy())
    draw_with_replacement(ones, np.uint64(0), 1, rows.copy())
    keep_edges(indptr, sources, np.ones(1), rows, sources)
