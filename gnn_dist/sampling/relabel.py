"""``Relabeller``: the numbering of one mini-batch after the other, without clearing between."""

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.kernels import relabel as kernels


class Relabeller:
    """Numbers global ids by first appearance, the given ones first.

    For one thread at a time. Holds 4 bytes for every node of the graph (8 above 64 M nodes).
    """

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self._table, self._bits, self._epochs = kernels.new_table(num_nodes)
        self._nodes = np.empty(min(num_nodes, 1 << 16) + 1, np.int64)
        self._epoch = 0
        self._count = 0

    def start(self, ids: np.ndarray, field: str = "seeds") -> None:
        """Begin a mini-batch: ``ids`` (int64[n], global) are nodes 0 .. n-1.

        Raises ``InputError``, naming ``field``, for an id that is repeated or out of range.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_nodes):
            bad = int(np.flatnonzero((ids < 0) | (ids >= self.num_nodes))[0])
            raise InputError(
                f"{field}: entry {bad} is {ids[bad]}, a node that does not exist; "
                f"ids run from 0 to {self.num_nodes - 1}"
            )
        if self._epoch == self._epochs:
            self._table[:] = 0
            self._epoch = 0
        self._epoch += 1
        self._count = 0
        self._reserve(ids.size)
        repeated = kernels.enter(ids, self._table, self._bits, self._epoch, self._nodes)
        if repeated >= 0:
            raise InputError(
                f"{field}: node {ids[repeated]} is given twice (again at entry {repeated}); "
                "give each node once"
            )
        self._count = ids.size

    def add(self, sources: np.ndarray) -> np.ndarray:
        """Local ids int32[e] of ``sources`` (int32/int64[e], global); new ones are numbered next.

        Overwrites ``sources`` where it is int32.
        """
        self._reserve(sources.size)
        local = sources if sources.dtype == np.int32 else np.empty(sources.size, np.int32)
        self._count = kernels.relabel(
            sources, self._table, self._bits, self._epoch, self._nodes, self._count, local
        )
        return local

    @property
    def count(self) -> int:
        """Nodes numbered so far."""
        return self._count

    @property
    def nodes(self) -> np.ndarray:
        """int64[count], global ids by local id: a view that the next ``start`` overwrites."""
        return self._nodes[: self._count]

    def _reserve(self, more: int) -> None:
        # one past the end is written, and not counted, for a source that is not new
        wanted = min(self._count + more, self.num_nodes) + 1
        if wanted > self._nodes.size:
            grown = np.empty(min(max(wanted, 2 * self._nodes.size), self.num_nodes + 1), np.int64)
            grown[: self._count] = self._nodes[: self._count]
            self._nodes = grown
