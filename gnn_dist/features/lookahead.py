"""``Lookahead``: keep what known batches need soonest, then what is likely to be needed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gnn_dist import plugins
from gnn_dist.errors import InputError
from gnn_dist.features.policies import BUILTIN, CacheContext, Ranked, Round
from gnn_dist.features.pool import NO_IDS, find, next_use


class Lookahead:
    """Belady's rule within the batches that are sampled already, with a ranking beyond them.

    Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): give up the
    row whose next use is farthest. Rows that no known batch needs are kept by the scores of another
    policy, which also fills the cache at the start. Rows are only kept from among those that are
    here for a batch, so nothing is fetched that a batch did not ask for.

    Args:
        base: a policy with scores (``vip``, ``presample``, ``degree``, ``none`` or one's own), by
            name or dotted path.
        args: its keyword arguments.
    """

    moves = True

    def __init__(self, base: str = "vip", args: Mapping[str, Any] | None = None) -> None:
        policy = plugins.build("cache", base, args or {}, BUILTIN)
        if not isinstance(policy, Ranked):
            raise InputError(
                f"cache.args.base: {base!r} gives no scores; use vip, presample, degree or none, "
                "or a policy derived from gnn_dist.features.Ranked"
            )
        self.base = policy
        self._capacity = 0
        self._ids = NO_IDS
        self._rank = NO_IDS  # by place in ids: 0 for the highest score

    def start(self, context: CacheContext) -> np.ndarray:
        ids, scores = self.base.scored(context)
        order = np.lexsort((ids, -scores))
        self._rank = np.empty(ids.size, np.int64)
        self._rank[order] = np.arange(ids.size)
        by_id = np.argsort(ids)
        self._ids, self._rank = ids[by_id], self._rank[by_id]
        self._capacity = context.capacity
        return np.sort(ids[order[: context.capacity]])

    def keep(self, round: Round) -> np.ndarray:
        here = round.here
        if here.size <= self._capacity:
            return here
        place = find(here, self._ids)
        ranked = place >= 0
        rank = self._ids.size + here  # those without a score come last, by id
        rank[ranked] = self._rank[place[ranked]]
        key = next_use(here, round.ahead) * (self._ids.size + int(here[-1]) + 1) + rank
        return np.sort(here[np.argpartition(key, self._capacity)[: self._capacity]])
