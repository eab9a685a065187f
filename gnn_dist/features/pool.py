"""Sorted sets of ids, and ``RowPool``: the rows of other hosts that are held here."""

from collections.abc import Sequence

import numpy as np

from gnn_dist.kernels import cache as kernels

NO_IDS = np.empty(0, np.int64)

# Ids are int64, ascending and distinct everywhere below.


def find(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The place of each of ``ids`` in ``among``, or -1: int64[n]."""
    return kernels.find(ids, among)


def minus(ids: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``ids`` that are not in ``other``."""
    return ids[find(ids, other) < 0] if other.size else ids


def union(*sets: np.ndarray) -> np.ndarray:
    """The ids of all sets."""
    while len(sets) > 1:  # pairwise: every id is touched log2(sets) times
        pairs = [kernels.union(a, b) for a, b in zip(sets[::2], sets[1::2], strict=False)]
        sets = (*pairs, sets[-1]) if len(sets) % 2 else tuple(pairs)
    return sets[0] if sets else NO_IDS


def next_use(ids: np.ndarray, ahead: Sequence[np.ndarray]) -> np.ndarray:
    """The first of the batches ``ahead`` that needs each id; ``len(ahead)`` for none: int64[n]."""
    use = np.full(ids.size, len(ahead), np.int64)
    for index in range(len(ahead) - 1, -1, -1):
        use[find(ids, ahead[index]) >= 0] = index
    return use


class RowPool:
    """A growing table of rows with a sorted index of the ids that it holds.

    Memory is that of the most rows ever held at once, plus 16 bytes a row for the index.
    """

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.ids = NO_IDS
        self.table = np.empty((0, *shape), dtype)
        """The rows by slot."""
        self._slots = NO_IDS

    def __len__(self) -> int:
        return self.ids.size

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.ids.nbytes + self._slots.nbytes

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The slot of each of ``ids``, or -1: int64[n]."""
        place = find(ids, self.ids)
        held = place >= 0
        place[held] = self._slots[place[held]]
        return place

    def hold(self, ids: np.ndarray, new_ids: np.ndarray, new_rows: np.ndarray) -> None:
        """Hold exactly ``ids``: those held already, and others out of ``new_rows``.

        Row ``i`` of ``new_rows`` belongs to ``new_ids[i]``. Rows that stay are not moved.
        """
        slots = self.find(ids)
        comes = slots < 0
        arrivals = ids[comes]
        is_free = np.ones(len(self.table), bool)
        is_free[slots[~comes]] = False
        free = np.flatnonzero(is_free)[: arrivals.size]
        if free.size < arrivals.size:
            size = len(self.table) + arrivals.size - free.size
            free = np.concatenate([free, np.arange(len(self.table), size)])
            table = np.empty((size, *self.table.shape[1:]), self.table.dtype)
            table[: len(self.table)] = self.table
            self.table = table
        place = find(arrivals, new_ids)
        assert (place >= 0).all(), "a row is to be held that is not here"
        kernels.place(new_rows, place, self.table, free)
        slots[comes] = free
        self.ids, self._slots = ids, slots
