"""Loops over whole graphs for partitioning: cutting, halos, symmetrising, streaming placement.

Every function is a plain numba kernel: NumPy arrays in, NumPy arrays out. Weights are float64; an
empty weight array means that every weight is 1.
"""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def part_edges(indptr, indices, edge_ids, rows, global_of, part_indptr, sources, ids):
    """Copy the in-edges of ``rows`` (int64[n], original ids) of a graph into a part.

    ``global_of[v]`` renumbers sources; ``part_indptr`` int64[n + 1] says where each row goes in
    ``sources`` and ``ids``. ``edge_ids`` may be empty: then edge ``k`` has id ``k``.
    """
    numbered = edge_ids.size > 0
    for i in range(rows.size):
        begin = indptr[rows[i]]
        at = part_indptr[i]
        for j in range(part_indptr[i + 1] - at):
            sources[at + j] = global_of[indices[begin + j]]
            ids[at + j] = edge_ids[begin + j] if numbered else begin + j


@numba.njit(cache=True, nogil=True)
def mark_halo(sources, first, last, mark):
    """Set ``mark[s]`` (bool[N]) for every source outside ``first <= s < last``."""
    for k in range(sources.size):
        s = sources[k]
        if s < first or s >= last:
            mark[s] = True


@numba.njit(cache=True, nogil=True)
def cut_and_halo(indptr, indices, assignment, by_part, num_parts):
    """Cut edges and halo size of each part: (int64[P], int64[P]).

    ``by_part`` int64[N] lists the nodes part after part, so that one stamp a node tells whether
    the part at hand has seen it.
    """
    cut = np.zeros(num_parts, np.int64)
    halo = np.zeros(num_parts, np.int64)
    stamp = np.full(assignment.size, -1, np.int32)
    for i in range(by_part.size):
        v = by_part[i]
        p = assignment[v]
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if assignment[u] != p:
                cut[p] += 1
                if stamp[u] != p:
                    stamp[u] = p
                    halo[p] += 1
    return cut, halo


@numba.njit(cache=True, nogil=True)
def transpose(indptr, indices, weights):
    """By source instead of by destination: (indptr int64[N + 1], destinations[E], weights)."""
    num_nodes = indptr.size - 1
    out_indptr = np.zeros(num_nodes + 2, np.int64)
    for k in range(indices.size):
        out_indptr[indices[k] + 2] += 1
    for v in range(num_nodes):
        out_indptr[v + 2] += out_indptr[v + 1]
    destinations = np.empty_like(indices)
    out_weights = np.empty_like(weights)
    for v in range(num_nodes):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            at = out_indptr[u + 1]  # ends up as the end of row u
            out_indptr[u + 1] = at + 1
            destinations[at] = v
            if weights.size > 0:
                out_weights[at] = weights[k]
    return out_indptr[: num_nodes + 1], destinations, out_weights


@numba.njit(cache=True, nogil=True)
def symmetric_rows(indptr, indices, weights, out_indptr, destinations, out_weights):
    """The undirected graph: (indptr int64[N + 1], neighbours, weights float64).

    Self-loops and edges of weight 0 are left out; parallel edges and both directions become one
    entry whose weight is their sum.
    """
    num_nodes = indptr.size - 1
    weighted = weights.size > 0
    stamp = np.full(num_nodes, -1, np.int64)
    rows = np.zeros(num_nodes + 1, np.int64)
    for v in range(num_nodes):
        count = 0
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if u != v and stamp[u] != v and not (weighted and weights[k] == 0.0):
                stamp[u] = v
                count += 1
        for k in range(out_indptr[v], out_indptr[v + 1]):
            u = destinations[k]
            if u != v and stamp[u] != v and not (weighted and out_weights[k] == 0.0):
                stamp[u] = v
                count += 1
        rows[v + 1] = rows[v] + count
    neighbours = np.empty(rows[num_nodes], indices.dtype)
    sums = np.zeros(rows[num_nodes], np.float64)
    place = stamp
    place[:] = -1
    for v in range(num_nodes):
        at = rows[v]
        begin = at
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            w = weights[k] if weighted else 1.0
            if u != v and w != 0.0:
                if place[u] < begin:
                    place[u] = at
                    neighbours[at] = u
                    at += 1
                sums[place[u]] += w
        for k in range(out_indptr[v], out_indptr[v + 1]):
            u = destinations[k]
            w = out_weights[k] if weighted else 1.0
            if u != v and w != 0.0:
                if place[u] < begin:
                    place[u] = at
                    neighbours[at] = u
                    at += 1
                sums[place[u]] += w
    return rows, neighbours, sums


@numba.njit(cache=True, nogil=True)
def stream(
    order,
    indptr,
    indices,
    weights,
    out_indptr,
    destinations,
    out_weights,
    counts,
    again,
    node_weights,
    capacity,
    alpha,
    gamma,
    slot,
    load,
):
    """Place the nodes one by one in ``order``, each by its neighbours placed so far.

    With ``gamma > 0`` a part is worth Fennel's ``w(v, S) - w_v * alpha * gamma * |S|^(gamma-1)``,
    with ``gamma == 0`` LDG's ``w(v, S) * (1 - |S| / capacity)``. Parts that would exceed
    ``capacity`` are passed over; where all would, the lightest takes the node. Ties go to the
    node's present part, then to the lightest.

    ``slot`` int32[N] is 0 where a node is not placed and else 1 more than its part; it is updated,
    as is ``load`` float64[P + 1] (entry 0 unused). A node that is placed already is taken out
    first.

    In-neighbours are read from the graph. The weight that goes to out-neighbours is either pushed
    to the sources as nodes are placed, into ``counts`` float32[N, P + 1], so that every edge is
    read once; or, with ``counts`` of no rows, read from the transposed graph. ``again`` says that
    ``counts`` must be right for another pass over the same nodes.

    Returns (nodes moved, change of the cut weight).
    """
    slots = load.size
    weighted = weights.size > 0
    node_weighted = node_weights.size > 0
    push = counts.shape[0] > 0
    fennel = gamma > 0.0
    score = np.zeros(slots, np.float64)
    factor = np.empty(slots, np.float64)
    for p in range(slots):
        factor[p] = _factor(load[p], capacity, alpha, gamma)
    moved, change = 0, 0.0
    for i in range(order.size):
        v = order[i]
        begin, end = indptr[v], indptr[v + 1]
        if push:
            for p in range(1, slots):
                score[p] = counts[v, p]
        else:
            score[:] = 0.0
            for k in range(out_indptr[v], out_indptr[v + 1]):
                u = destinations[k]
                w = out_weights[k] if weighted else 1.0
                score[slot[u]] += w if u != v else 0.0
        old = slot[v]
        if weighted:
            for k in range(begin, end):
                u = indices[k]
                score[slot[u]] += weights[k] if u != v else 0.0
        else:
            for k in range(begin, end):  # no branch on whether u is placed: slot 0 takes those
                u = indices[k]
                score[slot[u]] += 1.0 if u != v else 0.0
        weight = node_weights[v] if node_weighted else 1.0
        if old > 0:
            load[old] -= weight
            factor[old] = _factor(load[old], capacity, alpha, gamma)
            change += score[old]
        best, best_value = 0, 0.0
        for p in range(1, slots):
            if old == 0:
                change += score[p]
            if load[p] + weight <= capacity:
                value = score[p] - weight * factor[p] if fennel else score[p] * factor[p]
                if (
                    best == 0
                    or value > best_value
                    or (value == best_value and best != old and (p == old or load[p] < load[best]))
                ):
                    best, best_value = p, value
        if best == 0:
            best = 1 + np.argmin(load[1:])
        change -= score[best]
        load[best] += weight
        factor[best] = _factor(load[best], capacity, alpha, gamma)
        if best != old:
            moved += 1
            slot[v] = best
            if push:
                for k in range(begin, end):
                    u = indices[k]
                    if u != v and (again or slot[u] == 0):
                        w = np.float32(weights[k]) if weighted else np.float32(1.0)
                        counts[u, best] += w
                        if old > 0:
                            counts[u, old] -= w
    return moved, change


@numba.njit(inline="always")
def _factor(load, capacity, alpha, gamma):
    if gamma > 0.0:
        return alpha * gamma * max(load, 0.0) ** (gamma - 1.0)
    return 1.0 - load / capacity


def warmup() -> None:
    """Compile the kernels for graphs of int32 ids (cached on disk); int64 compiles when met."""
    indptr, indices = np.array([0, 1, 2], np.int64), np.array([1, 0], np.int32)
    rows, none, ones = np.arange(2), np.empty(0, np.int64), np.empty(0, np.float64)
    sources, ids = np.empty(2, np.int32), np.empty(2, np.int64)
    part_edges(indptr, indices, none, rows, np.arange(2, dtype=np.int32), indptr, sources, ids)
    mark_halo(indices, 0, 1, np.zeros(2, np.bool_))
    cut_and_halo(indptr, indices, np.zeros(2, np.int32), rows, 1)
    by_source = transpose(indptr, indices, ones)
    symmetric_rows(indptr, indices, ones, *by_source)
    load, counts, slot = np.zeros(2), np.zeros((2, 2), np.float32), np.zeros(2, np.uint8)
    stream(rows, indptr, indices, ones, *by_source, counts, True, ones, 2.0, 1.0, 1.5, slot, load)
