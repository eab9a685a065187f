"""From global ids to local ones, numbered by first appearance.

One table of uint64[num_nodes] holds ``epoch << 32 | local id`` for each global id. An entry counts
only when its epoch is the current one, so a new mini-batch begins with the next epoch and clears
nothing. The loops have no branch on whether a node is new: that is a coin toss in the outer hops.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.bits import prefetch

EPOCH_LIMIT = 1 << 32
_EPOCH_SHIFT, _LOCAL_MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
_AHEAD = 24  # edges between the prefetch of an entry and its use


@njit(cache=True, nogil=True)
def enter(ids, table, epoch, nodes):
    """Number ``ids`` (int[n], global) 0 .. n-1 as the first nodes of a batch.

    Writes ``nodes[:n]``. Returns the position of the first id that was there before, or -1.
    """
    tag = np.uint64(epoch) << _EPOCH_SHIFT
    for i in range(ids.size):
        v = ids[i]
        if (table[v] >> _EPOCH_SHIFT) == np.uint64(epoch):
            return i
        table[v] = tag | np.uint64(i)
        nodes[i] = v
    return -1


@njit(cache=True, nogil=True)
def relabel(sources, table, epoch, nodes, count, out):
    """Local ids of ``sources`` (int[e], global) into ``out`` (int32[e]; may be ``sources``).

    New nodes are numbered from ``count`` in the order of their first appearance and written to
    ``nodes``, which must have room for ``min(count + e, num_nodes)`` and one more. Returns the new
    count.
    """
    current = np.uint64(epoch)
    tag = current << _EPOCH_SHIFT
    total = sources.size
    for e in range(total):
        prefetch(table, sources[min(e + _AHEAD, total - 1)])
        v = sources[e]
        entry = table[v]
        new = (entry >> _EPOCH_SHIFT) != current
        local = np.uint64(count) if new else entry & _LOCAL_MASK
        table[v] = tag | local
        nodes[count] = v
        count += np.int64(new)
        out[e] = local
    return count


def warmup() -> None:
    """Compile for int32 and int64 ids."""
    for dtype in (np.int32, np.int64):
        table, nodes = np.zeros(2, np.uint64), np.empty(3, np.int64)
        sources, out = np.array([1, 1], dtype), np.empty(2, np.int32)
        enter(np.zeros(1, np.int64), table, 1, nodes)
        relabel(sources, table, 1, nodes, 1, sources if dtype is np.int32 else out)
