"""A rank's parts of global batches, sampled with the others and loaded ahead."""

import time
from collections.abc import Iterator

import numpy as np

from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import Exchange
from gnn_dist.features import FeatureRows, FeatureStore
from gnn_dist.loading import EpochPlan, LoadTimes, Prefetcher, timed
from gnn_dist.strategies.split.sample import Cooperation, SplitBatch
from gnn_dist.strategies.split.shuffle import Shuffler


class SplitLoader:
    """Every rank runs through the same batches in the same order.

    Sampling is collective over ``cooperation.exchange`` and runs on one thread; rows are read and
    the input rows shuffled over ``exchange`` on another.

    Args:
        plan: seeds of every batch.
        cooperation: samples.
        features: reads rows of this rank's own vertices.
        labels: reads targets, which are another rank's for a seed of a data-parallel layer.
        exchange: carries input rows between ranks, and nothing else.
        inputs, target: the node tensors of inputs and seeds.
        prefetch, max_bytes: see ``Prefetcher``.
        leave: this rank's own rows stay in their tables, for a model that reads them there.

    Attributes:
        counts: ``SplitBatch.counts`` of all batches fetched so far.
    """

    def __init__(
        self,
        plan: EpochPlan,
        cooperation: Cooperation,
        features: FeatureStore,
        labels: FeatureStore,
        exchange: Exchange,
        *,
        inputs: str,
        target: str,
        prefetch: int,
        max_bytes: int,
        leave: bool = False,
    ) -> None:
        self.counts: list[np.ndarray] = []
        self.plan = plan
        self._cooperation = cooperation
        self._features = features
        self._labels = labels
        self._shuffler = Shuffler(exchange)
        self._inputs = inputs
        self._target = target
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._leave = leave

    def epoch(self, epoch: int, first: int, stop: int) -> Iterator[tuple[SplitBatch, LoadTimes]]:
        """Parts of batches ``first`` to ``stop - 1`` of an epoch."""
        order = self.plan.order(epoch)

        def sample(number: int) -> tuple[SplitBatch, LoadTimes]:
            start = time.perf_counter()
            batch = self.sample(order, BatchIndex(epoch, number))
            return batch, LoadTimes(sample=time.perf_counter() - start)

        prefetcher: Prefetcher[int, tuple[SplitBatch, LoadTimes]] = Prefetcher(
            sample,
            self._fetch,
            depth=self._prefetch,
            threads=1,
            max_bytes=self._max_bytes,
            size=lambda loaded: split_bytes(loaded[0]),
        )
        yield from timed(prefetcher(range(first, stop)))

    def foresee(self, batches: int) -> np.ndarray:
        """Counts of the first batches, int64[b, layers + 1, 5], which are drawn for them. At least
        one, at most as many as an epoch has. Collective."""
        order = self.plan.order(0)
        numbers = range(min(batches, self.plan.num_batches))
        return np.stack([self.sample(order, BatchIndex(0, n)).counts() for n in numbers])

    def load(self, number: int) -> SplitBatch:
        """This rank's part of a batch of the first epoch, ready to compute. Collective."""
        batch = self.sample(self.plan.order(0), BatchIndex(0, number))
        return self._fetch((batch, LoadTimes()))[0]

    def sample(self, order: np.ndarray, index: BatchIndex) -> SplitBatch:
        """This rank's part of a batch, without rows; ``order`` is that of its epoch. Collective."""
        positions = self.plan.batch(order, index.batch)
        if self._cooperation.data_parallel:
            seeds = self.plan.share(positions, self._cooperation.exchange.rank)
        else:  # a seed is computed where it is owned
            mine = self.plan.homes[positions] == self._cooperation.exchange.rank
            seeds = self.plan.global_ids[positions[mine]]
        return self._cooperation.sample(index, seeds, len(positions))

    def _fetch(self, loaded: tuple[SplitBatch, LoadTimes]) -> tuple[SplitBatch, LoadTimes]:
        batch, times = loaded
        times.fetch_began = time.perf_counter()
        own = self._features.here(self._inputs, batch.input_nodes, leave=self._leave)
        labels = self._labels.fetch if self._cooperation.data_parallel else self._labels.here
        batch.node = {self._target: labels(self._target, batch.seeds)}  # type: ignore[dict-item]
        route = batch.layers[0].route
        if route is None:
            batch.x = own
        elif isinstance(own, FeatureRows):
            batch.x = self._shuffler.left(own, route)
        else:
            batch.x = self._shuffler.whole(own, route)
        self.counts.append(batch.counts())
        times.fetch = time.perf_counter() - times.fetch_began
        return batch, times


def split_bytes(batch: SplitBatch) -> int:
    """Bytes of the tensors that a part holds."""
    held = [batch.seeds, batch.input_nodes, batch.x, *batch.node.values()]
    for route in [layer.route for layer in batch.layers if layer.route is not None]:
        held += [route.send, route.order]
    for halves in [layer.halves for layer in batch.layers if layer.halves is not None]:
        held += [halves.back, halves.inner.rows, halves.outer.rows]
    blocks = sum(block.nbytes for layer in batch.layers for block in layer.blocks())
    return blocks + sum(t.nbytes for t in held if t is not None)
