"""Group a frontier by who answers for each node, and put the answers back in frontier order."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def group(nodes, offsets, label_of_part, num_labels):
    """Stable grouping of ``nodes`` (int64[n], global ids).

    ``offsets`` int64[P + 1] are the parts' ranges and ``label_of_part`` int64[P] the group of each
    part. Returns ``order`` int64[n] and ``bounds`` int64[num_labels + 1]: the positions of group
    ``g`` are ``order[bounds[g]:bounds[g + 1]]``, ascending.
    """
    n, parts = nodes.size, offsets.size - 1
    labels = np.empty(n, np.int64)
    bounds = np.zeros(num_labels + 1, np.int64)
    for i in range(n):
        v = nodes[i]
        low, size = np.int64(0), parts
        while size > 1:  # a binary search whose steps are counted, not predicted
            half = size >> 1
            low = low + half if offsets[low + half] <= v else low
            size -= half
        label = label_of_part[low]
        labels[i] = label
        bounds[label + 1] += 1
    for g in range(num_labels):
        bounds[g + 1] += bounds[g]
    fill = bounds[:-1].copy()
    order = np.empty(n, np.int64)
    for i in range(n):
        g = labels[i]
        order[fill[g]] = i
        fill[g] += 1
    return order, bounds


@njit(cache=True, nogil=True)
def place_counts(order, piece_indptr, indptr):
    """Write the row lengths of a piece to ``indptr[order + 1]`` (to be summed up later)."""
    for i in range(order.size):
        indptr[order[i] + 1] = piece_indptr[i + 1] - piece_indptr[i]


@njit(cache=True, nogil=True)
def running_sum(indptr):
    """Turn row lengths at ``indptr[1:]`` into CSC pointers, in place."""
    for i in range(1, indptr.size):
        indptr[i] += indptr[i - 1]


@njit(cache=True, nogil=True)
def place_rows(order, piece_indptr, values, indptr, out):
    """Copy row ``i`` of a piece (``values`` of any dtype, one-dimensional) to its place in
    ``out``."""
    for i in range(order.size):
        shift = indptr[order[i]] - piece_indptr[i]
        for e in range(piece_indptr[i], piece_indptr[i + 1]):
            out[e + shift] = values[e]


@njit(cache=True, nogil=True)
def edge_places(order, piece_indptr, indptr):
    """Where each edge of a piece goes: int64[e], for tensors with more than one dimension."""
    out = np.empty(piece_indptr[-1], np.int64)
    for i in range(order.size):
        shift = indptr[order[i]] - piece_indptr[i]
        for e in range(piece_indptr[i], piece_indptr[i + 1]):
            out[e] = e + shift
    return out


def warmup() -> None:
    """Compile for int32 sources and int64 edge ids."""
    offsets, labels = np.array([0, 2], np.int64), np.zeros(1, np.int64)
    order, _ = group(np.zeros(1, np.int64), offsets, labels, 1)
    piece, indptr = np.array([0, 1], np.int64), np.zeros(2, np.int64)
    place_counts(order, piece, indptr)
    running_sum(indptr)
    edge_places(order, piece, indptr)
    for dtype in (np.int32, np.int64):
        place_rows(order, piece, np.zeros(1, dtype), indptr, np.empty(1, dtype))
