"""What a cache will save, from inclusion probabilities, before anything is sampled."""

import itertools
from dataclasses import asdict, dataclass

import numpy as np

from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.features.halo import cache_rows, halo_of_host
from gnn_dist.features.lookahead import Lookahead
from gnn_dist.features.owners import AllParts, Directory
from gnn_dist.features.policies import CacheContext, CachePolicy, Ranked
from gnn_dist.features.vip import inclusion, trials
from gnn_dist.features.workload import Workload
from gnn_dist.storage import PartitionedGraph

_PHASES = 16  # places of a window in an epoch that are averaged


@dataclass(frozen=True)
class Prediction:
    """Expected rows of other hosts for one rank.

    Attributes:
        halo: nodes of other hosts that this host's edges come from.
        kept: rows that the cache keeps, all fetched at the start.
        needed: rows of other hosts that a batch needs.
        remote: rows that are sent for a batch, the fill not counted, in the mean over the run.
        hit_rate: share of needed rows that are here already.
        saved: ``1 - (rows sent, fill included) / (rows needed)`` over all batches of the run.
        row_bytes: bytes of a row of the cached tensor.
    """

    halo: int
    kept: int
    needed: float
    remote: float
    hit_rate: float
    saved: float
    row_bytes: int = 0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def predict(
    graph: PartitionedGraph,
    placement: Placement,
    workload: Workload,
    policy: CachePolicy,
    *,
    fraction: float | None = None,
    max_bytes: int | None = None,
    batches: int,
    epochs: int,
    window: int = 1,
    ahead: int = 0,
    across_epochs: bool = True,
    cached: str = "x",
    directory: Directory | None = None,
) -> Prediction:
    """Predict what ``FeatureStore`` will count on the rank of ``placement``.

    Without a ``directory``, one process reads every part and nothing is collective. The bytes of
    the window are taken to be enough.

    Args:
        policy: one with scores (none, degree, presample, vip), or ``lookahead`` over one.
        fraction, max_bytes: rows that the cache may keep, as for ``FeatureStore``.
        batches: batches of an epoch.
        epochs: epochs of the run.
        window: batches fetched together.
        ahead: batches known beyond those.
        across_epochs: batches of the next epoch are among those known ahead; else what is known
            ends with an epoch.
        cached: the tensor that is cached.
        directory: answers for nodes of other hosts.

    Raises ``InputError`` for a policy whose choices depend on what has been drawn.
    """
    base = policy.base if isinstance(policy, Lookahead) else policy
    if not isinstance(base, Ranked):
        raise InputError(
            f"cache.name: what {type(policy).__name__} keeps depends on the batches drawn; "
            "predict none, degree, presample, vip or lookahead"
        )
    directory = directory or AllParts(graph)
    halo = halo_of_host(graph, placement)
    spec = graph.schema.node.get(cached)
    row_bytes = 0
    if spec is not None:
        row_bytes = np.dtype(spec.stored).itemsize * int(np.prod(spec.shape, dtype=np.int64))
    capacity = cache_rows(halo.size, row_bytes, fraction, max_bytes)
    context = CacheContext(graph, placement, directory, halo, capacity, workload)
    span = min(batches, window + max(ahead, 0))
    in_batch, in_span = inclusion(graph, directory, workload, span)
    ids = np.flatnonzero(in_batch)
    ids = ids[context.elsewhere(ids)]
    misses = _Misses(in_batch[ids], in_span[ids], span, batches, _PHASES if across_epochs else 1)
    needed = float(misses.reached.sum())
    ranked, scores = base.scored(context)
    order = ranked[np.lexsort((ranked, -scores))]
    start = order[:capacity]
    kept = start
    if isinstance(policy, Lookahead) and ahead:
        # A row that known batches need is held for them and takes no room in the cache.
        room = np.ones(graph.num_nodes)
        room[ids] = misses.none_in(ahead)
        kept = order[np.cumsum(room[order]) <= capacity]
    total = batches * epochs
    in_cache = np.isin(ids, kept)
    joined, apart = (total, 1) if across_epochs else (batches, epochs)
    # Sent when first needed, then kept, as long as batches ahead are known.
    later = in_cache & ~np.isin(ids, start)
    sent = apart * float((1.0 - misses.none_in(joined))[later].sum()) if later.any() else 0.0
    for before, rounds in enumerate(_round_sizes(joined, window, ahead)):
        expected = _sent(misses, rounds, window, ahead, before)
        sent += apart * rounds.times * float(expected[~in_cache].sum())
    remote = sent / total
    return Prediction(
        halo=halo.size,
        kept=start.size,
        needed=needed,
        remote=remote,
        hit_rate=1.0 - remote / needed if needed else 0.0,
        saved=1.0 - (sent + start.size) / (needed * total) if needed else 0.0,
        row_bytes=row_bytes,
    )


@dataclass(frozen=True)
class _Rounds:
    """Rounds that are alike: of so many batches, so many times."""

    batches: int
    times: int


def _round_sizes(total: int, window: int, ahead: int) -> list[_Rounds]:
    """The rounds of ``total`` batches in a row: the first ones alone, which remember less."""
    full, rest = divmod(total, window)
    alone = min(full, _rounds_known(1, window, ahead))
    return [
        *(_Rounds(window, 1) for _ in range(alone)),
        _Rounds(window, full - alone),
        *([_Rounds(rest, 1)] if rest else []),
    ]


def _rounds_known(position: int, window: int, ahead: int) -> int:
    """How many rounds ago a use in batch ``position`` (from 1) of a round was known already."""
    return max(0, (ahead - position) // window + 1)


def _sent(misses: "_Misses", rounds: _Rounds, window: int, ahead: int, before: int) -> np.ndarray:
    """Probability that a row outside the cache is sent in a round: float64[n].

    A row is sent if it is needed in the round and was not held since an earlier use: a use ``j``
    rounds ago is remembered by one in batch ``x`` of this round if ``(j - 1) window + x <= ahead``.
    ``before`` rounds were made already.
    """
    known = [min(before, _rounds_known(x, window, ahead)) for x in range(1, rounds.batches + 1)]
    cuts = [0, *(x for x in range(1, len(known)) if known[x] != known[x - 1]), len(known)]
    total = np.zeros_like(misses.reached)
    for first, last in itertools.pairwise(cuts):
        gap = known[first] * window
        total += misses.none_in(gap + first) - misses.none_in(gap + last)
    return total


class _Misses:
    """Probability that a node is needed in none of some consecutive batches.

    Args:
        batch: float64[n], log of it for one batch.
        span: float64[n], the same for ``size`` batches of one epoch.
        batches: batches of an epoch; epochs are independent.
        phases: places in an epoch, at which consecutive batches may begin, that are averaged.
    """

    def __init__(
        self, batch: np.ndarray, span: np.ndarray, size: int, batches: int, phases: int
    ) -> None:
        self.reached = -np.expm1(batch)
        self._batches = batches
        self._phases = np.unique(np.linspace(0, batches - 1, phases).round().astype(int))
        self._cache: dict[int, np.ndarray] = {}
        _, many = trials(self.reached, span, size)
        # Between one trial (a seed) and one for each batch, independent of the size of a window.
        spread = (1 / many - 1 / size) / (1 - 1 / size) if size > 1 else np.zeros_like(many)
        self._single = np.clip(spread, 0.0, 1.0)

    def none_in(self, count: int) -> np.ndarray:
        """For ``count`` batches at any place of the run: float64[n]."""
        total = np.zeros_like(self.reached)
        for phase in self._phases:
            left, log = count, np.zeros_like(self.reached)
            room = self._batches - int(phase)
            while left > 0:
                log += self._log(min(left, room))
                left -= room
                room = self._batches
            total += np.exp(log)
        return total / self._phases.size

    def _log(self, count: int) -> np.ndarray:
        """Log of it within one epoch."""
        if count not in self._cache:
            trials_ = 1 / (self._single * (1 - 1 / count) + 1 / count)
            each = np.minimum(count * self.reached / trials_, 1.0)
            with np.errstate(divide="ignore"):
                self._cache[count] = trials_ * np.log1p(-each)
        return self._cache[count]
