"""``Holder``: what is held of other hosts' rows of one tensor, and for how long."""

from collections.abc import Sequence

import numpy as np

from gnn_dist.features.policies import CachePolicy, Round, check_ids
from gnn_dist.features.pool import NO_IDS, RowPool, minus, next_use, union
from gnn_dist.features.tables import RowType


class Holder:
    """Rows kept by a policy, and rows held because a known batch will need them.

    A round is ``plan`` (which ids must be fetched), then, after the batches of the round have been
    delivered, ``finish`` (what stays).

    Args:
        policy: decides what is kept.
        kind: the rows.
        capacity: rows that the policy may keep.
        window: rows that may be held beyond them; None: as many as known batches need.
    """

    def __init__(
        self, policy: CachePolicy, kind: RowType, capacity: int, window: int | None
    ) -> None:
        self.pool = RowPool(kind.stored, kind.shape)
        self.peak_rows = 0
        self.window = window
        self._policy = policy
        self._capacity = capacity
        self._kept = NO_IDS
        self._stays = self._kept

    def fill(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Hold the rows that the policy starts with."""
        self.pool.hold(ids, ids, rows)
        self._kept = self._stays = ids
        self.peak_rows = ids.size

    def fitting(self, batches: Sequence[np.ndarray]) -> int:
        """How many leading batches one round may serve within the window; at least 1."""
        if self.window is None:
            return len(batches)
        held = minus(self.pool.ids, self._kept)
        for count, needed in enumerate(batches):
            held = union(held, minus(needed, self._kept))
            if held.size > self.window and count:
                return count
        return len(batches)

    def plan(self, batches: Sequence[np.ndarray], ahead: Sequence[np.ndarray]) -> np.ndarray:
        """Ids to fetch for a round: int64[m], ascending."""
        needed = union(*batches)
        here = union(self.pool.ids, needed)
        known = self._known(here, ahead)
        if self._policy.moves:
            round_ = Round(self._kept, minus(here, known), batches, ahead)
            self._kept = self._policy.keep(round_)
            check_ids(self._policy, "keep", self._kept, self._capacity)
        self._stays = union(self._kept, known)
        self.peak_rows = max(self.peak_rows, union(here, self._stays).size)
        return minus(union(needed, self._stays), self.pool.ids)

    def _known(self, here: np.ndarray, ahead: Sequence[np.ndarray]) -> np.ndarray:
        """Rows to hold for batches after the round: those used soonest, as the window allows."""
        if not ahead or self.window == 0:
            return NO_IDS
        if not self._policy.moves:
            here = minus(here, self._kept)
        use = next_use(here, ahead)
        known = np.flatnonzero(use < len(ahead))
        if self.window is not None and known.size > self.window:
            known = known[np.argsort(use[known], kind="stable")[: self.window]]
            known.sort()
        return here[known]

    def finish(self, new_ids: np.ndarray, new_rows: np.ndarray) -> None:
        """Keep what stays, out of what is held and what the round brought."""
        self.pool.hold(self._stays, new_ids, new_rows)
