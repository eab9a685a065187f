"""Loops over whole graphs for partitioning: re-ordering a part's rows, halos, streaming.

Every function is a plain numba kernel: NumPy arrays in, NumPy arrays out.
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
    """Set ``mark[s]`` (bool[N]) for every source outside ``first <= s < last``; how many."""
    count = 0
    for k in range(sources.size):
        s = sources[k]
        if (s < first or s >= last) and not mark[s]:
            mark[s] = True
            count += 1
    return count


def warmup() -> None:
    """Compile the kernels for the dtypes of a real run (cached on disk)."""
    indptr = np.array([0, 1, 2], np.int64)
    rows = np.arange(2)
    none = np.empty(0, np.int64)
    for dtype in (np.int32, np.int64):
        indices = np.array([1, 0], dtype)
        out, ids = np.empty(2, dtype), np.empty(2, np.int64)
        part_edges(indptr, indices, none, rows, np.arange(2, dtype=dtype), indptr, out, ids)
        mark_halo(indices, 0, 1, np.zeros(2, np.bool_))
