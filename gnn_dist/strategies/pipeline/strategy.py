"""Pipeline parallelism: layers dealt to ranks, micro-batches of sub-graphs flow through.

Every rank holds all weights (they are small beside activations) and computes the stages that the
schedule gives it; gradients of all stages are summed over the ranks, so that every rank takes the
same optimiser step and a new cut of the layers moves nothing.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist import partitioners
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import World
from gnn_dist.config import Config, Pipeline
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureStore
from gnn_dist.graph import Graph
from gnn_dist.nn import Task
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.sampling import PartitionedTopology
from gnn_dist.storage import PartitionedGraph, assemble
from gnn_dist.strategies.base import Sizes, StepReport
from gnn_dist.strategies.checks import check_values
from gnn_dist.strategies.data import INPUTS, width_of
from gnn_dist.strategies.gradients import GradientBuffer
from gnn_dist.strategies.inference import gather_shares
from gnn_dist.strategies.pipeline.balance import worth_replanning
from gnn_dist.strategies.pipeline.batches import SubgraphBatches, SubgraphSettings
from gnn_dist.strategies.pipeline.bubbles import Ahead, Bubbles
from gnn_dist.strategies.pipeline.executor import PipelineExecutor, Step
from gnn_dist.strategies.pipeline.forecast import (
    PipelinePlan,
    consider,
    foresee,
    memory_limit,
)
from gnn_dist.strategies.pipeline.generators import generate
from gnn_dist.strategies.pipeline.job import check_table, model_and_task, read_table
from gnn_dist.strategies.pipeline.link import GroupLink, Link, NoLink, measure_link
from gnn_dist.strategies.pipeline.plan import Candidate, Profile, candidate, warn_if_too_large
from gnn_dist.strategies.pipeline.profile import LayerCosts, measure
from gnn_dist.strategies.pipeline.schedule import Schedule
from gnn_dist.strategies.pipeline.simulate import Span, Timeline, simulate
from gnn_dist.strategies.pipeline.stages import DeepMicro, DeepPipelineStage
from gnn_dist.strategies.timing import now

_WATCHED = 4  # steps whose busy times decide on a new cut
_CLOCKS = 0.5  # seconds by which only the clocks of two machines differ after a barrier


@dataclass(slots=True)
class PipelineBatch:
    """A global batch on this rank: all its micro-batches, and how long they took to build."""

    micros: list[DeepMicro]
    seeds: int
    seconds: float


class PipelineStrategy:
    """Computes a global batch of m micro-batches over the stages of all ranks.

    Args:
        batches: what the micro-batches are.
        schedule: a fixed table, or None to choose by measurement at the first batch.
    """

    name = "pipeline"

    def __init__(
        self,
        model: DeepGNN,
        task: Task,
        batches: SubgraphBatches,
        features: FeatureStore,
        world: World,
        settings: Pipeline,
        schedule: Schedule | None = None,
    ) -> None:
        self.model = model
        self.candidates: list[Candidate] = []
        self.bounds: list[int] | None = None
        self.last_step: Step | None = None
        self._task, self._batches, self._features = task, batches, features
        self._world, self._settings, self._table = world, settings, schedule
        self._chosen: tuple[str, int] | None = None
        self._costs: LayerCosts | None = None
        self._foreseen: Timeline | None = None
        self._link: Link = GroupLink(world) if world.size > 1 else NoLink()
        self._bubbles = Bubbles()
        self._gradients = GradientBuffer(model.parameters())
        self._heaviest: tuple[float, Schedule, Profile] | None = None
        self._busy: list[np.ndarray] = []

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for whatever of a job cannot be built over this graph."""
        model, task = model_and_task(job, graph)
        check_values(job, graph, task)
        settings = job.pipeline
        table = read_table(settings)
        ranks, layers = max(1, job.cluster.workers), model.config.layers
        if settings.schedule == "chimera" and ranks % 2:
            raise InputError(
                f"config pipeline.schedule: chimera needs an even number of workers, not {ranks}; "
                "use 1f1b"
            )
        if ranks > layers:
            raise InputError(
                f"config cluster.workers: {ranks} workers for {layers} blocks; give each at least "
                "one"
            )
        if table is not None and table.num_stages > layers:
            raise InputError(
                f"config pipeline.table: {table.num_stages} stages for {layers} blocks; give each "
                "stage at least one"
            )
        if (
            table is None
            and settings.schedule == "interleaved"
            and (ranks * settings.chunks > layers)
        ):
            raise InputError(
                f"config pipeline.chunks: {settings.chunks} stages on each of {ranks} workers for "
                f"{layers} blocks; use at most {layers // ranks}, so that each stage has a block"
            )

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "PipelineStrategy":
        """The strategy of a job on this rank. Collective."""
        model, task = model_and_task(job, graph)
        model.to(world.device)
        settings = job.pipeline
        placement = world.placement(graph.num_parts, job.cluster.placement)
        features = FeatureStore(graph, placement, world.features)
        topology = PartitionedTopology(graph, placement, world.sampling)
        batches = SubgraphBatches(
            graph,
            topology,
            features,
            job.sampler.name,
            SubgraphSettings.of(job.sampler),
            job.seed,
            job.task.target,
            INPUTS,
        )
        table = read_table(settings)
        if table is not None:
            check_table(table, batches, max(1, job.cluster.workers))
        return cls(model, task, batches, features, world, settings, table)

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> PipelinePlan:
        """Measure the first global batch in this process and simulate every schedule."""
        return cls._foresee(job, graph)[0]

    @classmethod
    def _foresee(
        cls, job: Config, graph: PartitionedGraph
    ) -> tuple[PipelinePlan, "PipelineStrategy", PipelineBatch]:
        strategy = cls.build(job, World.local(), graph)
        _, share = next(iter(strategy.shares(0, 0, 1)))
        ranks = max(1, job.cluster.workers)
        profile = strategy._profile(share.micros)
        plan = foresee(profile, ranks, job.pipeline, strategy._table)
        return plan, strategy, share

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the first global batch, and of what the schedule that would run holds."""
        if job.sampler.name == "circuits":
            cut = PartitionedGraph.from_graph(graph)
        else:  # micro-batches are parts
            name, args, parts = job.partition.name, job.partition.args, job.num_parts
            assignment = partitioners.partition(graph, parts, name, args, seed=job.seed)
            cut = assemble(graph, assignment, parts)
        plan, strategy, share = cls._foresee(job, cut)
        nodes = sum(m.num_nodes for m in share.micros)
        edges = sum(m.num_edges for m in share.micros)
        model, width = strategy.model, width_of(cut, INPUTS)
        return Sizes(
            steps_an_epoch=strategy.num_batches(),
            batch=f"{len(share.micros)} micro-batches of {job.sampler.name} on {plan.ranks} "
            f"workers by {plan.chosen.name}: {share.seeds:,} seeds; {nodes:,} nodes; {edges:,} "
            "edges",
            edges=edges,
            rows=nodes,
            row_bytes=width * model.stack.gain.element_size(),
            parameters=sum(p.numel() for p in model.parameters()),
            batch_bytes=sum(m.num_bytes for m in share.micros),
            activation_bytes=max(plan.chosen.timeline.peak_bytes) + model.stack.workspace_bytes,
        )

    def num_batches(self) -> int:
        return self._batches.num_batches

    def shares(
        self, epoch: int, first: int, stop: int
    ) -> Iterator[tuple[BatchIndex, PipelineBatch]]:
        plans = self._batches.epoch(epoch)[:stop]
        ahead: Ahead | None = None
        try:
            for number in range(first, len(plans)):
                index = BatchIndex(epoch, number)
                start = time.perf_counter()
                jobs = ahead or Ahead(self._jobs(index, plans[number]), self._bubbles)
                micros = jobs.results()
                seconds = time.perf_counter() - start
                ahead = None
                if number + 1 < len(plans):
                    after = BatchIndex(epoch, number + 1)
                    ahead = Ahead(self._jobs(after, plans[number + 1]), self._bubbles)
                yield index, PipelineBatch(micros, sum(p.seeds for p in plans[number]), seconds)
        finally:
            if ahead is not None:
                ahead.cancel()

    def _jobs(self, index: BatchIndex, plans: Sequence[Any]) -> list[Any]:
        seeds = sum(p.seeds for p in plans)
        # before the first plan any rank may get any stage
        ends = self._ends()
        return [
            lambda p=p: self._batches.build(
                p, index, seeds, self.model, inputs=ends[0], targets=ends[1]
            )
            for p in plans
        ]

    def _ends(self) -> tuple[bool, bool]:
        """Whether this rank reads features, and targets; all do where the stages may change."""
        fixed = self._chosen is not None and self._chosen[0] != "chimera"
        if self._world.size == 1 or self.bounds is None or not fixed:
            return True, True
        return self._world.rank == 0, self._world.rank == self._world.size - 1

    def backward(self, share: PipelineBatch) -> StepReport:
        start = time.perf_counter()
        self.model.train()
        executor = self._executor(share)
        self._gradients.zero()
        step = self.last_step = executor.run(share.micros)
        self._gradients.scalars[0] = step.loss
        computed = now(self._world.device)
        self._gradients.sum_over(self._world.gradients)
        self._watch(step)
        return StepReport(
            loss=float(self._gradients.scalars[0]),
            seeds=share.seeds,
            seconds={
                "sample": share.seconds,
                "fetch": 0.0,
                "wait": step.waited,
                "compute": computed - start - step.waited,
                "synchronise": time.perf_counter() - computed,
            },
        )

    def _executor(self, share: PipelineBatch) -> PipelineExecutor[DeepMicro]:
        profile = self._profile(share.micros)  # all ranks at once, as they will compute
        schedule = self._schedule(share)
        assert self.bounds is not None
        foreseen = self._foreseen = simulate(schedule, profile.stage_costs(self.bounds))
        peak = max(foreseen.peak_bytes)
        if self._heaviest is None or peak > self._heaviest[0]:
            self._heaviest = peak, schedule, profile
        stages = {
            s: DeepPipelineStage(
                self.model, self.bounds[s], self.bounds[s + 1], self._task.loss_sum
            )
            for s in schedule.stages_of(self._world.rank)
        }
        clock = partial(now, self._world.device)
        return PipelineExecutor(schedule, stages, self._link, self._bubbles, clock)

    def _schedule(self, share: PipelineBatch) -> Schedule:
        if self.bounds is None:
            self._choose(share)
        if self._table is not None:
            return self._table
        assert self._chosen is not None
        return generate(self._chosen[0], self._world.size, len(share.micros), self._chosen[1])

    def _choose(self, share: PipelineBatch) -> None:
        """The configured schedule, or the fastest of all by a measured profile; and its cut."""
        settings, size = self._settings, self._world.size
        self.candidates = consider(self._profile(share.micros), size, settings, self._table)
        best = self.candidates[0]
        if self._world.rank == 0:
            warn_if_too_large(best, memory_limit(settings))
        self.bounds = list(best.bounds)
        if self._table is None:
            chunks = best.schedule.num_stages // size
            self._chosen = (best.name.removesuffix(f"-{chunks}"), chunks)

    def _profile(self, micros: Sequence[DeepMicro]) -> Profile:
        """What layers and links cost for these micro-batches, measured once; rank 0's numbers
        everywhere, so that all ranks decide alike. Collective the first time."""
        if self._costs is None:
            mine = measure(self.model, micros, self._task.loss_sum)
            if self._world.size > 1:
                link = GroupLink(self._world)  # one of its own, whose traffic is no job's
                latency, bandwidth = measure_link(link, self._world.control)
                link.close()
                mine = replace(mine, latency=latency, bandwidth=bandwidth)
            self._costs = self._world.control.all_gather_object(mine)[0]
        return self._costs.profile([m.size for m in micros])

    def _watch(self, step: Step) -> None:
        """Cut the layers anew where the measured times of the ranks differ. Collective."""
        if self._world.size == 1 or not self._settings.replan or self.bounds is None:
            return
        seconds = np.zeros(len(self.bounds) - 1)
        for span in step.spans:
            seconds[span.action.stage] += span.end - span.start
        self._busy.append(seconds)
        if len(self._busy) < _WATCHED:
            return
        mine = np.median(self._busy, axis=0)
        self._busy.clear()
        every = np.array(self._world.control.all_gather_object(mine.tolist()))
        if worth_replanning(every.sum(axis=1)):
            assert self._heaviest is not None
            _, schedule, profile = self._heaviest
            limit = memory_limit(self._settings)
            spent = every.sum(axis=0).tolist()
            self.bounds = rebalance(profile, schedule, self.bounds, spent, limit)

    @torch.no_grad()
    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        self.model.eval()
        shares = self._batches.whole(split, self._world.size)
        mine = shares[self._world.rank]
        width = self._task.out_features
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        nobody = np.zeros(0, np.int64)
        turns = max(len(s) for s in shares) if self._batches.collective else len(mine)
        for k in range(turns):
            core, rest = mine[k] if k < len(mine) else (nobody, nobody)
            micro = self._batches.evaluate(core, rest, self.model)
            if core.size:
                batch = micro.batch
                assert batch.x is not None
                assert batch.blocks[0].ids is not None
                assert micro.target is not None
                output = self.model(batch.x, batch.blocks)
                parts.append((batch.blocks[0].ids[: core.size], output.cpu(), micro.target.cpu()))
        if parts:
            ids, outputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        else:
            ids = torch.zeros(0, dtype=torch.int64)
            outputs = torch.zeros(0, width, dtype=self.model.stack.gain.dtype)
            targets = self._features.fetch(self._batches.target, nobody)
        return gather_shares((ids, outputs, targets), self._world.control)

    @property
    def loss_sum(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of (outputs, targets), summed over seeds."""
        return self._task.loss_sum

    def timeline(self) -> Timeline | None:
        """The last global batch as it was, over all ranks (collective); None before the first."""
        if self.last_step is None:
            return None
        self._world.control.barrier()
        mine = (self.last_step.spans, self.last_step.peak_bytes, time.perf_counter())
        every = self._world.control.all_gather_object(mine)
        # another machine's clock began elsewhere; on this one a barrier is less exact than clocks
        shifts = [mine[2] - clock for _, _, clock in every]
        found = tuple(
            s.moved(shift if abs(shift) > _CLOCKS else 0.0)
            for (spans, _, _), shift in zip(every, shifts, strict=True)
            for s in (Span(*s) for s in spans)
        )
        return Timeline("measured", self._world.size, found, tuple(float(p) for _, p, _ in every))

    def _timing(self) -> dict[str, Any]:
        """What was foreseen beside what was measured, in the last global batch."""
        timeline, foreseen = self.timeline(), self._foreseen
        if timeline is None or foreseen is None:
            return {}
        found: dict[str, Any] = {}
        for kind, line in (("measured", timeline), ("simulated", foreseen)):
            found[f"pipeline_seconds_{kind}"] = line.makespan
            found[f"pipeline_bubble_percent_{kind}"] = 100 * line.bubble
            found[f"pipeline_peak_bytes_{kind}"] = max(line.peak_bytes)
        found["pipeline_schedule"] = foreseen.name
        found["pipeline_timelines"] = {
            "measured": timeline.as_dict(), "simulated": foreseen.as_dict()
        }  # fmt: skip
        return found

    def communication(self) -> dict[str, Any]:
        gather = self._world.control.all_gather_object
        sent = self._link.bytes_sent if isinstance(self._link, GroupLink) else 0
        messages = self._link.messages if isinstance(self._link, GroupLink) else 0
        return {
            "features": add_up(gather(self._features.counts.as_dict())),
            **self._timing(),
            "pipeline_bytes": sum(gather(sent)),
            "pipeline_messages": sum(gather(messages)),
            "gradient_bytes": sum(gather(self._world.gradients.traffic.bytes_sent)),
            "sampling_bytes": sum(gather(self._world.sampling.traffic.bytes_sent)),
        }


def add_up(values: Sequence[Any]) -> Any:
    """Sum numbers, or dictionaries of them key by key."""
    if isinstance(values[0], dict):
        return {key: add_up([value[key] for value in values]) for key in values[0]}
    return sum(values)


def rebalance(
    profile: Profile,
    schedule: Schedule,
    bounds: Sequence[int],
    seconds: Sequence[float],
    memory_limit: float = float("inf"),
) -> list[int]:
    """A new cut from the measured ``seconds`` of each stage, each layer of a stage taken alike.

    profile: of the bytes that layers hold. memory_limit: bytes of activations a rank may hold;
    where no new cut keeps to it, the old one stays.
    """
    layers: list[float] = []
    for (a, b), t in zip(itertools.pairwise(bounds), seconds, strict=True):
        layers += [t / (b - a)] * (b - a)
    found = candidate(profile, schedule, memory_limit=memory_limit, seconds=layers)
    return list(found.bounds if found.fits else bounds)
