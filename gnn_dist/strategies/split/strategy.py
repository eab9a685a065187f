"""``SplitStrategy``: the owner of a vertex computes its rows once, for all ranks."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gnn_dist import rng
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import Exchange, World, share
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureStore
from gnn_dist.graph import Graph
from gnn_dist.loading import Homes, LoadTimes
from gnn_dist.nn.tasks import Task
from gnn_dist.sampling import NeighborSampler, PartitionedTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import INPUTS, epoch_plan
from gnn_dist.strategies.base import Sizes, StepReport
from gnn_dist.strategies.checks import check_values
from gnn_dist.strategies.data import (
    DataStrategy,
    Parts,
    build_parts,
    build_task,
    gather_shares,
    sum_counts,
)
from gnn_dist.strategies.gradients import GradientBuffer
from gnn_dist.strategies.inference import Inference, open_inference
from gnn_dist.strategies.split.load import SplitLoader
from gnn_dist.strategies.split.sample import Cooperation, SplitBatch
from gnn_dist.strategies.split.shuffle import shuffle

Share = tuple[SplitBatch, LoadTimes]


class SplitStrategy:
    """Every vertex of a global batch is sampled, loaded and computed by its owner alone.

    Loss and gradients equal those of ``data`` to reassociation of sums. A rank whose part of a
    layer is empty takes part with no rows.

    Args:
        model: has ``layers`` and ``forward_layer(i, x, block)``.
        task: gives the loss of outputs and targets.
        target: the node tensor to predict.
        loader: this rank's parts.
        rows: carries hidden rows, forward and backward; used by the calling thread alone.
        inference: exact predictions for evaluation.
        world: the ranks; its ``gradients`` and ``control`` are used by the calling thread alone.
        seed: seeds torch's own generator at every step, for models that draw from it.
        dtype: of the model.
        autocast: run the model in bfloat16 under autocast.
    """

    name = "split"

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        target: str,
        loader: SplitLoader,
        rows: Exchange,
        features: FeatureStore,
        inference: Inference,
        world: World,
        seed: int,
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
    ) -> None:
        self.model = model
        self.loader = loader
        self._task = task
        self._target = target
        self._rows = rows
        self._features = features
        self._inference = inference
        self._world = world
        self._device = world.device
        self._seed = seed
        self._dtype = dtype
        self._autocast = autocast
        self._gradients = GradientBuffer(model.parameters())

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for whatever of a job cannot be built over this graph."""
        checked_parts(job, graph)
        check_values(job, graph, build_task(job, graph))

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the job's first global batches: those of one process, shared by the workers."""
        return DataStrategy.sizes(job, graph)

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "SplitStrategy":
        """The strategy of a job on this rank. Collective."""
        parts = checked_parts(job, graph)
        placement = world.placement(graph.num_parts, job.cluster.placement)
        assert isinstance(parts.sampler, NeighborSampler)
        own = everywhere = PartitionedTopology(graph, placement, None)
        if job.split.data_parallel_layers:
            asking = world.exchange("sampling of data-parallel layers")
            everywhere = PartitionedTopology(graph, placement, asking)
        cooperation = Cooperation(
            parts.sampler,
            own,
            everywhere,
            Homes.of(graph.offsets, placement),
            world.sampling,
            job.seed,
            job.split.data_parallel_layers,
        )
        # The loader's stores and its shuffle take turns on one thread: one exchange serves all.
        features = FeatureStore(graph, placement, world.features)
        loader = SplitLoader(
            epoch_plan(job, graph, placement),
            cooperation,
            features,
            FeatureStore(graph, placement, world.features),
            share(world.features, placement),
            inputs=INPUTS,
            target=job.task.target,
            prefetch=job.loader.prefetch,
            max_bytes=job.loader.max_bytes,
        )
        dtype = torch.float64 if job.train.precision == "float64" else torch.float32
        return cls(
            parts.model.to(world.device, dtype),
            build_task(job, graph),
            job.task.target,
            loader,
            share(world.exchange("rows between layers"), placement),
            features,
            open_inference(job, world, graph, parts.full_sampler),
            world,
            job.seed,
            dtype,
            autocast=job.train.precision == "bfloat16",
        )

    def num_batches(self) -> int:
        return self.loader.plan.num_batches

    def shares(self, epoch: int, first: int, stop: int) -> Iterator[tuple[BatchIndex, Share]]:
        for batch, times in self.loader.epoch(epoch, first, stop):
            yield batch.index, (batch, times)

    def backward(self, share: Share) -> StepReport:
        batch, times = share
        start = time.perf_counter()
        self.model.train()
        self._gradients.zero()
        torch.manual_seed(
            rng.fold(self._seed, rng.Stream.MODEL, *batch.index, self._world.rank) >> 1
        )
        output = self._forward(batch)
        if batch.seeds.numel():
            target = batch.node[self._target].to(self._device, non_blocking=True)
            loss_sum = self._task.loss_sum(output, target) / batch.global_seeds
            self._gradients.scalars[0] = loss_sum.detach()
        else:  # the gradients of other ranks' seeds still come through here
            loss_sum = 0.0 * output.sum()
        if loss_sum.requires_grad:
            loss_sum.backward()
        computed = time.perf_counter()
        self._gradients.sum_over(self._world.gradients)
        return StepReport(
            loss=float(self._gradients.scalars[0]),
            seeds=batch.global_seeds,
            seconds={
                "sample": times.sample,
                "fetch": times.fetch,
                "wait": times.wait,
                "compute": computed - start,
                "synchronise": time.perf_counter() - computed,
            },
        )

    def _forward(self, batch: SplitBatch) -> Tensor:
        assert batch.x is not None
        model: Any = self.model
        h = batch.x.to(self._device, non_blocking=True).to(self._dtype)
        precision: Any = contextlib.nullcontext()
        if self._autocast:
            precision = torch.autocast(self._device.type, dtype=torch.bfloat16)
        with precision:
            for k, layer in enumerate(batch.layers):
                if k > 0 and layer.route is not None:
                    h = shuffle(h, layer.route, self._rows)
                block = layer.block
                if self._device.type != "cpu":
                    block = block.to(self._device, non_blocking=True)
                h = model.forward_layer(k, h, block)
        return h.float() if self._autocast else h

    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        self.model.eval()
        return gather_shares(
            self._inference.predict(self.model, split, self._target), self._world.control
        )

    def communication(self) -> dict[str, Any]:
        traffic = self._world.sampling.traffic
        mine = {
            "features": self._features.counts.as_dict(),
            "sampling_bytes": traffic.bytes_sent,
            "sampling_rounds": traffic.rounds,
            "input_bytes": self._world.features.traffic.bytes_sent,
            "shuffle_bytes": self._rows.traffic.bytes_sent,
            "gradient_bytes": self._world.gradients.traffic.bytes_sent,
        }
        return sum_counts(self._world.control.all_gather_object(mine))


def checked_parts(job: Config, graph: PartitionedGraph) -> Parts:
    """The parts of a job, where they can be split; else an ``InputError``."""
    parts = build_parts(job, graph)
    if not isinstance(parts.sampler, NeighborSampler):
        raise InputError(
            f"config sampler.name: the strategy split draws vertex by vertex, and "
            f"{job.sampler.name!r} draws whole layers; use neighbor or labor, or the strategy data"
        )
    if not (hasattr(parts.model, "layers") and hasattr(parts.model, "forward_layer")):
        raise InputError(
            f"config model.name: {job.model.name!r} has no layers and forward_layer(i, x, block), "
            "between which the strategy split moves rows; add them, or use the strategy data"
        )
    layers, depth = job.split.data_parallel_layers, len(job.sampler.fanouts)
    if layers >= depth:
        raise InputError(
            f"config split.data_parallel_layers: {layers} of {depth} layers leaves none to split; "
            "give fewer, or use the strategy data"
        )
    if job.cache.name != "none":
        raise InputError(
            f"config cache.name: the strategy split reads no row of another rank, so that a cache "
            f"({job.cache.name!r}) keeps nothing; set none"
        )
    return parts
