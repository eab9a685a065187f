"""Kernels that draw the edges and features of synthetic graphs, each from its own counter.

Nodes are drawn as ``r = class + num_classes * rank``: the class is planted, the rank decides the
degree. ``label`` and the final ids are made of ``r`` by the caller.
"""

import numba
import numpy as np

from gnn_dist.rng import below, draw, node_state, unit

_TRIES = 256  # for a pair that is neither a self-loop nor out of range
_U16 = np.uint64(16)
_LOW = np.uint64(0xFFFF)


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``keep`` float64[n] and ``other`` int64[n] for drawing in proportion to ``weights``.

    Vose, "A Linear Algorithm for Generating Random Numbers with a Given Distribution", 1991.
    """
    return _alias_table(weights * (weights.size / weights.sum()))


@numba.njit(cache=True)
def _alias_table(scaled):
    n = scaled.size
    keep, other = np.ones(n), np.arange(n)
    rest = scaled.copy()
    small, large = np.empty(n, np.int64), np.empty(n, np.int64)
    num_small = num_large = 0
    for i in range(n):
        if rest[i] < 1.0:
            small[num_small] = i
            num_small += 1
        else:
            large[num_large] = i
            num_large += 1
    while num_small > 0 and num_large > 0:
        num_small -= 1
        i, j = small[num_small], large[num_large - 1]
        keep[i], other[i] = rest[i], j
        rest[j] -= 1.0 - rest[i]
        if rest[j] < 1.0:
            num_large -= 1
            small[num_small] = j
            num_small += 1
    return keep, other


@numba.njit(inline="always")
def _second_class(state, counter, first, num_classes, homophily):
    """The class of the other end: the same with probability ``homophily``, else any other."""
    if num_classes == 1 or unit(draw(state, counter)) < homophily:
        return first
    other = below(draw(state, counter + 1), num_classes - 1)
    return other + (other >= first)


@numba.njit(cache=True, nogil=True)
def sbm_pairs(key, num_nodes, num_classes, homophily, keep, other, src, dst):
    """Fill ``src``, ``dst`` (int32[P]) with drawn nodes; -1 where none could be drawn.

    Ranks follow the alias table ``keep``, ``other``, independently at both ends.
    """
    ranks = keep.size
    for k in range(src.size):
        state = node_state(key, k)
        src[k] = dst[k] = -1
        for attempt in range(_TRIES):
            at = 8 * attempt
            a = below(draw(state, at), num_classes)
            b = _second_class(state, at + 1, a, num_classes, homophily)
            i, j = below(draw(state, at + 3), ranks), below(draw(state, at + 4), ranks)
            if unit(draw(state, at + 5)) >= keep[i]:
                i = other[i]
            if unit(draw(state, at + 6)) >= keep[j]:
                j = other[j]
            u, v = a + num_classes * i, b + num_classes * j
            if u < num_nodes and v < num_nodes and u != v:
                src[k], dst[k] = u, v
                break


@numba.njit(cache=True, nogil=True)
def rmat_pairs(key, num_nodes, num_classes, homophily, levels, bounds, src, dst):
    """As ``sbm_pairs``, with ranks from ``levels`` choices of a quadrant.

    ``bounds`` int64[3]: cumulative probabilities of the first three quadrants, in 1/65536.
    """
    for k in range(src.size):
        state = node_state(key, k)
        src[k] = dst[k] = -1
        for attempt in range(_TRIES):
            at = 24 * attempt
            a = below(draw(state, at), num_classes)
            b = _second_class(state, at + 1, a, num_classes, homophily)
            i, j = 0, 0
            bits = np.uint64(0)
            for level in range(levels):
                if level & 3 == 0:
                    bits = draw(state, at + 3 + (level >> 2))
                pick = np.int64(bits & _LOW)
                bits >>= _U16
                quadrant = (pick >= bounds[0]) + (pick >= bounds[1]) + (pick >= bounds[2])
                i = (i << 1) | (quadrant >> 1)
                j = (j << 1) | (quadrant & 1)
            u, v = a + num_classes * i, b + num_classes * j
            if u < num_nodes and v < num_nodes and u != v:
                src[k], dst[k] = u, v
                break


@numba.njit(cache=True, nogil=True)
def csc_of_pairs(src, dst, ids, both, simple):
    """CSC arrays of the edges ``ids[src] -> ids[dst]``, rows ascending: indptr, indices.

    ``both`` adds the opposite edges; ``simple`` keeps one of parallel edges. Pairs with -1 are
    left out. Placed by counting, so nothing but the result is held.
    """
    n = ids.size
    indptr = np.zeros(n + 1, np.int64)
    for k in range(src.size):
        if src[k] >= 0:
            indptr[ids[dst[k]] + 1] += 1
            if both:
                indptr[ids[src[k]] + 1] += 1
    for v in range(n):
        indptr[v + 1] += indptr[v]
    indices = np.empty(indptr[n], np.int32)
    place = indptr[:-1].copy()
    for k in range(src.size):
        if src[k] >= 0:
            u, v = ids[src[k]], ids[dst[k]]
            indices[place[v]] = u
            place[v] += 1
            if both:
                indices[place[u]] = v
                place[u] += 1
    out = 0
    lo = 0
    for v in range(n):
        hi = indptr[v + 1]
        row = indices[lo:hi]
        row.sort()
        lo = hi
        before = -1
        for k in range(row.size):
            u = row[k]
            if not simple or u != before:
                indices[out] = u
                out += 1
            before = u
        indptr[v + 1] = out
    return indptr, indices[:out].copy()


@numba.njit(cache=True, nogil=True)
def fill_features(key, labels, centres, x):
    """``x`` (float32[N, F]) = ``centres[labels]`` + standard normal noise (Box-Muller)."""
    width = x.shape[1]
    for v in range(labels.size):
        state = node_state(key, v)
        centre = centres[labels[v]]
        for j in range(0, width, 2):
            radius = np.sqrt(-2.0 * np.log(1.0 - unit(draw(state, j))))
            angle = 2.0 * np.pi * unit(draw(state, j + 1))
            x[v, j] = centre[j] + np.float32(radius * np.cos(angle))
            if j + 1 < width:
                x[v, j + 1] = centre[j + 1] + np.float32(radius * np.sin(angle))
