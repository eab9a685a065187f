"""Cache policies: which rows of other hosts a rank keeps.

A policy decides about ids alone; the store moves the rows. It never changes what is returned, only
how often a row is sent. A custom policy is any class with ``start`` and ``keep``, named by dotted
path or by an entry point of ``gnn_dist.caches``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnn_dist.cluster import Placement
from gnn_dist.features.owners import Want
from gnn_dist.storage import PartitionedGraph

BUILTIN = {
    "none": "gnn_dist.features.policies.NoCache",
    "degree": "gnn_dist.features.policies.Degree",
}
"""Short names, for ``gnn_dist.plugins``."""


@dataclass(frozen=True, eq=False)
class CacheContext:
    """What a policy may know when it starts.

    Attributes:
        graph, placement: where everything is.
        ask: one collective round to the owners of nodes (``Owners.ask`` without the traffic).
        halo: int64[h] global ids of sources of this host's edges owned by other hosts, ascending.
        capacity: rows that may be kept.
    """

    graph: PartitionedGraph
    placement: Placement
    ask: Callable[[Sequence[Want]], list[np.ndarray]]
    halo: np.ndarray
    capacity: int


@dataclass(frozen=True, eq=False)
class Round:
    """What is known when a round of fetching is planned; ids are global, ascending and distinct.

    Attributes:
        kept: what the policy keeps now.
        here: rows that will be here after the round and are free to keep: kept or needed, less
            those held anyway for batches that are known to need them.
        batches: for each batch of the round, the rows of other hosts that it needs.
        ahead: the same for the batches after the round, as far as they are known.
    """

    kept: np.ndarray
    here: np.ndarray
    batches: Sequence[np.ndarray]
    ahead: Sequence[np.ndarray]


class CachePolicy(Protocol):
    """Decides which rows are kept. One object serves one store."""

    moves: bool
    """Whether what is kept changes after the start; ``keep`` is called only then."""

    def start(self, context: CacheContext) -> np.ndarray:
        """Ids to fetch at the start: int64[<= context.capacity], distinct. Every rank calls it."""
        ...

    def keep(self, round: Round) -> np.ndarray:
        """Ids to keep after this round: int64[<= capacity], ascending, distinct.

        Ids that are not in ``round.here`` are fetched for it. Ranks may differ; nothing collective.
        """
        ...


class Fixed:
    """The base of policies that never change what they keep."""

    moves = False

    def keep(self, round: Round) -> np.ndarray:
        return round.kept


class NoCache(Fixed):
    """Keeps nothing."""

    def start(self, context: CacheContext) -> np.ndarray:
        return np.empty(0, np.int64)


class Degree(Fixed):
    """Keeps the halo nodes with the most in-neighbours, as DistDGL-based systems do."""

    def start(self, context: CacheContext) -> np.ndarray:
        return top(context.halo, degrees(context, context.halo), context.capacity)


def degrees(context: CacheContext, ids: np.ndarray) -> np.ndarray:
    """In-degree of nodes on other hosts, asked from their owners: int64[n]. Collective."""

    def read(part: int, rows: np.ndarray) -> np.ndarray:
        indptr = context.graph.part(part).indptr
        return indptr[rows + 1] - indptr[rows]

    return context.ask([Want(ids, read, np.dtype(np.int64))])[0]


def top(ids: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` ids with the highest scores, ascending; equal scores: the lower id."""
    if count >= ids.size:
        return np.sort(ids)
    return np.sort(ids[np.lexsort((ids, -scores))[:count]])
