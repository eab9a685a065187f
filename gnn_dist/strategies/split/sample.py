"""Cooperative sampling: at each hop a rank draws for the frontier vertices that it owns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block
from gnn_dist.cluster import Exchange
from gnn_dist.features import FeatureRows
from gnn_dist.graph import index_dtype
from gnn_dist.loading import Homes
from gnn_dist.rng import Stream
from gnn_dist.sampling import Keys, NeighborSampler, Relabeller, Topology, make_block
from gnn_dist.strategies.split import counts


@dataclass(slots=True, eq=False)
class Route:
    """Which rows of a layer's input go from their owners to the ranks that read them.

    Attributes:
        send: int64[s], rows of this rank's own frontier, for rank 0, then rank 1, and so on.
        send_counts: rows for each rank (none for this one).
        receive_counts: rows from each rank.
        own: rows of this rank's own frontier.
        order: int64[n] or None. The input is the own rows, then the received ones, rank by rank;
            where given, ``order`` picks its rows out of these.
    """

    send: Tensor
    send_counts: list[int]
    receive_counts: list[int]
    own: int
    order: Tensor | None = None

    @property
    def received(self) -> int:
        return sum(self.receive_counts)

    def to(self, device: torch.device) -> "Route":
        order = None if self.order is None else self.order.to(device, non_blocking=True)
        send = self.send.to(device, non_blocking=True)
        return Route(send, self.send_counts, self.receive_counts, self.own, order)


@dataclass(slots=True, eq=False)
class Half:
    """Some destinations of a layer.

    Attributes:
        block: their in-edges. Its sources are ``rows``, the destinations first, then, for those
            that need them, all rows that the route brings.
        rows: int64[r], the rows of this rank's own that it reads.
    """

    block: Block
    rows: Tensor


@dataclass(slots=True, eq=False)
class Halves:
    """A layer in two: what needs this rank's own rows alone, and the rest.

    Attributes:
        inner: destinations whose sources are all this rank's own.
        outer: the others.
        back: int64[num_dst], where each destination is in the outputs of both, one after the other.
    """

    inner: Half
    outer: Half
    back: Tensor

    def to(self, device: torch.device) -> "Halves":
        """The indices; blocks stay where they are."""
        move = [t.to(device, non_blocking=True) for t in (self.inner.rows, self.outer.rows)]
        inner, outer = Half(self.inner.block, move[0]), Half(self.outer.block, move[1])
        return Halves(inner, outer, self.back.to(device, non_blocking=True))


_WORTH = 1 / 8  # destinations in the inner half, below which two calls cost more than they hide


def halve(block: Block, own: int) -> Halves | None:
    """Cut a layer's block whose first ``own`` sources are this rank's; None where that gains
    nothing."""
    indptr, indices = block.indptr.numpy(), block.indices.numpy()
    crossing = np.zeros(indices.size + 1, np.int64)
    np.cumsum(indices >= own, out=crossing[1:])
    needs = crossing[indptr[1:]] > crossing[indptr[:-1]]
    inner = np.flatnonzero(~needs)
    if not needs.any() or inner.size < _WORTH * needs.size:
        return None
    outer = np.flatnonzero(needs)
    back = np.empty(needs.size, np.int64)
    back[inner], back[outer] = np.arange(inner.size), inner.size + np.arange(outer.size)
    halves = (_half(block, inner, ~needs, own, 0), _half(block, outer, needs, own, 1))
    return Halves(*halves, torch.from_numpy(back))


def _half(
    block: Block, destinations: np.ndarray, chosen: np.ndarray, own: int, received: int
) -> Half:
    """The rows ``destinations`` (where ``chosen``) of a block, with or without received rows."""
    degrees = block.degrees().numpy()
    taken = np.repeat(chosen, degrees)
    indices = block.indices.numpy()[taken]
    reads = np.zeros(own, bool)
    reads[indices[indices < own]] = True
    reads[destinations] = False
    rows = np.concatenate([destinations, np.flatnonzero(reads)])
    place = np.empty(block.num_src, np.int32)
    place[rows] = np.arange(rows.size)
    place[own:] = rows.size + np.arange(block.num_src - own)
    indptr = np.zeros(destinations.size + 1, np.int64)
    np.cumsum(degrees[destinations], out=indptr[1:])
    edges = torch.from_numpy(taken)
    return Half(
        Block(
            torch.from_numpy(indptr),
            torch.from_numpy(place[indices]),
            rows.size + received * (block.num_src - own),
            None if block.edge_ids is None else block.edge_ids[edges],
            None if block.weight is None else block.weight[edges],
            {name: values[edges] for name, values in block.edge.items()},
            None if block.ids is None else block.ids[torch.from_numpy(rows)],
            block.key,
        ),
        torch.from_numpy(rows),
    )


@dataclass(slots=True, eq=False)
class SplitLayer:
    """One layer of a rank's part of a global batch.

    Attributes:
        block: in-edges of the vertices whose rows this rank computes. Its sources are the rows
            that this rank computed in the layer below (the destinations first), then the received
            ones.
        route: how the rows come here; None for a data-parallel layer above another.
        sources: int64[num_src] global ids.
        halves: the block in two, where one can be computed before the rows are here.
    """

    block: Block
    route: Route | None
    sources: np.ndarray
    halves: Halves | None = None

    def blocks(self) -> list[Block]:
        """All blocks that are kept for it."""
        if self.halves is None:
            return [self.block]
        return [self.block, self.halves.inner.block, self.halves.outer.block]

    def cross_edges(self) -> int:
        """Edges whose source's row comes from another rank."""
        if self.route is None:
            return 0
        place = self.block.indices
        if self.route.order is not None:
            place = self.route.order[place]
        return int(torch.count_nonzero(place >= self.route.own))


@dataclass(slots=True, eq=False)
class SplitBatch:
    """One rank's part of a global batch.

    Attributes:
        index: which global batch.
        layers: the input layer first.
        seeds: int64[n] global ids of the seeds whose loss this rank computes.
        input_nodes: int64[m] global ids of the vertices whose features this rank reads.
        global_seeds: seeds of the whole batch.
        x: the input of the first layer: float[num_src of its block, F], or rows left in
            their tables.
        node: named tensors of the seeds.
    """

    index: BatchIndex
    layers: list[SplitLayer]
    seeds: Tensor
    input_nodes: Tensor
    global_seeds: int
    x: Tensor | FeatureRows | None = None
    node: Mapping[str, Tensor] = field(default_factory=dict)

    def counts(self) -> np.ndarray:
        """This rank's part of ``LayerCounts``: int64[layers + 1, 5]."""
        out = np.zeros((len(self.layers) + 1, 5), np.int64)
        out[0, counts.VERTICES] = self.input_nodes.numel()
        for layer, row in zip(self.layers, out[1:], strict=True):
            block = layer.block
            row[:] = block.num_dst, block.num_edges, layer.cross_edges(), 0, block.num_src
            row[counts.ROWS_SHUFFLED] = 0 if layer.route is None else layer.route.received
        return out

    def edges(self, original_ids: np.ndarray) -> np.ndarray:
        """As ``MiniBatch.edges``: int64[e, 4], rows (hop, source, destination, edge id)."""
        rows = []
        for hop, layer in enumerate(reversed(self.layers)):
            nodes = original_ids[layer.sources]
            src, dst = layer.block.edge_index().numpy()
            ids = layer.block.edge_ids
            eid = np.full(src.size, -1) if ids is None else ids.numpy()
            rows.append(np.stack((np.full(src.size, hop), nodes[src], nodes[dst], eid), axis=1))
        return np.concatenate(rows).astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Cooperation:
    """Samples this rank's part of every global batch, hop by hop with the other ranks.

    For one thread at a time.

    The draw of a vertex depends on (seed, epoch, batch, hop, original id) alone, so that the union
    of all ranks' edges is the batch that one process draws.

    Args:
        sampler: fan-outs and what blocks carry.
        own: topology of the vertices that this rank owns; asks nobody.
        everywhere: topology of all vertices, for data-parallel layers; collective where ``own``
            does not hold them.
        homes: who owns a vertex.
        exchange: between all ranks; used by one thread.
        seed: of the run.
        data_parallel: layers next to the seeds that every rank computes for its own seeds.
        overlap: cut layers into halves, so that one is computed while hidden rows travel.
    """

    sampler: NeighborSampler
    own: Topology
    everywhere: Topology
    homes: Homes
    exchange: Exchange
    seed: int
    data_parallel: int = 0
    overlap: bool = False
    _named: Relabeller = field(init=False, repr=False)
    _computed: Relabeller = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("_named", "_computed"):  # kept: each holds 4 bytes a node of the graph
            object.__setattr__(self, name, Relabeller(self.own.num_nodes))

    def sample(self, index: BatchIndex, seeds: np.ndarray, global_seeds: int) -> SplitBatch:
        """The part of global batch ``index`` whose seeds here are ``seeds``. Collective."""
        numbering = self._named
        numbering.start(seeds)
        layers: list[SplitLayer] = []
        for hop in range(self.data_parallel):
            block = self._block(self.everywhere, hop, index, numbering.nodes.copy())
            layers.append(SplitLayer(block, None, numbering.nodes.copy()))
        frontier = seeds
        if layers:
            frontier, route, place = self._meet(numbering.nodes)
            route.order = torch.from_numpy(place)
            layers[-1].route = route
            for layer in layers:
                layer.block.ids = self._ids(layer.sources)
        for hop in range(self.data_parallel, len(self.sampler.fanouts)):
            numbering.start(frontier)
            block = self._block(self.own, hop, index, frontier)
            named = numbering.nodes.copy()
            frontier, route, place = self._meet(named)
            block.indices = torch.from_numpy(place.astype(np.int32)[block.indices.numpy()])
            block.num_src = frontier.size + route.received
            sources = np.empty(block.num_src, np.int64)
            sources[: frontier.size] = frontier
            sources[place] = named
            block.ids = self._ids(sources)
            last = hop + 1 == len(self.sampler.fanouts)  # its input rows come ahead of the model
            halves = halve(block, frontier.size) if self.overlap and not last else None
            layers.append(SplitLayer(block, route, sources, halves))
        return SplitBatch(
            index,
            layers[::-1],
            torch.from_numpy(np.ascontiguousarray(seeds)),
            torch.from_numpy(frontier),
            global_seeds,
        )

    def _block(self, topology: Topology, hop: int, index: BatchIndex, nodes: np.ndarray) -> Block:
        sampler = self.sampler
        key = Keys.of(sampler.key(self.seed, index, hop), nodes.size)
        drawn = sampler.draw(topology, nodes, sampler.fanouts[hop], key)
        block = make_block(drawn, self._named)
        layer = len(sampler.fanouts) - 1 - hop
        block.key = rng.fold(self.seed, Stream.DROPOUT, *index, layer)
        return block

    def _meet(self, nodes: np.ndarray) -> tuple[np.ndarray, Route, np.ndarray]:
        """Tell owners which vertices are needed here.

        Returns the vertices that this rank computes below (those of ``nodes`` that it owns, in
        order, then those that others asked for), the route, and the place of each of ``nodes``
        among the rows that the route brings.
        """
        rank, size = self.exchange.rank, self.exchange.size
        dtype = index_dtype(self.own.num_nodes)
        at = self.homes.group(nodes, size)
        mine, at[rank] = at[rank], at[rank][:0]
        asked = self.exchange.all_to_all([torch.from_numpy(nodes[p].astype(dtype)) for p in at])
        numbering = self._computed
        numbering.start(nodes[mine], "frontier")
        send = [
            numbering.add(ids.numpy().astype(np.int64)) if r != rank else np.empty(0, np.int32)
            for r, ids in enumerate(asked)
        ]
        frontier = numbering.nodes.copy()
        place = np.empty(nodes.size, np.int64)
        place[mine] = np.arange(mine.size)
        theirs = np.concatenate(at)
        place[theirs] = frontier.size + np.arange(theirs.size)
        route = Route(
            torch.from_numpy(np.concatenate(send).astype(np.int64)),
            [s.size for s in send],
            [p.size for p in at],
            frontier.size,
        )
        return frontier, route, place

    def _ids(self, nodes: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.own.original_ids(nodes)))
