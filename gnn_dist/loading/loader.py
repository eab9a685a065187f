"""``Loader``: the mini-batches of one rank, in order, prepared ahead."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.features import FeatureStore
from gnn_dist.loading.plan import EpochPlan
from gnn_dist.loading.prefetch import Prefetcher
from gnn_dist.sampling import Topology


class Sampler(Protocol):
    """What the loader asks of a sampler: one rank's share of a global batch, without features.

    ``edge_ids`` and ``edge`` tell what its blocks carry.
    """

    @property
    def edge_ids(self) -> bool: ...

    @property
    def edge(self) -> Sequence[str]: ...

    def sample(
        self,
        topology: Topology,
        seeds: np.ndarray,
        *,
        seed: int,
        index: BatchIndex,
        global_seeds: int,
    ) -> MiniBatch: ...


@dataclass(slots=True)
class LoadTimes:
    """Seconds that preparing one batch took, and that the model waited for it."""

    sample: float = 0.0
    fetch: float = 0.0
    wait: float = 0.0


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
        prefetch, max_bytes, threads: see ``Prefetcher``.
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
        prefetch: int = 4,
        max_bytes: int = 1 << 30,
        threads: int = 1,
    ) -> None:
        self.plan = plan
        self._sampler = sampler
        self._topology = topology
        self._features = features
        self._seed = seed
        self._rank = rank
        self._inputs = inputs
        self._targets = tuple(targets)
        self._prefetcher = Prefetcher(
            self._sample,
            self._fetch,
            depth=prefetch,
            threads=threads,
            max_bytes=max_bytes,
            size=lambda loaded: batch_bytes(loaded[0]),
        )

    def epoch(
        self, epoch: int, first: int = 0, stop: int | None = None
    ) -> Iterator[tuple[MiniBatch, LoadTimes]]:
        """Batches ``first`` to ``stop - 1`` of an epoch; ranks must ask for the same range."""
        order = self.plan.order(epoch)
        stop = self.plan.num_batches if stop is None else min(stop, self.plan.num_batches)
        items = ((BatchIndex(epoch, b), self.plan.batch(order, b)) for b in range(first, stop))
        batches = self._prefetcher(items)
        while True:
            start = time.perf_counter()
            loaded = next(batches, None)
            if loaded is None:
                return
            batch, times = loaded
            times.wait = time.perf_counter() - start
            yield batch, times

    def _sample(self, item: tuple[BatchIndex, np.ndarray]) -> tuple[MiniBatch, LoadTimes]:
        index, positions = item
        start = time.perf_counter()
        batch = self._sampler.sample(
            self._topology,
            self.plan.share(positions, self._rank),
            seed=self._seed,
            index=index,
            global_seeds=len(positions),
        )
        return batch, LoadTimes(sample=time.perf_counter() - start)

    def _fetch(self, loaded: tuple[MiniBatch, LoadTimes]) -> tuple[MiniBatch, LoadTimes]:
        batch, times = loaded
        start = time.perf_counter()
        wanted = dict.fromkeys(self._targets, batch.seeds)
        if self._inputs is not None:
            wanted[self._inputs] = batch.input_nodes
        # One call, so that the rows of both travel in one round.
        (rows,) = self._features.fetch_window([wanted], leave=(self._inputs or "",))
        batch.x = None if self._inputs is None else rows[self._inputs]
        batch.node = {name: rows[name] for name in self._targets}  # type: ignore[misc]
        times.fetch = time.perf_counter() - start
        return batch, times


def batch_bytes(batch: MiniBatch) -> int:
    """Bytes of the tensors that a batch holds (rows left in a feature table are not its own)."""
    held = [batch.seeds, batch.input_nodes, *batch.node.values()]
    if isinstance(batch.x, Tensor):
        held.append(batch.x)
    for block in batch.blocks:
        held += [block.indptr, block.indices, *block.edge.values()]
        held += [t for t in (block.edge_ids, block.weight, block.ids) if t is not None]
    return sum(t.numel() * t.element_size() for t in held)
