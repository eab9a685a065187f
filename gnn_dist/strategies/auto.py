"""``auto``: the faster of ``data`` and ``split``, by a model of the link and the processors.

Both give the same gradients, so the choice is one of time alone. The first batches are drawn both
ways and counted: edges, feature rows, bytes. What a batch takes of a processor is tried on one of
them, what the link takes is measured with messages of two sizes, and the time of a step follows.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.cluster import Exchange, World, share
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureStore
from gnn_dist.graph import Graph
from gnn_dist.sampling import PartitionedTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import INPUTS, epoch_plan, reads_in_place
from gnn_dist.strategies.base import Sizes
from gnn_dist.strategies.data import DataStrategy, build_parts
from gnn_dist.strategies.split import SplitStrategy, checked_parts
from gnn_dist.strategies.split.counts import EDGES, ROWS_SHUFFLED, SOURCES, VERTICES, LayerCounts
from gnn_dist.strategies.split.plan import count_first, num_ranks, planned_placement
from gnn_dist.strategies.split.trial import TRIES, Trial
from gnn_dist.strategies.timing import busy, link_speed, now

_CPU = torch.device("cpu")
_TRIED = 2  # batches that are computed; the first warms up


@dataclass(frozen=True)
class Link:
    """What ranks talk over: an exchange takes ``latency`` seconds and a byte sent 1 / ``rate``."""

    latency: float
    rate: float

    def seconds(self, sent: float, rounds: float) -> float:
        return sent / self.rate + rounds * self.latency


@dataclass(frozen=True)
class Machine:
    """The hosts of a run.

    Attributes:
        network: between any ranks, for ids and for rows that are asked for.
        near: for rows between ranks, which share memory where they share a host.
        hosts: of every rank.
        cores: of this host.
        threads: of a rank's model.
    """

    network: Link
    near: Link
    hosts: tuple[int, ...]
    cores: int
    threads: int


def step_seconds(trials: list[Trial], machine: Machine, ahead: bool) -> float:
    """The time of a step of which every rank does its trial.

    The model computes and waits for hidden rows. Batches are prepared beside it, where they are
    prepared ``ahead``: then the longer of the two decides, and waits where it finds the link taken
    by the other. A host's processors can do no more than they can.
    """
    model, load = _works(trials, machine)
    if not ahead:
        return max(w.alone() for w in model) + max(w.alone() for w in load)
    taken = [0.0] * (max(machine.hosts) + 1)
    for host, t in zip(machine.hosts, trials, strict=True):
        taken[host] += t.compute * machine.threads + t.load
    both = [
        max(one.beside(other), other.beside(one)) for one, other in zip(model, load, strict=True)
    ]
    return max(*both, max(taken) / machine.cores)


@dataclass(frozen=True)
class _Work:
    """Seconds of a processor and of the link, in turns: it computes before each exchange."""

    processor: float
    link: float
    exchanges: int

    def alone(self) -> float:
        return self.processor + self.link

    def beside(self, other: "_Work") -> float:
        """Seconds while ``other`` uses the link too, where an exchange waits for the one that is
        under way: it is in the way but for what falls into one of this work's turns to compute."""
        if not self.link:
            return self.alone()
        turn = self.processor / max(self.exchanges, 1)
        return self.alone() + other.link - min(other.link, turn)


def _works(trials: list[Trial], machine: Machine) -> tuple[list[_Work], list[_Work]]:
    """What the model, and what the preparation of batches, does on every rank."""
    network, near = machine.network, machine.near
    waits = _waiting(trials, machine)
    model = [_Work(t.compute, waits, len(t.shuffles) + (t.gradient_bytes > 0)) for t in trials]
    load = [
        _Work(
            t.load,
            network.seconds(t.load_bytes, t.load_rounds)
            + near.seconds(t.near_bytes, t.near_rounds),
            t.load_rounds + t.near_rounds,
        )
        for t in trials
    ]
    return model, load


def _waiting(trials: list[Trial], machine: Machine) -> float:
    """Seconds of the link in which every model waits: all ranks meet in every exchange of hidden
    rows, which is over when that of the busiest is, and then to sum gradients."""
    rows = sum(max(larger) for larger in zip(*(t.shuffles for t in trials), strict=True))
    gradients = max(t.gradient_bytes for t in trials)
    return machine.near.seconds(rows, len(trials[0].shuffles)) + machine.network.seconds(
        gradients, gradients > 0
    )


@dataclass(frozen=True)
class Comparison:
    """Both strategies side by side; ``why`` is the reason where there was nothing to compare."""

    rows: list[dict[str, Any]]
    chosen: str
    why: str = ""

    def text(self) -> str:
        if not self.rows:
            return f"strategy {self.chosen}: {self.why}"
        head = "strategy      edges  feature rows  MB sent  compute s  prepare s   link s  step s"
        lines = [
            f"{row['strategy']:8}  {row['edges']:9,}  {row['feature rows']:12,}  "
            f"{row['MB sent']:7.2f}  {row['compute s']:9.4f}  {row['prepare s']:9.4f}  "
            f"{row['link s']:7.4f}  {row['step s']:6.4f}"
            for row in self.rows
        ]
        note = "a batch, all ranks: edges, rows, bytes; the busiest rank: seconds"
        return "\n".join([head, *lines, f"{note}; strategy {self.chosen} is taken"])


class AutoStrategy:
    """Builds ``data`` or ``split``, whichever is foreseen to be faster; all ranks agree."""

    name = "auto"

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for whatever of a job cannot be built over this graph."""
        DataStrategy.check(job, graph)

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Those of ``data``, which are the larger."""
        return DataStrategy.sizes(job, graph)

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> "AutoPlan":
        """Counts of the first batches under both; what they take is measured at the start."""
        why = _impossible(job, graph, num_ranks(job))
        if why:
            return AutoPlan(None, None, why)
        sampler, placement = build_parts(job, graph).sampler, planned_placement(job, graph)
        depth, kept = len(job.sampler.fanouts), job.split.data_parallel_layers
        return AutoPlan(
            count_first(job, graph, sampler, placement, depth),
            count_first(job, graph, sampler, placement, kept),
        )

    @classmethod
    def build(
        cls, job: Config, world: World, graph: PartitionedGraph
    ) -> DataStrategy | SplitStrategy:
        """The strategy chosen on all ranks, with the ``choice`` for people. Collective."""
        why = _impossible(job, graph, world.size)
        if why:
            return _told(DataStrategy.build(job, world, graph), Comparison([], "data", why))
        machine = measure(job, world, graph)
        data = DataStrategy.build(job, world, graph)
        split = SplitStrategy.build(job, world, graph)
        gather = world.control.all_gather_object
        trials = {
            "data": gather(try_data(job, world, graph, data)),
            "split": gather(split.trial(_TRIED)),
        }
        found = compare(trials, machine, job.loader.prefetch > 0)
        return _told(split if found.chosen == "split" else data, found)


@dataclass(frozen=True, eq=False)
class AutoPlan:
    """Counts of ``data`` and ``split``, a batch, in the mean of the first ones."""

    data: LayerCounts | None
    split: LayerCounts | None
    why: str = ""

    def text(self) -> str:
        if self.data is None or self.split is None:
            return f"strategy data: {self.why}"
        lines = ["strategy      edges  feature rows  rows of other ranks  imbalance"]
        for name, counts in (("data", self.data), ("split", self.split)):
            rows = (SOURCES, 1) if name == "data" else (VERTICES, 0)
            lines.append(
                f"{name:8}  {counts.a_batch(EDGES).sum():9,.0f}  "
                f"{counts.a_batch(rows[0])[:, rows[1]].sum():12,.0f}  "
                f"{counts.a_batch(ROWS_SHUFFLED).sum():19,.0f}  {counts.work_imbalance():9.2f}"
            )
        return "\n".join([*lines, "the link and the processors are measured when training starts"])

    def write(self, folder: Path) -> list[Path]:
        return []


def compare(trials: dict[str, list[Trial]], machine: Machine, ahead: bool) -> Comparison:
    """The strategies by the time of a step; the first of equal ones."""
    rows: list[dict[str, Any]] = []
    for name, ranks in trials.items():
        link = [model.link + load.link for model, load in zip(*_works(ranks, machine), strict=True)]
        rows.append(
            {
                "strategy": name,
                "edges": sum(t.edges for t in ranks),
                "feature rows": sum(t.rows for t in ranks),
                "MB sent": sum(t.bytes for t in ranks) / 1e6,
                "compute s": max(t.compute for t in ranks),
                "prepare s": max(t.load for t in ranks),
                "link s": max(link),
                "step s": step_seconds(ranks, machine, ahead),
            }
        )
    return Comparison(rows, min(rows, key=lambda row: row["step s"])["strategy"])


def measure(job: Config, world: World, graph: PartitionedGraph) -> Machine:
    """The links and processors of a run, the same on every rank. Collective."""
    placement = world.placement(graph.num_parts, job.cluster.placement)
    network = world.exchange("measuring the network")
    near = share(world.exchange("measuring rows"), placement)
    names = sorted(set(world.hosts))
    everyone = world.control.all_gather_object((_cores(), torch.get_num_threads()))
    return Machine(
        measure_link(network, _CPU),
        measure_link(near, world.device),
        tuple(names.index(name) for name in world.hosts),
        cores=min(cores for cores, _ in everyone),
        threads=max(threads for _, threads in everyone),
    )


def measure_link(exchange: Exchange, device: torch.device) -> Link:
    """From all-to-all exchanges. Collective."""
    others = exchange.size - 1

    def once(size: int) -> float:
        rows = size // (1024 * others) + 1
        counts = [0 if r == exchange.rank else rows for r in range(exchange.size)]
        parts = [torch.zeros(n, 256, device=device) for n in counts]
        exchange.barrier()
        start = now(device)
        exchange.all_to_all(parts, receive=counts)
        return now(device) - start

    return Link(*link_speed(once, exchange))


def try_data(job: Config, world: World, graph: PartitionedGraph, strategy: DataStrategy) -> Trial:
    """This rank's share of the first batches, drawn, read and computed. Collective."""
    sampler = build_parts(job, graph).sampler
    placement = world.placement(graph.num_parts, job.cluster.placement)
    sampling, features = world.exchange("trial of sampling"), world.exchange("trial of features")
    topology = PartitionedTopology(graph, placement, sampling)
    store = FeatureStore(graph, placement, features)
    plan = epoch_plan(job, graph, placement)
    order = plan.order(0)
    leave = (INPUTS,) if reads_in_place(job, world) else ()

    def load(number: int) -> MiniBatch:
        positions = plan.batch(order, number)
        batch = sampler.sample(
            topology,
            plan.share(positions, world.rank),
            seed=job.seed,
            index=BatchIndex(0, number),
            global_seeds=len(positions),
        )
        wanted = {INPUTS: batch.input_nodes, job.task.target: batch.seeds}
        (rows,) = store.fetch_window([wanted], leave=leave)
        batch.x = rows[INPUTS]
        batch.node = {job.task.target: rows[job.task.target]}  # type: ignore[dict-item]
        return batch

    found = []
    for number in range(min(_TRIED, plan.num_batches)):
        before = sampling.traffic.copy(), features.traffic.copy()
        batch, loading = busy(functools.partial(load, number), _CPU)
        traffic = [e.traffic.since(b) for e, b in zip((sampling, features), before, strict=True)]
        found.append(
            Trial(
                edges=sum(block.num_edges for block in batch.blocks),
                rows=batch.input_nodes.numel(),
                load=loading,
                compute=min(strategy.try_out(batch) for _ in range(TRIES)),
                load_bytes=sum(t.bytes_sent for t in traffic),
                load_rounds=sum(t.rounds + t.size_rounds for t in traffic),
                gradient_bytes=strategy.gradient_bytes(),
            )
        )
    return found[-1]


def _cores() -> int:
    """Of this host, as far as this process may use them."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _impossible(job: Config, graph: PartitionedGraph, ranks: int) -> str:
    """Why a job cannot be split; empty where it can."""
    if ranks == 1:
        return "one rank has nothing to share"
    try:
        checked_parts(job, graph)
    except InputError as error:
        return str(error)
    return ""


def _told(strategy: Any, found: Comparison) -> Any:
    strategy.choice = found.text()
    strategy.compared = found.rows
    return strategy
