"""``RowPool``: the rows of other hosts that are held here, found by global id."""

import numpy as np


def find(ids: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where ``ids`` (int64[n]) stand in ``among`` (ascending), and whether: int64[n], bool[n]."""
    position = np.searchsorted(among, ids)
    if among.size == 0:
        return position, np.zeros(ids.size, bool)
    position[position == among.size] = 0
    return position, among[position] == ids


def minus(ids: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``ids`` that are not in ``other``; both ascending and distinct."""
    return ids[~find(ids, other)[1]]


class RowPool:
    """A growing table of rows with a sorted index of the ids it holds.

    Memory is that of the most rows ever held at once, plus 16 bytes a row for the index.
    """

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.ids = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)
        self._rows = np.empty((0, *shape), dtype)

    def __len__(self) -> int:
        return self.ids.size

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self.ids.nbytes + self._slots.nbytes

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slot of each id, whether it is held); a slot without its id means nothing."""
        position, found = find(ids, self.ids)
        return (self._slots[position] if self.ids.size else position), found

    @property
    def table(self) -> np.ndarray:
        """The rows by slot."""
        return self._rows

    def hold(self, ids: np.ndarray, new_ids: np.ndarray, new_rows: np.ndarray) -> None:
        """Hold exactly ``ids`` (ascending): those held already, and others out of ``new_rows``.

        ``new_ids`` are ascending, with their rows in ``new_rows``. Rows that stay are not moved.
        """
        position, stays = find(ids, self.ids)
        slots = np.empty(ids.size, np.int64)
        slots[stays] = self._slots[position[stays]]
        arrivals = ids[~stays]
        free = np.ones(len(self._rows), bool)
        free[slots[stays]] = False
        free = np.flatnonzero(free)
        if free.size < arrivals.size:
            size = len(self._rows) + arrivals.size - free.size
            rows = np.empty((size, *self._rows.shape[1:]), self._rows.dtype)
            rows[: len(self._rows)] = self._rows
            free = np.concatenate([free, np.arange(len(self._rows), size)])
            self._rows = rows
        slots[~stays] = free[: arrivals.size]
        position, found = find(arrivals, new_ids)
        assert found.all(), "a row is to be held that is not here"
        self._rows[free[: arrivals.size]] = new_rows[position]
        self.ids, self._slots = ids, slots
