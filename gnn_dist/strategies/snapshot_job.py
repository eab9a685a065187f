"""Strategy ``snapshot`` as a job: what the trainer asks of a strategy, for dynamic graphs.

The data set is a ``Graph`` made by ``dynamic.stored.to_graph``; ``train.batch_size`` counts windows
a step; ``sampler.args`` are the ``SnapshotSettings``; ``task.kind`` says what is predicted unless
``sampler.args.predict`` does.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from gnn_dist import plugins
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import World
from gnn_dist.config import Config, Section
from gnn_dist.dynamic.groups import ENCODINGS
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.dynamic.stored import from_partition
from gnn_dist.dynamic.windows import WindowBatch, Windows, segments
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.nn.recurrent import functional
from gnn_dist.nn.recurrent.models import MODELS
from gnn_dist.nn.recurrent.protocol import State, check_model
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import Sizes, StepReport
from gnn_dist.strategies.snapshot import Options, SnapshotStrategy
from gnn_dist.strategies.snapshot_forecast import Done, JobPlan, PeakMemory, foreseen
from gnn_dist.strategies.snapshot_plan import Plan, choose, choose_group, plan, table
from gnn_dist.strategies.snapshot_tasks import TASKS

PREDICTS = {"regression": "node_regression", "classification": "edge_classification"}


class SnapshotSettings(Section):
    window: int = Field(8, ge=1)
    """snapshots a window"""
    stride: int = Field(1, ge=1)
    """snapshots between the beginnings of two windows"""
    history: Literal["window", "truncated"] = "window"
    """`window`: every window starts from the initial state, gradients are exact; `truncated`:
    windows do not overlap, the state is carried from one to the next and gradients stop there"""
    policy: Literal["auto", "sequential", "grouped", "windows", "snapshots", "vertices"] = "auto"
    """how a step is computed; `auto` counts what each would move and takes the cheapest"""
    group: int | Literal["measure"] = "measure"
    """snapshots that are aggregated together at most; `measure` times a sample"""
    encoding: Literal["measure", "flat", "dyadic", "blockdiag"] = "measure"
    """how a group is stored"""
    checkpoint: int = Field(0, ge=0)
    """0 keeps activations; otherwise they are computed again in blocks of so many snapshots"""
    cache_mib: int = Field(1024, ge=0)
    """kept aggregations without parameters, in MiB"""
    predict: Literal["node_regression", "edge_classification", "link_prediction"] | None = None
    """what is predicted (default: by task.kind)"""
    task_args: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of the task's head"""
    train: float = Field(0.6, gt=0, le=1)
    """share of the snapshots, from the first on, whose windows train"""
    val: float = Field(0.2, ge=0, lt=1)
    """share of the snapshots after those that validate; the rest tests"""


def settings_of(job: Config) -> SnapshotSettings:
    """``sampler.args`` as settings; an ``InputError`` names what is wrong."""
    try:
        return SnapshotSettings.model_validate(job.sampler.args)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"config sampler.args.{key}: {first['input']!r} is not valid; {first['msg']}"
        ) from None


@dataclass(frozen=True)
class Parts:
    """Model and task of a job, not yet on a rank."""

    model: Any
    task: Any
    horizon: int


def build_parts(job: Config, sequence: SnapshotSequence) -> Parts:
    """The model and the task that a job names, seeded by the job's seed."""
    settings = settings_of(job)
    predict = settings.predict or PREDICTS.get(job.task.kind)
    if predict is None:
        raise InputError(
            f"config task.kind: {job.task.kind!r} is not for dynamic graphs; use regression or "
            "classification, or name sampler.args.predict"
        )
    args = dict(job.model.args)
    if job.model.name == "mpnn_lstm":
        args.setdefault("window", settings.window)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        model = plugins.build(
            "model", job.model.name, {"in_features": sequence.num_features, **args}, MODELS
        )
        if not isinstance(model, nn.Module):
            model = model()
        check_model(model)
        kind = TASKS[predict]
        plugins.check_arguments("task", predict, kind, settings.task_args)
        if predict == "node_regression" and sequence.y is not None:
            width = 1 if sequence.y.ndim == 2 else sequence.y.shape[2]
            task = kind(model.out_features, width, **settings.task_args)
        else:
            task = kind(model.out_features, **settings.task_args)
    if job.train.precision == "float64":
        model, task = model.double(), task.double()
    elif job.train.precision != "float32":
        raise InputError(
            f"config train.precision: {job.train.precision!r} is not for dynamic graphs; use "
            "float32 or float64"
        )
    return Parts(model, task, kind.horizon)


def batches_of(
    job: Config, settings: SnapshotSettings, windows: Windows, split: str, epoch: int
) -> list[WindowBatch]:
    """The steps of an epoch, or of an evaluation."""
    chosen = windows.split(settings.train, settings.val)[split]
    return list(
        windows.batches(
            chosen, job.train.batch_size, epoch=epoch, seed=job.seed, shuffle=split == "train"
        )
    )


def decide(
    job: Config, sequence: SnapshotSequence, parts: Parts, ranks: int, owner: np.ndarray
) -> tuple[Options, list[Plan]]:
    """The options of a job: what it fixes, and the rest by counting and by measurement.

    Times decide about groups only, which change no result; every rank must be given rank 0's.
    """
    settings = settings_of(job)
    group, encoding = settings.group, settings.encoding
    if group == "measure" or encoding == "measure":
        sizes = (1, 4, 8, 16) if group == "measure" else (int(group),)
        names = ENCODINGS if encoding == "measure" else (encoding,)
        dtype = next(parts.model.parameters()).dtype
        size, name, _ = choose_group(
            sequence, parts.model.spatial_width(), sizes=sizes, encodings=names, dtype=dtype
        )
        group = size if group == "measure" else group
        encoding = name if encoding == "measure" else encoding
    options = Options(
        "grouped" if ranks == 1 else "windows",
        int(group),
        encoding,
        settings.cache_mib << 20,
        checkpoint=settings.checkpoint,
        prefetch=job.loader.prefetch > 0,
    )
    windows = Windows(sequence.num_snapshots - parts.horizon, settings.window, settings.stride)
    steps = batches_of(job, settings, windows, "train", 0)
    probe = SnapshotStrategy(
        sequence, parts.model, parts.task, Options("sequential"), seed=job.seed
    )
    plans = table(sequence, parts.model, steps, options, ranks, owner, probe.pairs)
    policy = settings.policy
    if policy == "auto":
        policy = choose(plans, parts.model.spatial_width())
        if settings.history == "truncated" and policy == "windows":
            policy = "vertices"
    return Options(
        policy, options.group, options.encoding, options.cache_bytes,
        checkpoint=options.checkpoint, prefetch=options.prefetch,
    ), plans  # fmt: skip


class SnapshotJob:
    """``SnapshotStrategy`` behind the trainer's protocol."""

    name = "snapshot"

    def __init__(
        self, job: Config, world: World, strategy: SnapshotStrategy, plans: list[Plan]
    ) -> None:
        self._job, self._world, self._strategy, self._plans = job, world, strategy, plans
        self._settings = settings_of(job)
        horizon = strategy.task.horizon
        sequence = strategy.sequence
        self._windows = Windows(
            sequence.num_snapshots - horizon, self._settings.window, self._settings.stride
        )
        self.model: nn.Module = nn.ModuleDict({"model": strategy.model, "task": strategy.task})
        self._state: State | None = None
        self._epochs: set[int] = set()
        self._rows, self._edges = [0, 0], [0, 0]  # of the first epoch, and of later ones
        self._stored = 0
        self._memory = PeakMemory(strategy.device)

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for what cannot be built, without a world."""
        settings = settings_of(job)
        sequence = from_partition(graph)
        parts = build_parts(job, sequence)
        windows = Windows(sequence.num_snapshots - parts.horizon, settings.window, settings.stride)
        steps = batches_of(job, settings, windows, "train", 0)
        functional.warmup(next(parts.model.parameters()).dtype)
        ranks = max(job.cluster.workers, 1)
        if settings.policy != "auto":
            Options(settings.policy)
            possible = plan(
                sequence, parts.model, steps[:1], Options(settings.policy), ranks
            ).possible
            if not possible:
                raise InputError(
                    f"config sampler.args.policy: {settings.policy!r} cannot run "
                    f"{job.model.name!r} on {ranks} workers; use auto"
                )
        if settings.history == "truncated" and (parts.horizon or settings.policy == "windows"):
            raise InputError(
                "config sampler.args.history: 'truncated' needs a target on nodes and a policy "
                "other than windows; use history: window"
            )
        parts.task.count(steps[0], sequence, _no_draws(job, steps[0]))

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the steps of the first epoch, from the plan of the policy that would run."""
        sequence = from_partition(PartitionedGraph.from_graph(graph))
        parts = build_parts(job, sequence)
        ranks = max(job.cluster.workers, 1)
        owner = np.arange(sequence.num_nodes) * ranks // max(sequence.num_nodes, 1)
        options, plans = decide(job, sequence, parts, ranks, owner)
        chosen = next(p for p in plans if p.policy == options.policy)
        settings = settings_of(job)
        windows = Windows(sequence.num_snapshots - parts.horizon, settings.window, settings.stride)
        if settings.history == "truncated":
            end = max(int(sequence.num_snapshots * settings.train), 1)
            steps = list(segments(end, settings.window, 0))
        else:
            steps = batches_of(job, settings, windows, "train", 0)
        snapshots = sum(len(step.snapshots) for step in steps) / len(steps)
        edges = sum(sequence.num_edges(t) for step in steps for t in step.snapshots) / len(steps)
        return Sizes(
            steps_an_epoch=len(steps),
            batch=f"{len(steps[0].starts)} windows of {settings.window} snapshots on {ranks} "
            f"workers by {options.policy}: {snapshots:,.0f} snapshots of {sequence.num_nodes:,} "
            f"nodes; {edges:,.0f} edges",
            edges=edges,
            rows=snapshots * sequence.num_nodes,
            row_bytes=sequence.num_features * (8 if job.train.precision == "float64" else 4),
            parameters=sum(p.numel() for m in (parts.model, parts.task) for p in m.parameters()),
            batch_bytes=0.0,
            activation_bytes=float(chosen.memory),
        )

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "SnapshotJob":
        """The strategy of a job on this rank. Collective."""
        sequence = from_partition(graph)
        parts = build_parts(job, sequence)
        model, task = parts.model.to(world.device), parts.task.to(world.device)
        owner = owner_of(graph, world.size)
        options, plans = world.control.all_gather_object(
            decide(job, sequence, parts, world.size, owner) if world.rank == 0 else None
        )[0]
        strategy = SnapshotStrategy(
            sequence, model, task, options, world.gradients, owner, job.seed, world.device
        )
        return cls(job, world, strategy, plans)

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> "JobPlan":
        """What every policy would move and aggregate on the job's ``cluster.workers``."""
        sequence = from_partition(graph)
        ranks = max(job.cluster.workers, 1)
        parts = build_parts(job, sequence)
        return JobPlan(*decide(job, sequence, parts, ranks, owner_of(graph, ranks)))

    @property
    def choice(self) -> str | None:
        """What ``auto`` chose from, for people; None where the policy was given."""
        if self._settings.policy != "auto":
            return None
        return JobPlan(self._strategy.options, self._plans).text()

    def num_batches(self) -> int:
        if self._settings.history == "truncated":
            return len(list(self._segments(0)))
        return len(batches_of(self._job, self._settings, self._windows, "train", 0))

    def _segments(self, epoch: int) -> Iterator[WindowBatch]:
        end = int(self._strategy.sequence.num_snapshots * self._settings.train)
        return segments(max(end, 1), self._settings.window, epoch)

    def shares(self, epoch: int, first: int, stop: int) -> Iterator[tuple[BatchIndex, WindowBatch]]:
        if self._settings.history == "truncated":
            found = list(self._segments(epoch))
            self._state = self._replay(found[:first])
        else:
            found = batches_of(self._job, self._settings, self._windows, "train", epoch)
        for number, batch in enumerate(self._strategy.ahead(found[first:stop]), first):
            yield BatchIndex(epoch, number), batch

    def _replay(self, before: list[WindowBatch]) -> State | None:
        """The state that segments leave: found again where an epoch goes on in its middle.

        With today's weights, which is what a state carried across a stop can be.
        """
        state: State | None = None
        with torch.no_grad():
            for batch in before:
                state = self._strategy.carry(batch, state)
        return state

    def backward(self, share: WindowBatch) -> StepReport:
        start = time.perf_counter()
        self.model.train()
        for p in self._strategy.parameters():
            p.grad = None
        self._memory.start()
        counts = self._strategy.counts
        rows, edges = counts.rows_sent, counts.edges_aggregated
        if self._settings.history == "truncated":
            loss, self._state = self._strategy.accumulate_truncated(share, self._state)
            number = share.length
        else:
            loss = self._strategy.accumulate(share)
            number = len(share.starts)
        first = share.epoch in self._epochs if len(self._epochs) == 1 else not self._epochs
        self._epochs.add(share.epoch)
        self._rows[0 if first else 1] += counts.rows_sent - rows
        self._edges[0 if first else 1] += counts.edges_aggregated - edges
        self._memory.stop()
        if first:  # later ones would count what evaluation encoded, too
            self._stored = self._strategy.groups.stored_edges()
        return StepReport(loss, number, {"compute": time.perf_counter() - start})

    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rows are targets: for nodes, the id is ``window start · N + node``."""
        self.model.eval()
        counts = self._strategy.counts
        kept = (counts.rows_sent, counts.bytes_sent, counts.edges_aggregated)
        if self._settings.history == "truncated":
            columns = self._strategy.predictions_truncated(self._span(split), self._settings.window)
        else:
            steps = batches_of(self._job, self._settings, self._windows, split, 0)
            columns = self._strategy.predictions(steps)
        counts.rows_sent, counts.bytes_sent, counts.edges_aggregated = kept
        if self._world.rank != 0:
            return None
        ids, output, target = self._strategy.task.outputs(columns, self._strategy.sequence)
        return torch.from_numpy(ids), torch.from_numpy(output), torch.from_numpy(target)

    def _span(self, split: str) -> range:
        total = self._strategy.sequence.num_snapshots
        first = int(total * self._settings.train)
        second = int(total * (self._settings.train + self._settings.val))
        return {"train": range(0, first), "val": range(first, second),
                "test": range(second, total)}[split]  # fmt: skip

    def communication(self) -> dict[str, Any]:
        """What was planned for the policy, and beside it what was measured."""
        strategy = self._strategy
        chosen = next(p for p in self._plans if p.policy == strategy.options.policy)
        mine = {
            "rows": self._rows,
            "edges": self._edges,
            "stored": self._stored,
            "memory": self._memory.bytes,
            "bytes": strategy.counts.bytes_sent,
        }
        ranks = self._world.control.all_gather_object(mine)
        done = Done(
            (sum(r["rows"][0] for r in ranks), sum(r["rows"][1] for r in ranks)),
            (max(r["edges"][0] for r in ranks), max(r["edges"][1] for r in ranks)),
            max(r["stored"] for r in ranks),
            max(r["memory"] for r in ranks),
        )
        lines = foreseen(chosen, done, max(len(self._epochs) - 1, 0))
        if self._settings.history == "truncated":  # other steps than were planned
            lines = [{**line, "planned": "-"} for line in lines]
        return {
            "policy": chosen.policy,
            "group": strategy.options.group,
            "encoding": strategy.options.encoding,
            "features": {"rows": {}, "bytes": {}},
            "bytes_sent": sum(r["bytes"] for r in ranks),
            "foreseen": lines,
            "plans": [p.row() for p in self._plans],
        }


def owner_of(graph: PartitionedGraph, ranks: int) -> np.ndarray:
    """The rank of each node (by original id): parts are dealt to ranks in even runs."""
    owner = np.empty(graph.num_nodes, np.int64)
    for p in range(graph.num_parts):
        first, last = int(graph.offsets[p]), int(graph.offsets[p + 1])
        owner[graph.original_ids()[first:last]] = p * ranks // graph.num_parts
    return owner


def _no_draws(job: Config, batch: WindowBatch) -> Any:
    from gnn_dist.strategies.snapshot_scope import Draws

    return Draws(job.seed, 0, batch.index, batch.starts, batch.length)
