"""From global ids to local ones, numbered by first appearance.

One table holds ``epoch << bits | local id`` for each global id. An entry counts only when its
epoch is the current one, so a new mini-batch begins with the next epoch and clears nothing until
the epochs run out. The loop has no branch on whether a node is new: that is a coin toss in the
outer hops.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.vector import prefetch

_AHEAD = 64  # edges between the prefetch of an entry and its use; 16 is a quarter slower
_COMPACT_BITS = 26  # up to 64 M nodes at least 6 bits of an uint32 are left for the epoch


def new_table(num_nodes: int) -> tuple[np.ndarray, int, int]:
    """``(table, bits, epochs)``: zeros uint32[num_nodes] (uint64 for large graphs), the bits of a
    local id, and how many epochs there are, counted from 1, before the table must be cleared.

    The half-sized table is a third faster where it, and not the wide one, fits the cache.
    """
    bits = max(1, (num_nodes - 1).bit_length())
    dtype, bits, width = (np.uint32, bits, 32) if bits <= _COMPACT_BITS else (np.uint64, 32, 64)
    return np.zeros(num_nodes, dtype), bits, (1 << (width - bits)) - 1


@njit(cache=True, nogil=True)
def enter(ids, table, bits, epoch, nodes):
    """Number ``ids`` (int64[n], global) 0 .. n-1 as the first nodes of a batch.

    Writes ``nodes[:n]``. Returns the position of the first id that was there before, or -1.
    """
    shift, current = np.uint64(bits), np.uint64(epoch)
    for i in range(ids.size):
        v = ids[i]
        if np.uint64(table[v]) >> shift == current:
            return i
        table[v] = (current << shift) | np.uint64(i)
        nodes[i] = v
    return -1


@njit(cache=True, nogil=True)
def relabel(sources, table, bits, epoch, nodes, count, out):
    """Local ids of ``sources`` (int[e], global) into ``out`` (int32[e]; may be ``sources``).

    New nodes are numbered from ``count`` in the order of their first appearance and written to
    ``nodes`` (int64), which must have room for ``min(count + e, num_nodes)`` and one more. Returns
    the new count.
    """
    shift, current = np.uint64(bits), np.uint64(epoch)
    tag, mask = current << shift, (np.uint64(1) << shift) - np.uint64(1)
    last = sources.size - 1
    for e in range(sources.size):
        prefetch(table, sources[min(e + _AHEAD, last)])
        v = np.uint64(sources[e])
        entry = np.uint64(table[v])
        new = entry >> shift != current
        local = np.uint64(count) if new else entry & mask
        table[v] = tag | local
        nodes[np.uint64(count)] = v
        count += np.int64(new)
        out[e] = local
    return count


def warmup() -> None:
    """Compile for int32 ids and the table of a graph that has them."""
    table, bits, _ = new_table(2)
    nodes, sources = np.empty(3, np.int64), np.array([1, 1], np.int32)
    enter(np.zeros(1, np.int64), table, bits, 1, nodes)
    relabel(sources, table, bits, 1, nodes, 1, sources)
