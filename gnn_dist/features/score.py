"""``Score``: MassiveGNN's prefetch buffer with two scoreboards."""

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.features.policies import CacheContext, Round, degrees, top
from gnn_dist.features.pool import find


class Score:
    """Keeps halo nodes, begins with the highest degrees, and replaces the ones that went unused.

    Sarkar, Ghosh, Tallent, Jannesari, "MassiveGNN: efficient training via prefetching for
    massively connected distributed graphs" (CLUSTER 2024), with the conventions of the authors'
    published code:

    - ``S_E`` of a kept row begins with 1 and is multiplied by gamma for every batch that does not
      use it;
    - ``S_A`` of another halo node counts the batches that missed it;
    - every delta batches, rows with ``S_E < alpha`` are evicted, lowest first, and as many halo
      nodes with the highest ``S_A > 0`` are fetched in their place. An evicted node's ``S_A``
      becomes its ``S_E``, and the newcomer's ``S_E`` its ``S_A``.

    Here misses are counted in batches that evict too. The fetched replacements are charged.

    Args:
        gamma: the decay, in (0, 1).
        delta: batches between evictions.
        alpha: the threshold; by default just above ``gamma ** delta``, which a row reaches that was
            not used at all since the last eviction.
    """

    moves = True

    def __init__(self, gamma: float = 0.995, delta: int = 32, alpha: float | None = None) -> None:
        if not 0 < gamma < 1:
            raise InputError(f"cache.args.gamma: {gamma} is not valid; give a number in (0, 1)")
        if delta < 1:
            raise InputError(f"cache.args.delta: {delta} is not valid; give at least 1 batch")
        if alpha is not None and alpha < 0:
            raise InputError(f"cache.args.alpha: {alpha} is not valid; give a number >= 0")
        self._gamma = gamma
        self._delta = delta
        self._alpha = gamma**delta * (1 + 1e-9) if alpha is None else alpha
        self._batches = 0
        self._halo = np.empty(0, np.int64)
        self._access = np.empty(0)  # S_A by place in the halo; not used for kept rows
        self._worth = np.empty(0)  # S_E by place in the halo; 0 for rows that are not kept
        self._is_kept = np.empty(0, bool)

    def start(self, context: CacheContext) -> np.ndarray:
        self._halo = context.halo
        kept = top(context.halo, degrees(context, context.halo), context.capacity)
        self._is_kept = find(context.halo, kept) >= 0
        self._worth = self._is_kept.astype(float)
        self._access = np.zeros(context.halo.size)
        return kept

    def keep(self, round: Round) -> np.ndarray:
        for needed in round.batches:
            used = find(self._halo, needed) >= 0
            self._worth[self._is_kept & ~used] *= self._gamma
            self._access[used & ~self._is_kept] += 1
            self._batches += 1
            if self._batches % self._delta == 0:
                self._replace()
        return self._halo[self._is_kept]

    def _replace(self) -> None:
        out = np.flatnonzero(self._is_kept & (self._worth < self._alpha))
        new = np.flatnonzero(~self._is_kept & (self._access > 0))
        count = min(out.size, new.size)
        out = out[np.argsort(self._worth[out], kind="stable")[:count]]
        new = new[np.argsort(-self._access[new], kind="stable")[:count]]
        self._is_kept[out], self._is_kept[new] = False, True
        self._access[out], self._worth[new] = self._worth[out], self._access[new]
