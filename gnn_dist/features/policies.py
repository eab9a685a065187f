"""Cache policies: which rows of other hosts a rank keeps.

A policy decides about ids alone; the store moves the rows. It never changes what is returned, only
how often a row is sent. A custom policy is any class with ``moves``, ``start`` and ``keep``, named
by dotted path or by an entry point of ``gnn_dist.caches``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.features.owners import Directory, Want
from gnn_dist.features.vip import inclusion_probability
from gnn_dist.features.workload import Workload
from gnn_dist.storage import PartitionedGraph

BUILTIN = {
    "none": "gnn_dist.features.policies.NoCache",
    "degree": "gnn_dist.features.policies.Degree",
    "presample": "gnn_dist.features.policies.Presample",
    "vip": "gnn_dist.features.policies.Vip",
    "score": "gnn_dist.features.score.Score",
    "lookahead": "gnn_dist.features.lookahead.Lookahead",
}
"""Short names, for ``gnn_dist.plugins``."""


@dataclass(frozen=True, eq=False)
class CacheContext:
    """What a policy may know when it starts.

    Attributes:
        graph, placement: where everything is.
        directory: answers for nodes of other hosts; collective.
        halo: int64[h] global ids of sources of this host's edges owned by other hosts, ascending.
        capacity: rows that may be kept.
        workload: the seeds and the sampler of this rank, or None where they are not known.
    """

    graph: PartitionedGraph
    placement: Placement
    directory: Directory
    halo: np.ndarray
    capacity: int
    workload: Workload | None = None

    def known_workload(self, policy: str) -> Workload:
        """The workload; ``InputError`` where there is none."""
        if self.workload is None:
            raise InputError(
                f"cache.name: {policy!r} must know the seeds and the sampler; give the feature "
                "store a workload, or use the cache 'degree' or 'score'"
            )
        return self.workload

    def elsewhere(self, ids: np.ndarray) -> np.ndarray:
        """Which of ``ids`` (int64[n], global) other hosts own: bool[n]."""
        parts = range(self.graph.num_parts)
        here = np.array([self.placement.is_local(part) for part in parts])
        return ~here[self.graph.owner(ids)]


@dataclass(frozen=True, eq=False)
class Round:
    """What is known when a round of fetching is planned; ids are global, ascending and distinct.

    Attributes:
        kept: what the policy keeps now.
        here: rows that will be here after the round and are free to keep: held or needed now, less
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


def check_ids(
    policy: CachePolicy, call: str, ids: np.ndarray, capacity: int, nodes: int | None = None
) -> None:
    """Raise ``InputError`` for an answer of a policy that is not what ``CachePolicy`` says."""
    if (
        not isinstance(ids, np.ndarray)
        or ids.ndim != 1
        or (ids.size and ids.dtype.kind not in "iu")
    ):
        fault = f"gives {type(ids).__name__}, not int64[n]"
    elif ids.size > capacity:
        fault = f"gives {ids.size} ids where {capacity} rows may be kept"
    elif nodes is not None and ids.size and (ids.min() < 0 or ids.max() >= nodes):
        fault = f"gives {ids.min()} to {ids.max()} where ids run from 0 to {nodes - 1}"
    elif (ids[1:] == ids[:-1]).any():
        fault = "gives an id twice"
    else:
        return
    raise InputError(
        f"cache: {type(policy).__name__}.{call} {fault}; see gnn_dist.features.CachePolicy"
    )


class Ranked(ABC):
    """The base of policies that keep the rows with the highest scores from start to end."""

    moves = False
    _scored: tuple[np.ndarray, np.ndarray] | None = None

    @abstractmethod
    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64[n] of other hosts' nodes, distinct; float64[n], higher is worth more)."""

    def scored(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        """``scores``, found out once: they depend on the store that a policy serves alone."""
        if self._scored is None:
            self._scored = self.scores(context)
        return self._scored

    def start(self, context: CacheContext) -> np.ndarray:
        return top(*self.scored(context), context.capacity)

    def keep(self, round: Round) -> np.ndarray:
        return round.kept


class NoCache(Ranked):
    """Keeps nothing."""

    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        return np.empty(0, np.int64), np.empty(0)


class Degree(Ranked):
    """Keeps the halo nodes with the most in-neighbours, as DistDGL's companions do."""

    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        return context.halo, degrees(context, context.halo).astype(float)


class Presample(Ranked):
    """Keeps the nodes that were needed most often in some rehearsed epochs.

    Yang et al., "GNNLab: a factored system for sample-based GNN training over GPUs" (EuroSys 2022).

    Args:
        epochs: how many epochs are sampled first; they are none of those trained on.
    """

    def __init__(self, epochs: int = 1) -> None:
        if epochs < 1:
            raise InputError(f"cache.args.epochs: {epochs} is not valid; rehearse at least 1")
        self._epochs = epochs

    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        epoch = context.known_workload("presample").epoch
        if epoch is None:
            raise InputError(
                "cache.name: 'presample' must sample; give the workload an `epoch`, or use 'vip'"
            )
        count = np.zeros(context.graph.num_nodes, np.int32)
        for rehearsal in range(self._epochs):
            for nodes in epoch(-1 - rehearsal):
                count[nodes] += 1
        ids = np.flatnonzero(count)
        ids = ids[context.elsewhere(ids)]
        return ids, count[ids].astype(float)


class Vip(Ranked):
    """Keeps the nodes that a batch needs with the highest probability (see ``features.vip``)."""

    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        workload = context.known_workload("vip")
        probability = inclusion_probability(context.graph, context.directory, workload)
        ids = np.flatnonzero(probability)
        ids = ids[context.elsewhere(ids)]
        return ids, probability[ids]


def degrees(context: CacheContext, ids: np.ndarray) -> np.ndarray:
    """In-degree of nodes on other hosts, asked from their owners: int64[n]. Collective."""

    def read(part: int, rows: np.ndarray) -> np.ndarray:
        indptr = context.graph.part(part).indptr
        return indptr[rows + 1] - indptr[rows]

    return context.directory.ask([Want(ids, read, np.dtype(np.int64))])[0]


def top(ids: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` ids with the highest scores, ascending; equal scores: the lower id."""
    if count >= ids.size:
        return np.sort(ids)
    return np.sort(ids[np.lexsort((ids, -scores))[:count]])
