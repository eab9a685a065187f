"""``SplitStrategy``: the owner of a vertex computes its rows once, for all ranks."""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist.cluster import Exchange, LocalExchange, Traffic, World, share
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import Counts, FeatureStore
from gnn_dist.graph import Graph
from gnn_dist.loading import Homes, draws_in_bulk
from gnn_dist.nn.tasks import Task
from gnn_dist.sampling import NeighborSampler, PartitionedTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import INPUTS, epoch_plan, reads_in_place
from gnn_dist.strategies.base import Sizes
from gnn_dist.strategies.checks import check_values
from gnn_dist.strategies.data import (
    Parts,
    build_parts,
    build_task,
    sum_counts,
    try_model,
    width_of,
)
from gnn_dist.strategies.data_sizes import sampled_sizes
from gnn_dist.strategies.inference import Inference, as_input, open_inference
from gnn_dist.strategies.layered import check_empty_layers, has_layers
from gnn_dist.strategies.seeds import SeedStrategy
from gnn_dist.strategies.split.counts import EDGES, LayerCounts, beside
from gnn_dist.strategies.split.load import SplitLoader
from gnn_dist.strategies.split.plan import BATCHES, SplitPlan, plan_split
from gnn_dist.strategies.split.sample import Cooperation, SplitBatch
from gnn_dist.strategies.split.shuffle import Shuffler
from gnn_dist.strategies.split.trial import TRIES, Trial, Unsent
from gnn_dist.strategies.timing import busy

_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Moved:
    """What moves between ranks in training, each over an exchange of its own; counted from here on.

    Attributes:
        sampling: ids of frontiers; used by the loader's first thread.
        asking: neighbours for data-parallel layers; used by that thread too.
        inputs: feature rows; used by the loader's second thread.
        labels: targets of seeds of data-parallel layers; used by that thread too.
        rows: hidden rows and their gradients; used by the calling thread.
    """

    sampling: Exchange
    asking: Exchange
    inputs: Exchange
    labels: Exchange
    rows: Exchange
    _before: list[Traffic] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_before", [e.traffic.copy() for e in self._exchanges()])

    def _exchanges(self) -> list[Exchange]:
        return [self.sampling, self.asking, self.inputs, self.labels, self.rows]

    def since(self) -> list[Traffic]:
        """Of this rank, in the order of the attributes."""
        return [e.traffic.since(b) for e, b in zip(self._exchanges(), self._before, strict=True)]

    def bytes(self) -> dict[str, int]:
        """Sent by this rank."""
        sampling, asking, inputs, labels, rows = self.since()
        return {
            "sampling_bytes": sampling.bytes_sent + asking.bytes_sent,
            "sampling_rounds": sampling.rounds + asking.rounds,
            "input_bytes": inputs.bytes_sent,
            "label_bytes": labels.bytes_sent,
            "shuffle_bytes": rows.bytes_sent,
        }


class SplitStrategy(SeedStrategy[SplitBatch]):
    """Every vertex of a global batch is sampled, loaded and computed by its owner alone.

    Loss and gradients equal those of ``data`` to reassociation of sums. A rank whose part of a
    layer is empty takes part with no rows. The model has ``layers`` and
    ``forward_layer(i, x, block)``. ``foreseen`` are this rank's counts of the first batches, int64
    [batches, layers + 1, 5]; ``features`` counts what the loader reads.
    """

    name = "split"

    def __init__(
        self,
        job: Config,
        model: nn.Module,
        task: Task,
        loader: SplitLoader,
        moved: Moved,
        foreseen: np.ndarray,
        features: FeatureStore,
        inference: Inference,
        world: World,
    ) -> None:
        super().__init__(job, model, task, loader, inference, world)
        self._moved = moved
        self._shuffler = Shuffler(moved.rows)
        self._foreseen = foreseen
        self._counts = loader.counts
        self._split_loader = loader
        self._features = features

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for whatever of a job cannot be built over this graph."""
        checked_parts(job, graph)
        check_values(job, graph, build_task(job, graph))

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the job's first global batches: those of one process, shared by the workers."""
        whole = PartitionedGraph.from_graph(graph)
        parts = checked_parts(job, whole)
        width = width_of(whole, INPUTS)
        return sampled_sizes(job, whole, parts.model, parts.sampler, width, shared=True)

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> SplitPlan:
        """What every rank will compute and send for the first batches."""
        return plan_split(job, graph, checked_parts(job, graph).sampler)

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "SplitStrategy":
        """The strategy of a job on this rank. Collective."""
        parts = checked_parts(job, graph)
        placement = world.placement(graph.num_parts, job.cluster.placement)
        assert isinstance(parts.sampler, NeighborSampler)
        own = everywhere = PartitionedTopology(graph, placement, None)
        asking: Exchange = LocalExchange()
        labels: Exchange = LocalExchange()
        if job.split.data_parallel_layers:
            labels = world.exchange("labels of data-parallel layers")
            asking = world.exchange("sampling of data-parallel layers")
            everywhere = PartitionedTopology(graph, placement, asking)
        # Exchanges of its own: those of the world carry evaluation too, which is not counted.
        sampling = share(world.exchange("cooperative sampling"), placement)
        inputs = share(world.exchange("input rows"), placement)
        rows = share(world.exchange("rows between layers"), placement)
        cooperation = Cooperation(
            parts.sampler,
            own,
            everywhere,
            Homes.of(graph.offsets, placement),
            sampling,
            job.seed,
            job.split.data_parallel_layers,
            overlap=placement.num_hosts > 1,  # over a network, layers are cut in two
        )
        features = FeatureStore(graph, placement, world.features)
        loader = SplitLoader(
            epoch_plan(job, graph, placement),
            cooperation,
            features,
            FeatureStore(graph, placement, labels if labels.size > 1 else world.features),
            inputs,
            inputs=INPUTS,
            target=job.task.target,
            prefetch=job.loader.prefetch,
            max_bytes=job.loader.max_bytes,
            leave=reads_in_place(job, world),
        )
        foreseen = loader.foresee(BATCHES)
        return cls(
            job,
            parts.model,
            build_task(job, graph),
            loader,
            Moved(sampling, asking, inputs, labels, rows),
            foreseen,
            features,
            open_inference(job, world, graph, parts.full_sampler),
            world,
        )

    def _propagate(self, batch: SplitBatch) -> None:
        output = self._forward(batch)
        # Without seeds here, the gradients of other ranks' seeds still come through.
        loss = self._loss(output, batch) if batch.seeds.numel() else 0.0 * output.sum()
        if not loss.requires_grad:
            raise InputError(
                "model: its output for no destinations has no gradient, and under the strategy "
                "split other ranks wait for this one to go back; compute it from the input rows "
                "in any case, or use the strategy data"
            )
        loss.backward()

    def _forward(self, batch: SplitBatch) -> Tensor:
        assert batch.x is not None
        model: Any = self.model
        h: Any = as_input(batch.x, self._device, self._dtype)
        with self._precision():
            for k, layer in enumerate(batch.layers):
                run = functools.partial(model.forward_layer, k)
                if k > 0 and layer.route is not None and layer.halves is not None:
                    h = self._shuffler.halves(h, layer.route, layer.halves, run, self._here)
                    continue
                if k > 0 and layer.route is not None:
                    h = self._shuffler.whole(h, layer.route)
                h = run(h, self._here(layer.block))
        output: Tensor = h
        return output

    def trial(self, batches: int) -> Trial:
        """This rank's part of the last of the first ``batches``, tried. Collective."""
        found = []
        for number in range(min(batches, self.num_batches())):
            self._moved = dataclasses.replace(self._moved)
            batch, load = busy(functools.partial(self._split_loader.load, number), _CPU)
            sampling, asking, inputs, labels, _ = self._moved.since()
            shuffler, took = self._shuffler, []
            for _ in range(TRIES):
                self._shuffler = unsent = Unsent()
                took.append(self.try_out(batch))
            self._shuffler = shuffler
            counted = batch.counts().sum(axis=0)
            found.append(
                Trial(
                    edges=int(counted[EDGES]),
                    rows=batch.input_nodes.numel(),
                    load=load,
                    compute=min(took),
                    load_bytes=asking.bytes_sent + labels.bytes_sent,
                    load_rounds=sum(t.rounds + t.size_rounds for t in (asking, labels)),
                    near_bytes=sampling.bytes_sent + inputs.bytes_sent,
                    step_bytes=unsent.bytes,
                    near_rounds=sampling.rounds + sampling.size_rounds + inputs.rounds,
                    shuffles=tuple(unsent.larger),
                    gradient_bytes=self.gradient_bytes(),
                )
            )
        self._moved = dataclasses.replace(self._moved)
        self._counts.clear()
        self._features.counts = Counts()
        return found[-1]

    def communication(self) -> dict[str, Any]:
        gather = self._world.control.all_gather_object
        mine = {
            "features": self._features.counts.as_dict(),
            **self._moved.bytes(),
            "gradient_bytes": self._world.gradients.traffic.bytes_sent,
        }
        out: dict[str, Any] = sum_counts(gather(mine))
        if self.compared:
            out["compared"] = list(self.compared)
        if self._counts:
            foreseen, measured = gather(self._foreseen), gather(np.stack(self._counts))
            out["layers"] = beside(LayerCounts.gathered(foreseen), LayerCounts.gathered(measured))
        return out


def checked_parts(job: Config, graph: PartitionedGraph) -> Parts:
    """The parts of a job, where they can be split; else an ``InputError``."""
    parts = build_parts(job, graph)
    if not (isinstance(parts.sampler, NeighborSampler) and draws_in_bulk(parts.sampler)):
        raise InputError(
            f"config sampler.name: the strategy split draws vertex by vertex, and "
            f"{job.sampler.name!r} draws whole batches; use neighbor or labor, or a subclass that "
            "defines draw and not sample, or the strategy data"
        )
    if not has_layers(parts.model):
        raise InputError(
            f"config model.name: {job.model.name!r} has no layers and forward_layer(i, x, block), "
            "between which the strategy split moves rows; add them, or use the strategy data"
        )
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in parts.model.modules()):
        raise InputError(
            "config model: batch norm takes its statistics over the rows that a rank computes, "
            "and under the strategy split these are others than under data, possibly a single one; "
            "use layer norm, or the strategy data"
        )
    layers, depth = job.split.data_parallel_layers, len(job.sampler.fanouts)
    if layers >= depth:
        raise InputError(
            f"config split.data_parallel_layers: {layers} of {depth} layers leaves none to split; "
            "give fewer, or use the strategy data"
        )
    for key, idle, why in (
        ("cluster.replication", 1, "a vertex has one owner"),
        ("sampler.engine", "fused", "each rank draws for its own vertices"),
        ("sampler.bulk", 1, "batches are drawn one by one"),
        ("cache.window", 1, "no row of another rank is asked for"),
        ("cache.ahead", 0, "no row of another rank is asked for"),
    ):
        section, name = key.split(".")
        value = getattr(getattr(job, section), name)
        if value != idle:
            raise InputError(
                f"config {key}: {value} is of no use to the strategy split, where {why}; set "
                f"{idle}, or use the strategy data"
            )
    if job.cache.name != "none":
        raise InputError(
            f"config cache.name: the strategy split reads no row of another rank, so that a cache "
            f"({job.cache.name!r}) keeps nothing; set none"
        )
    try_model(job, graph, parts)
    width = width_of(graph, INPUTS)
    check_empty_layers(job.model.name, parts.model, width, graph, parts.sampler, depth)
    return parts
