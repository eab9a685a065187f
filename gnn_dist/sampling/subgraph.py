"""Sub-graphs as micro-batches: whole circuits, parts with a halo, random clusters.

A *unit* is a set of core nodes with the sub-graph that is induced on them and their halo (the
nodes within some hops, along the directions that the model reads). Its core nodes are its seeds.
A micro-batch holds one or more units side by side, without edges between them, so that a seed's
result does not depend on what it was packed with. Nodes are never cut by their position: every edge
of a unit is in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.kernels.transpose import transpose
from gnn_dist.sampling.topology import ALL, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One sub-graph, nodes in local numbers: core nodes first, then the halo, hop by hop.

    Attributes:
        nodes: int64[n] global ids. num_core: how many of them are seeds.
        indptr, indices: the induced in-edges, int64[n + 1] and int32[e].
    """

    nodes: np.ndarray
    num_core: int
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self) -> int:
        return self.nodes.size

    @property
    def num_edges(self) -> int:
        return self.indices.size


class Reach:
    """The nodes that a model reads of others: sources of their in-edges (``fan_in``), destinations
    of their out-edges (``fan_out``) or ``both``.

    In-edges are asked of the topology. Out-edges are turned once, here: 4 bytes an edge and 8 a
    node of the whole graph, held by every rank; collective where the topology is.
    """

    def __init__(self, topology: Topology, direction: str = "fan_in") -> None:
        self._topology = topology
        self._inward, self._outward = direction != "fan_out", direction != "fan_in"
        if self._outward:
            n = topology.num_nodes
            rows = topology.sample(np.arange(n), ALL, 0)
            self._indptr, self._indices, _ = transpose(rows.indptr, rows.indices, n)

    def of(self, nodes: np.ndarray) -> np.ndarray:
        """int64[m], ascending and distinct, of ``nodes`` (int64[k]), all global ids."""
        found = []
        if self._inward:
            found.append(self._topology.sample(nodes, ALL, 0).indices)
        if self._outward:
            degree = np.diff(self._indptr)[nodes]
            end = np.cumsum(degree)
            shift = np.repeat(self._indptr[nodes] - (end - degree), degree)
            found.append(self._indices[np.arange(shift.size) + shift])
        return np.unique(np.concatenate(found)).astype(np.int64)


def induce(
    topology: Topology,
    core: np.ndarray,
    hops: int = 0,
    rest: np.ndarray | None = None,
    reach: Reach | None = None,
) -> Unit:
    """The unit of ``core`` (int64[k], global ids, distinct) with a halo of ``hops``.

    ``rest`` are nodes that belong to the unit without being seeds (disjoint from ``core``); the
    halo is around both. Nodes have all their edges that begin and end within the unit; with
    ``hops >= 1`` those of core and rest along ``reach`` (default: in-edges) are all there.
    """
    inner = core if rest is None else np.concatenate((core, rest))
    layers, known = [inner], np.sort(inner)
    reach = Reach(topology) if reach is None else reach
    for _ in range(hops):
        others = reach.of(layers[-1])
        fresh = others[~_within(known, others)]
        layers.append(fresh)
        known = np.union1d(known, fresh)
    nodes = np.concatenate(layers).astype(np.int64, copy=False)
    rows = topology.sample(nodes, ALL, 0)
    sources = rows.indices.astype(np.int64, copy=False)
    inside = _within(known, sources)
    order = np.argsort(nodes, kind="stable")
    local = order[np.searchsorted(known, sources[inside])]
    degree = np.add.reduceat(np.append(inside, False), rows.indptr[:-1], dtype=np.int64)
    degree[rows.indptr[:-1] == rows.indptr[1:]] = 0
    indptr = np.zeros(nodes.size + 1, np.int64)
    np.cumsum(degree, out=indptr[1:])
    return Unit(nodes, core.size, indptr, local.astype(np.int32))


def _within(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not ascending.size:
        return np.zeros(values.size, bool)
    at = np.minimum(np.searchsorted(ascending, values), ascending.size - 1)
    return ascending[at] == values


def join(units: Sequence[Unit]) -> Unit:
    """Several units side by side as one: all cores first, then all halos."""
    sizes = np.array([u.num_nodes for u in units])
    cores = np.array([u.num_core for u in units])
    core_at = np.concatenate(([0], np.cumsum(cores)))
    halo_at = core_at[-1] + np.concatenate(([0], np.cumsum(sizes - cores)))
    place = [
        np.concatenate(
            (
                np.arange(core_at[k], core_at[k + 1]),
                np.arange(halo_at[k], halo_at[k + 1]),
            )
        )
        for k in range(len(units))
    ]
    where = np.concatenate(place)
    nodes = np.empty(where.size, np.int64)
    nodes[where] = np.concatenate([u.nodes for u in units])
    degree = np.empty(where.size, np.int64)
    degree[where] = np.concatenate([np.diff(u.indptr) for u in units])
    indptr = np.zeros(where.size + 1, np.int64)
    np.cumsum(degree, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), np.int32)
    for unit, to in zip(units, place, strict=True):
        lengths = np.diff(unit.indptr)
        shift = np.repeat(indptr[to] - unit.indptr[:-1], lengths)
        indices[np.arange(unit.num_edges) + shift] = to[unit.indices]
    return Unit(nodes, int(core_at[-1]), indptr, indices)


def mini_batch(
    unit: Unit, topology: Topology, *, seed: int, index: BatchIndex, global_seeds: int
) -> MiniBatch:
    """The unit as a mini-batch: a square block, and one without edges that leads to the seeds.

    Draws inside a model (dropout) are keyed by seed, epoch and original id, and so do not depend
    on the packing.
    """
    key = rng.fold(seed, rng.Stream.DROPOUT, index.epoch)
    ids = torch.from_numpy(topology.original_ids(unit.nodes))
    square = Block(
        torch.from_numpy(unit.indptr),
        torch.from_numpy(unit.indices),
        unit.num_nodes,
        ids=ids,
        key=key,
    )
    none = torch.zeros(0, dtype=torch.int32)
    seeds = Block(
        torch.zeros(unit.num_core + 1, dtype=torch.int64), none, unit.num_nodes, ids=ids, key=key
    )
    nodes = torch.from_numpy(unit.nodes)
    return MiniBatch(
        index, [square, seeds], nodes[: unit.num_core], nodes, global_seeds=global_seeds
    )


def members(assignment: np.ndarray, nodes: np.ndarray | None = None) -> list[np.ndarray]:
    """The nodes of each part or circuit: ``assignment`` int[N] by global id, -1 for none.

    ``nodes`` (int64[k], global ids) leaves out all others. Empty groups are left out.
    """
    ids = np.arange(assignment.size) if nodes is None else np.sort(nodes)
    groups = np.asarray(assignment)[ids].astype(np.int64)
    ids, groups = ids[groups >= 0], groups[groups >= 0]
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    return [part for part in np.split(ids[order], cuts) if part.size]


def random_unions(clusters: Sequence[np.ndarray], count: int, key: int) -> list[np.ndarray]:
    """Unions of ``count`` clusters each, drawn anew for every key (Cluster-GCN).

    Every cluster is in one union; edges between the clusters of a union are kept.
    """
    if count < 1:
        raise InputError(f"sampler.clusters: {count} clusters a batch; give at least 1")
    order = rng.permutation(key, np.arange(len(clusters)))
    return [
        np.sort(np.concatenate([clusters[k] for k in order[at : at + count]]))
        for at in range(0, len(clusters), count)
    ]


def pack(
    nodes: Sequence[int],
    edges: Sequence[int],
    max_nodes: int,
    max_cost: float = float("inf"),
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> list[list[int]]:
    """Units into micro-batches under two budgets: nodes (memory) and alpha N + beta E (time).

    The fewest micro-batches that a greedy fit finds, longest unit first into the one with the
    least time so far, so that they come out even. Returns unit numbers, each list ascending.
    Raises ``InputError`` for a unit that fits no micro-batch.
    """
    n, e = np.asarray(nodes, np.float64), np.asarray(edges, np.float64)
    cost = alpha * n + beta * e
    for k in range(n.size):
        if n[k] > max_nodes or cost[k] > max_cost:
            what = (
                f"{int(n[k]):,} nodes, above max_nodes = {max_nodes:,}"
                if n[k] > max_nodes
                else f"a cost of {cost[k]:,.4g}, above max_cost = {max_cost:,.4g}"
            )
            raise InputError(
                f"sampler: sub-graph {k} has {what}; raise the budget, or cut the graph into more "
                "parts"
            )
    order = sorted(range(n.size), key=lambda k: (-cost[k], -n[k], k))
    fewest = max(1, int(np.ceil(n.sum() / max_nodes)), int(np.ceil(cost.sum() / max_cost)))
    for count in range(fewest, n.size + 1):
        bins = _fill(order, n, cost, count, max_nodes, max_cost)
        if bins is not None:
            return [sorted(b) for b in bins if b]
    return []


def _fill(
    order: Sequence[int],
    nodes: np.ndarray,
    cost: np.ndarray,
    count: int,
    max_nodes: int,
    max_cost: float,
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    room, time = np.full(count, float(max_nodes)), np.zeros(count)
    for k in order:
        fits = (room >= nodes[k]) & (time + cost[k] <= max_cost)
        if not fits.any():
            return None
        at = int(np.argmin(np.where(fits, time, np.inf)))
        bins[at].append(k)
        room[at] -= nodes[k]
        time[at] += cost[k]
    return bins
