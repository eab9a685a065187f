"""``Loader``: the mini-batches of one rank, in order, prepared ahead."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeGuard

import numpy as np
from torch import Tensor

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.features import Counts, FeatureStore
from gnn_dist.features.store import Rows
from gnn_dist.loading.plan import EpochPlan
from gnn_dist.loading.prefetch import Prefetcher
from gnn_dist.loading.windows import Held, Horizon, LoadTimes, Sampled, Windows, timed
from gnn_dist.sampling import Share, Topology


class Sampler(Protocol):
    """What the loader asks of a sampler: one rank's share of a global batch, without features.

    One that has ``edge_ids`` and ``edge`` tells by them what its blocks carry.
    """

    def sample(
        self,
        topology: Topology,
        seeds: np.ndarray,
        *,
        seed: int,
        index: BatchIndex,
        global_seeds: int,
    ) -> MiniBatch: ...


class BulkSampler(Sampler, Protocol):
    """A sampler that can also draw several batches in one call."""

    def sample_bulk(
        self, topology: Topology, shares: Sequence[Share], *, seed: int
    ) -> list[MiniBatch]:
        """The mini-batches that ``sample`` gives one by one, for fewer rounds."""
        ...


class Loader:
    """Samples, fetches and delivers this rank's share of every global batch.

    Every rank runs through the same batch indices. Batches are a function of (graph, sampler, seed,
    epoch, batch); prefetching, threads, caches and the partition decide only when they are ready.

    Args:
        plan: seeds of every batch.
        sampler: draws the blocks.
        topology: where neighbours come from.
        features: where rows come from.
        seed: seed of the run.
        rank: this rank.
        inputs: the node tensor that input nodes need, or None for none.
        targets: node tensors that seeds need.
        horizon: how many batches are sampled and fetched together, where other hosts are asked
            for rows or neighbours; alone they gain nothing by it.
        prefetch, max_bytes, threads: see ``Prefetcher``.
        leave: rows of this host stay in their tables, for a model that reads them there; where
            they are copied in any case, it is better done here than while the model waits.

    Attributes:
        counts: rows and messages of all batches delivered so far.
        batches: how many these are.
    """

    def __init__(
        self,
        plan: EpochPlan,
        sampler: Sampler,
        topology: Topology,
        features: FeatureStore,
        *,
        seed: int,
        rank: int = 0,
        inputs: str | None = "x",
        targets: Sequence[str] = ("y",),
        horizon: Horizon | None = None,
        prefetch: int = 4,
        max_bytes: int = 1 << 30,
        threads: int = 1,
        leave: bool = True,
    ) -> None:
        self.plan = plan
        self.counts = Counts()
        self.batches = 0
        self._sampler = sampler
        self._topology = topology
        self._features = features
        self._seed = seed
        self._rank = rank
        self._inputs = inputs
        self._leave = (inputs,) if leave and inputs is not None else ()
        self._targets = tuple(targets)
        self._horizon = horizon if topology.collective else None
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._threads = threads
        self._rows: Iterator[Mapping[str, Rows]] = iter(())
        self._known: dict[tuple[int, int], Held] = {}  # by epoch and batch of the first

    def epoch(
        self, epoch: int, first: int = 0, stop: int | None = None
    ) -> Iterator[tuple[MiniBatch, LoadTimes]]:
        """Batches ``first`` to ``stop - 1`` of an epoch; ranks must ask for the same range."""
        whole = self.plan.num_batches
        stop = whole if stop is None else min(stop, whole)
        order = functools.cache(self.plan.order)
        order(epoch)  # here: several threads may sample

        def share(number: int) -> Share:  # from ``whole`` on, of the next epoch
            later, batch = divmod(number, whole)
            return share_of(self.plan, epoch + later, order(epoch + later), self._rank, batch)

        take: Callable[[int], Sampled] = lambda batch: self._alone(share(batch))  # noqa: E731
        windows, held = None, self._known.pop((epoch, first), None)
        if self._horizon is not None:
            follow = whole if stop == whole else 0
            windows = Windows(first, stop, share, self._sample, self._horizon, follow, held)
            take = windows.take
        prefetcher: Prefetcher[int, tuple[MiniBatch, LoadTimes]] = Prefetcher(
            take,
            self._fetch,
            depth=self._prefetch,
            threads=self._threads,
            max_bytes=self._max_bytes,
            size=lambda loaded: batch_bytes(loaded[0]),
        )
        yield from timed(prefetcher(range(first, stop)))
        self._known = {} if windows is None else {(epoch + 1, 0): windows.held}

    def _alone(self, share: Share) -> Sampled:
        start = time.perf_counter()
        (batch,) = self._sample([share])
        times = LoadTimes(sample=time.perf_counter() - start)
        return Sampled(batch, times, [batch], [], True)

    def _sample(self, shares: Sequence[Share]) -> list[MiniBatch]:
        return sample_shares(self._sampler, self._topology, shares, self._seed)

    def _fetch(self, sampled: Sampled) -> tuple[MiniBatch, LoadTimes]:
        batch, times = sampled.batch, sampled.times
        times.fetch_began = time.perf_counter()
        if sampled.window:
            self._rows = self._features.fetch_window(
                [self._wanted(b) for b in sampled.window],
                [self._wanted(b) for b in sampled.ahead],
                leave=self._leave,
            )
        rows = next(self._rows)
        self.counts += self._features.last
        self.batches += 1
        if sampled.last:
            next(self._rows, None)  # ends the window: rows that nobody needs are let go
        batch.x = None if self._inputs is None else rows[self._inputs]
        batch.node = {name: rows[name] for name in self._targets}  # type: ignore[misc]
        times.fetch = time.perf_counter() - times.fetch_began
        return batch, times

    def _wanted(self, batch: MiniBatch) -> dict[str, Tensor]:
        """Node tensor → nodes; asked for in one call, so that all rows travel in one round."""
        wanted = dict.fromkeys(self._targets, batch.seeds)
        if self._inputs is not None:
            wanted[self._inputs] = batch.input_nodes
        return wanted


def share_of(plan: EpochPlan, epoch: int, order: np.ndarray, rank: int, batch: int) -> Share:
    """What ``rank`` takes of a batch; ``order`` is that of the epoch."""
    positions = plan.batch(order, batch)
    seeds = plan.share(positions, rank)
    return Share(BatchIndex(epoch, batch), seeds, len(positions), plan.global_ids[positions])


def rehearse(
    plan: EpochPlan, sampler: Sampler, topology: Topology, epoch: int, *, seed: int, rank: int
) -> Iterator[MiniBatch]:
    """The batches of an epoch (which may be negative), without rows, sampled here and now."""
    order = plan.order(epoch)
    for batch in range(plan.num_batches):
        yield from sample_shares(
            sampler, topology, [share_of(plan, epoch, order, rank, batch)], seed
        )


def sample_shares(
    sampler: Sampler, topology: Topology, shares: Sequence[Share], seed: int
) -> list[MiniBatch]:
    """In one call where the sampler can; else one by one."""
    if draws_in_bulk(sampler):
        return sampler.sample_bulk(topology, shares, seed=seed)
    batches = []
    for share in shares:
        total = len(share.seeds) if share.global_seeds is None else share.global_seeds
        batch = sampler.sample(
            topology, np.asarray(share.seeds), seed=seed, index=share.index, global_seeds=total
        )
        if not isinstance(batch, MiniBatch):
            raise InputError(
                f"sampler: {type(sampler).__name__}.sample gives a {type(batch).__name__}; it must "
                "give a gnn_dist.batch.MiniBatch"
            )
        batches.append(batch)
    return batches


def draws_in_bulk(sampler: Sampler) -> TypeGuard[BulkSampler]:
    """Whether a sampler draws several batches in one call, as it draws one.

    A class that redefines ``sample`` alone means that, whatever it inherits.
    """
    defines = (vars(c) for c in type(sampler).__mro__)
    return "sample_bulk" in next((d for d in defines if {"sample", "sample_bulk"} & d.keys()), {})


def batch_bytes(batch: MiniBatch) -> int:
    """Bytes of the tensors that a batch holds (rows left in a feature table are not its own)."""
    held = [batch.seeds, batch.input_nodes, *batch.node.values()]
    rows = 0 if batch.x is None else batch.x.nbytes
    return rows + sum(t.nbytes for t in held) + sum(block.nbytes for block in batch.blocks)
