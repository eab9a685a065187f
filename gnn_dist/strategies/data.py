"""Data parallelism: seeds dealt to ranks, each computes its own blocks, gradients summed."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from gnn_dist import plugins
from gnn_dist.batch import MiniBatch
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import BUILTIN as CACHES
from gnn_dist.features import CachePolicy
from gnn_dist.graph import Graph
from gnn_dist.loading import Sampler
from gnn_dist.nn import build_model
from gnn_dist.nn.tasks import Task
from gnn_dist.sampling import BUILTIN as SAMPLERS
from gnn_dist.sampling import NeighborSampler
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import INPUTS, Access, open_access
from gnn_dist.strategies.base import Sizes
from gnn_dist.strategies.checks import check_values
from gnn_dist.strategies.data_plan import DataPlan, plan_data
from gnn_dist.strategies.data_sizes import sampled_sizes
from gnn_dist.strategies.inference import FullSampler, Inference, as_input, open_inference
from gnn_dist.strategies.layered import check_model
from gnn_dist.strategies.seeds import SeedStrategy


class DataStrategy(SeedStrategy[MiniBatch]):
    """Every rank computes the blocks of its own seeds.

    A rank without seeds takes part with weight 0. The gradients equal those of one process to
    reassociation of the sums. ``access`` has this rank's shares, and what they cost.
    """

    name = "data"

    def __init__(
        self,
        job: Config,
        model: nn.Module,
        task: Task,
        access: Access,
        inference: Inference,
        world: World,
    ) -> None:
        super().__init__(job, model, task, access.loader, inference, world)
        self._access = access

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for whatever of a job cannot be built over this graph."""
        try_model(job, graph, build_parts(job, graph))
        check_values(job, graph, build_task(job, graph))

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> DataPlan:
        """Rows that every rank will ask of other hosts, foreseen in this process."""
        sampler = build_parts(job, graph).sampler
        return plan_data(
            job,
            graph,
            sampler,
            lambda: plugins.build("cache", job.cache.name, job.cache.args, CACHES),
        )

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the job's first global batches, sampled in this process."""
        whole = PartitionedGraph.from_graph(graph)
        parts = build_parts(job, whole)
        return sampled_sizes(job, whole, parts.model, parts.sampler, width_of(whole, INPUTS))

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "DataStrategy":
        """The strategy of a job on this rank. Collective."""
        parts = build_parts(job, graph)
        return assemble(
            job, world, graph, parts.model, parts.sampler, parts.full_sampler, parts.cache
        )

    def _propagate(self, batch: MiniBatch) -> None:
        if not batch.seeds.numel():
            return
        x = as_input(batch.x, self._device, self._dtype)
        with self._precision():
            output = self.model(x, [self._here(block) for block in batch.blocks])
        self._loss(output, batch).backward()

    def communication(self) -> dict[str, Any]:
        gather = self._world.control.all_gather_object
        foreseen = [f for f in gather(self._access.foreseen()) if f is not None]
        return {
            **sum_counts(gather(self._access.counts())),
            "gradient_bytes": sum(gather(self._world.gradients.traffic.bytes_sent)),
            **({"cache": foreseen} if foreseen else {}),
            **({"compared": list(self.compared)} if self.compared else {}),
        }


def sum_counts(values: list[Any]) -> Any:
    """Sum nested dictionaries of numbers key by key."""
    if isinstance(values[0], dict):
        return {key: sum_counts([value[key] for value in values]) for key in values[0]}
    return sum(values)


@dataclass(frozen=True, eq=False)
class Parts:
    """The exchangeable parts of a job, built; ``full_sampler`` takes all neighbours."""

    model: nn.Module
    sampler: Sampler
    full_sampler: FullSampler
    cache: CachePolicy


def build_parts(job: Config, graph: PartitionedGraph) -> Parts:
    """Everything that a job names; an ``InputError`` says which of it is wrong."""
    model = build_model(
        job.model.name,
        job.model.args,
        in_features=width_of(graph, INPUTS),
        out_features=build_task(job, graph).out_features,
        num_layers=len(job.sampler.fanouts),
        seed=job.seed,
    )
    sampler = build_sampler(job, _edge_tensors(job, model, graph))
    everything = NeighborSampler(
        [-1] * len(job.sampler.fanouts),
        edge_ids=getattr(sampler, "edge_ids", False),
        edge=getattr(sampler, "edge", ()),
    )
    cache = plugins.build("cache", job.cache.name, job.cache.args, CACHES)
    plugins.check_has("cache", job.cache.name, cache, ("moves", "start", "keep"))
    return Parts(model, sampler, everything, cache)


def try_model(job: Config, graph: PartitionedGraph, parts: Parts) -> None:
    """Raise ``InputError`` where a model does not do what every strategy takes for granted."""
    width, depth = width_of(graph, INPUTS), len(job.sampler.fanouts)
    check_model(job.model.name, parts.model, width, graph, parts.sampler, depth)


def build_sampler(job: Config, edge: tuple[str, ...] = (), edge_ids: bool = False) -> Sampler:
    """The sampler of a job; it need not take what the job leaves as it is."""
    settings = job.sampler
    own = {
        "fanouts": settings.fanouts,
        "replace": settings.replace,
        "weights": settings.weights,
        "edge": edge,
        "edge_ids": edge_ids,
    }
    part = plugins.resolve("sampler", settings.name, SAMPLERS)
    taken = plugins.keywords(part)
    needless = {
        "fanouts": own["fanouts"],
        "replace": False,
        "weights": None,
        "edge": (),
        "edge_ids": False,
    }
    passed = {
        k: v for k, v in own.items() if taken is None or k in taken or v != needless[k]
    } | settings.args
    sampler: Sampler = plugins.build("sampler", settings.name, passed, SAMPLERS)
    plugins.check_has("sampler", settings.name, sampler, ("sample",))
    return sampler


def assemble(
    job: Config,
    world: World,
    graph: PartitionedGraph,
    model: nn.Module,
    sampler: Sampler,
    full_sampler: FullSampler,
    cache: CachePolicy | None = None,
) -> DataStrategy:
    """The strategy for a model and samplers at hand."""
    access = open_access(job, world, graph, sampler, cache)
    inference = open_inference(job, world, graph, full_sampler)
    return DataStrategy(job, model, build_task(job, graph), access, inference, world)


def build_task(job: Config, graph: PartitionedGraph) -> Task:
    """The task of a job, checked against the target tensor of the graph."""
    target = job.task.target
    if target not in graph.schema.node:
        names = ", ".join(graph.schema.node) or "none"
        raise InputError(
            f"config task.target: the graph has no node tensor {target!r}; it has: {names}"
        )
    return Task.build(job.task.kind, graph.schema.node[target], graph.info, job.task.loss)


def _edge_tensors(job: Config, model: nn.Module, graph: PartitionedGraph) -> tuple[str, ...]:
    """The edge tensors that the blocks of a model must carry."""
    wanted = tuple(getattr(model, "edge_tensors", ()))
    for name in wanted:
        if name not in graph.schema.edge:
            names = ", ".join(graph.schema.edge) or "none"
            raise InputError(
                f"config model.name: {job.model.name!r} reads the edge tensor {name!r}, which the "
                f"graph lacks (it has: {names}); for gcn set dataset.transforms to [gcn_norm]"
            )
    return wanted


def width_of(graph: PartitionedGraph, name: str) -> int:
    """Numbers in one row of a node tensor."""
    if name not in graph.schema.node:
        raise InputError(f"graph: has no node tensor {name!r}; models need one as features")
    shape = graph.schema.node[name].shape
    if len(shape) != 1 or shape[0] < 1:
        was = "".join(f", {n}" for n in shape)
        raise InputError(
            f"graph.node.{name}: has shape [N{was}]; models take features [N, F] with F >= 1, so "
            "give it one row of numbers a node"
        )
    return shape[0]
