"""Global batches as micro-batches of sub-graphs: what is in each, and building them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_dist import rng
from gnn_dist.batch import BatchIndex
from gnn_dist.config import Sampler
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureStore
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.nn.deep.config import DIRECTIONS
from gnn_dist.sampling import PartitionedTopology
from gnn_dist.sampling.subgraph import (
    Reach,
    Unit,
    induce,
    join,
    members,
    mini_batch,
    pack,
    random_unions,
)
from gnn_dist.sampling.topology import ALL
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.pipeline.stages import DeepMicro

KINDS = ("circuits", "parts", "clusters")
_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgraphSettings:
    """Arguments of the samplers ``circuits``, ``parts`` and ``clusters``.

    Attributes:
        micro_batches: m, of a global batch; the same whatever the number of ranks.
        max_nodes: of a micro-batch; None for the largest unit or the mean share, if that is more.
        max_cost: ``alpha`` times nodes plus ``beta`` times edges of a micro-batch, which stand for
            its time; None for no limit. Circuits and parts are packed under both budgets; a random
            union is a micro-batch by itself, and budgets that one could exceed are refused.
        alpha, beta: weigh nodes and edges in the time that micro-batches are packed by.
        hops: of the halo around a part.
        direction: along which edges the halo grows, ``fan_in``, ``fan_out`` or ``both``; a halo
            has to reach what the model reads.
        clusters: parts that a random union has.
    """

    micro_batches: int = 8
    max_nodes: int | None = None
    max_cost: float | None = None
    alpha: float = 1.0
    beta: float = 0.2
    hops: int = 1
    direction: str = "fan_in"
    clusters: int = 4

    def __post_init__(self) -> None:
        for name in ("micro_batches", "clusters"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"sampler.args.{name}: {getattr(self, name)} is below 1; give at least 1"
                )
        if self.hops < 0:
            raise InputError(f"sampler.args.hops: {self.hops} is below 0; give 0 for no halo")
        if self.direction not in DIRECTIONS:
            raise InputError(
                f"sampler.args.direction: {self.direction!r} is not one of {', '.join(DIRECTIONS)}"
            )

    @classmethod
    def of(cls, sampler: Sampler) -> "SubgraphSettings":
        """From a job's ``sampler`` section."""
        if sampler.name not in KINDS:
            raise InputError(
                f"config sampler.name: {sampler.name!r} gives no sub-graphs; the strategy pipeline "
                f"needs one of {', '.join(KINDS)}"
            )
        unknown = [k for k in sampler.args if k not in cls.__dataclass_fields__]
        if unknown:
            raise InputError(
                f"config sampler.args: {sampler.name!r} takes no argument {unknown[0]!r}; it "
                f"takes: {', '.join(cls.__dataclass_fields__)}"
            )
        return cls(**sampler.args)


class SubgraphBatches:
    """The micro-batches of every epoch, for all ranks alike. Building is collective.

    Args:
        kind: ``circuits`` (units by the node tensor ``circuit``), ``parts`` (the partition's parts
            with a halo) or ``clusters`` (random unions of parts, drawn anew in every epoch).
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        topology: PartitionedTopology,
        features: FeatureStore,
        kind: str,
        settings: SubgraphSettings,
        seed: int,
        target: str,
        inputs: str = "x",
    ) -> None:
        self._graph, self._topology, self._features = graph, topology, features
        self._kind, self._settings, self._seed = kind, settings, seed
        self.target, self._inputs = target, inputs
        self._circuit: np.ndarray | None = None
        if "circuit" in graph.schema.node:
            everyone = np.arange(graph.num_nodes)
            self._circuit = features.fetch("circuit", everyone).numpy().reshape(-1)
        assert kind != "circuits" or self._circuit is not None
        train = graph.split("train")[0]
        self._is_train = np.zeros(graph.num_nodes, bool)
        self._is_train[train] = True
        groups = self._groups()
        if not groups:
            raise InputError(
                "sampler: no circuit or part has nodes of the split 'train'; give training nodes"
            )
        self._hops = settings.hops if kind == "parts" else 0
        self._reach = Reach(topology, settings.direction if self._hops else "fan_in")
        if kind == "clusters":
            self._check_unions(groups)
        self._fixed = None if kind == "clusters" else self._packed(groups)

    @property
    def collective(self) -> bool:
        """Whether building a micro-batch asks other hosts."""
        return self._topology.collective

    @property
    def num_batches(self) -> int:
        return -(-self._num_micros() // self._settings.micro_batches)

    def epoch(self, epoch: int) -> list[list["MicroPlan"]]:
        """Global batches of an epoch, each a list of micro-batches."""
        key = rng.fold(self._seed, rng.Stream.SHUFFLE, epoch)
        if self._fixed is None:
            unions = random_unions(self._groups(), self._settings.clusters, rng.fold(key, 1))
            plans = [MicroPlan((u,), int(self._is_train[u].sum())) for u in unions]
            plans = [p for p in plans if p.seeds]
        else:
            plans = self._fixed
        order = rng.permutation(key, np.arange(len(plans)))
        m = self._settings.micro_batches
        return [[plans[k] for k in order[at : at + m]] for at in range(0, len(plans), m)]

    def build(
        self,
        plan: "MicroPlan",
        index: BatchIndex,
        global_seeds: int,
        model: DeepGNN,
        *,
        inputs: bool,
        targets: bool,
    ) -> DeepMicro:
        """The micro-batch; ``inputs`` and ``targets`` say what this rank's stages read.

        Raises ``InputError`` for a halo that does not reach what the model reads.
        """
        grown, read = self._settings.direction, model.config.direction
        if self._hops and grown not in (read, "both"):
            raise InputError(
                f"sampler.args.direction: the halo grows along {grown}, but the model reads "
                f"{read}: neighbours in other parts would be missing; give direction: {read}, or "
                "hops: 0 for no halo"
            )
        unit = join([self._unit(group) for group in plan.groups])
        return self._micro(unit, index, global_seeds, model, inputs=inputs, targets=targets)

    def whole(self, split: str, size: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """For exact inference: (nodes of the split, other nodes) of each circuit, or of the whole
        graph where there are none, dealt to ``size`` ranks."""
        wanted = np.zeros(self._graph.num_nodes, bool)
        wanted[self._graph.split(split)[0]] = True
        groups = (
            [np.arange(self._graph.num_nodes)] if self._circuit is None else members(self._circuit)
        )
        groups = sorted((g for g in groups if wanted[g].any()), key=lambda g: -g.size)
        shares: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(size)]
        load = np.zeros(size)
        for group in groups:
            rank = int(np.argmin(load))
            shares[rank].append((group[wanted[group]], group[~wanted[group]]))
            load[rank] += group.size
        return shares

    def evaluate(self, core: np.ndarray, rest: np.ndarray, model: DeepGNN) -> DeepMicro:
        """A micro-batch for inference, whole."""
        unit = induce(self._topology, core, 0, rest)
        return self._micro(unit, BatchIndex(0, 0), core.size, model, inputs=True, targets=True)

    def _micro(
        self,
        unit: Unit,
        index: BatchIndex,
        global_seeds: int,
        model: DeepGNN,
        *,
        inputs: bool,
        targets: bool,
    ) -> DeepMicro:
        batch = mini_batch(
            unit, self._topology, seed=self._seed, index=index, global_seeds=global_seeds
        )
        seeds = unit.nodes[: unit.num_core]
        device = model.stack.gain.device
        everywhere = self._topology.collective  # others may ask this rank while it fetches
        target = None
        if inputs or everywhere:
            rows = self._features.fetch(self._inputs, unit.nodes if inputs else _NOBODY)
            batch.x = rows.to(device, non_blocking=True)
        if targets or everywhere:
            rows = self._features.fetch(self.target, seeds if targets else _NOBODY)
            target = rows.to(device, non_blocking=True)
        return DeepMicro(batch, model.stack.topology(batch.blocks[0]), target)

    def _unit(self, group: np.ndarray) -> Unit:
        train = self._is_train[group]
        return induce(self._topology, group[train], self._hops, group[~train], self._reach)

    def _groups(self) -> list[np.ndarray]:
        """Nodes of each circuit or part that has training nodes."""
        if self._kind == "circuits":
            assert self._circuit is not None
            groups = members(self._circuit)
        else:
            offsets = np.asarray(self._graph.offsets)
            groups = [np.arange(a, b) for a, b in itertools.pairwise(offsets) if b > a]
        return [g for g in groups if self._is_train[g].any()]

    def _num_micros(self) -> int:
        if self._fixed is not None:
            return len(self._fixed)
        # a union without training nodes cannot arise: every group has some
        return -(-len(self._groups()) // self._settings.clusters)

    def _check_unions(self, groups: Sequence[np.ndarray]) -> None:
        """Refuse budgets that a random union could exceed, whichever parts it is of."""
        settings = self._settings
        count = min(settings.clusters, len(groups))
        advice = "raise the budget, lower sampler.args.clusters, or cut the graph into more parts"
        nodes = np.array([g.size for g in groups])
        most = int(np.sort(nodes)[-count:].sum())
        if settings.max_nodes is not None and most > settings.max_nodes:
            raise InputError(
                f"sampler: a union of the {count} largest parts has {most:,} nodes, above "
                f"max_nodes = {settings.max_nodes:,}; {advice}"
            )
        if settings.max_cost is None:
            return
        # edges from parts outside the union count too: which these are is drawn anew every epoch
        edges = np.array([self._topology.sample(g, ALL, 0).indices.size for g in groups])
        cost = float(np.sort(settings.alpha * nodes + settings.beta * edges)[-count:].sum())
        if cost > settings.max_cost:
            raise InputError(
                f"sampler: a union of {count} parts may have a cost of {cost:,.4g} (all in-edges "
                f"counted), above max_cost = {settings.max_cost:,.4g}; {advice}"
            )

    def _packed(self, groups: Sequence[np.ndarray]) -> list["MicroPlan"]:
        settings = self._settings
        units = [self._unit(group) for group in groups]
        nodes, edges = [u.num_nodes for u in units], [u.num_edges for u in units]
        limit = settings.max_nodes or max(max(nodes), -(-sum(nodes) // settings.micro_batches))
        cost = float("inf") if settings.max_cost is None else settings.max_cost
        bins = pack(nodes, edges, limit, cost, alpha=settings.alpha, beta=settings.beta)
        return [
            MicroPlan(tuple(groups[k] for k in chosen), sum(units[k].num_core for k in chosen))
            for chosen in bins
        ]


@dataclass(frozen=True, slots=True, eq=False)
class MicroPlan:
    """The node sets of a micro-batch's units, and its number of seeds."""

    groups: tuple[Any, ...]
    seeds: int
