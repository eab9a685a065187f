"""``PartitionedTopology``: rows of this host sampled in place, rows of other hosts asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnn_dist.cluster import Exchange, LocalExchange, Placement
from gnn_dist.graph import index_dtype
from gnn_dist.kernels import stitch as kernels
from gnn_dist.kernels.sample import take
from gnn_dist.sampling.topology import (
    Keys,
    Neighbours,
    PartRows,
    check_weights,
    edge_tensor,
    running_masses,
)
from gnn_dist.sampling.wire import Layout, pack, unpack
from gnn_dist.storage import PartitionedGraph


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked of every row; the same on every rank for one call."""

    fanout: int
    replace: bool
    weights: str | None
    shared: bool
    edge_ids: bool
    edge: tuple[str, ...]

    def of(self, rows: PartRows, nodes: np.ndarray, keys: Keys) -> Neighbours:
        return rows.sample(
            nodes,
            self.fanout,
            keys,
            replace=self.replace,
            weights=self.weights,
            shared=self.shared,
            edge_ids=self.edge_ids,
            edge=self.edge,
        )


class PartitionedTopology:
    """The graph in parts that lie on the hosts of ``placement``.

    A host samples its own parts in place, by memory maps that its ranks share. For another host's
    nodes one of that host's ranks is asked: one round of node ids and one of answers. Whether
    there are such rounds is the placement's alone to say, so ranks agree on it. Without an exchange
    it answers for the nodes of this host alone.
    """

    def __init__(
        self, graph: PartitionedGraph, placement: Placement, exchange: Exchange | None
    ) -> None:
        assert placement.num_parts == graph.num_parts, (
            f"a placement of {placement.num_parts} parts for a graph of {graph.num_parts}"
        )
        self._graph = graph
        self._exchange: Exchange = exchange or LocalExchange()
        self.collective = exchange is not None and not placement.all_local
        if self.collective and exchange is not None:
            assert (exchange.rank, exchange.size) == (placement.rank, placement.size), (
                f"exchange of rank {exchange.rank} of {exchange.size} for a placement of rank "
                f"{placement.rank} of {placement.size}"
            )
        self._offsets = np.asarray(graph.offsets, np.int64)
        book = np.asarray(graph.original_ids())
        self._rows = {p: PartRows(graph.part(p), book) for p in placement.local_parts}
        self._identity = graph.num_parts == 1 and all(r.identity for r in self._rows.values())
        self._speaks = placement.is_leader or not self.collective
        self._masses: tuple[np.ndarray, np.ndarray] | None = None
        # who answers for a part: the part itself where it is here, else a rank
        self._answerer = np.array(
            [
                part if placement.is_local(part) else graph.num_parts + placement.server_of(part)
                for part in range(graph.num_parts)
            ],
            np.int64,
        )

    @property
    def num_nodes(self) -> int:
        return self._graph.num_nodes

    def original_ids(self, nodes: np.ndarray) -> np.ndarray:
        if self._identity:
            return nodes
        return take(self._graph.original_ids(), nodes)

    def source_masses(self) -> tuple[np.ndarray, np.ndarray]:
        if self._masses is None:
            mass = np.zeros(self.num_nodes, np.int64)
            if self._speaks:
                for rows in self._rows.values():
                    rows.add_masses(mass)
            if self.collective:
                self._exchange.all_reduce_sum(torch.from_numpy(mass))
            self._masses = running_masses(mass, self._graph.original_ids())
        return self._masses

    def sample(
        self,
        nodes: np.ndarray,
        fanout: int,
        key: int | Keys,
        *,
        replace: bool = False,
        weights: str | None = None,
        shared: bool = False,
        edge_ids: bool = False,
        edge: Sequence[str] = (),
    ) -> Neighbours:
        # before any collective: what cannot be used must fail on every rank alike
        for name in edge:
            edge_tensor(self._graph.schema.edge, name)
        if weights is not None:
            spec = edge_tensor(self._graph.schema.edge, weights, "sampler.weights")
            check_weights(weights, spec.shape)
        request = _Request(fanout, replace, weights, shared, edge_ids, tuple(edge))
        nodes = np.ascontiguousarray(nodes, np.int64)
        keys = Keys.of(key, nodes.size)
        if not self.collective:
            return self._sample_here(nodes, keys, request)
        parts, size = self._graph.num_parts, self._exchange.size
        order, bounds = kernels.group(nodes, self._offsets, self._answerer, parts + size)
        remote = [order[bounds[parts + r] : bounds[parts + r + 1]] for r in range(size)]
        id_dtype = index_dtype(self.num_nodes)
        asked = self._exchange.all_to_all(
            [torch.from_numpy(question(nodes, keys, at).astype(id_dtype)) for at in remote]
        )
        layout = self._layout(request)
        answers = []
        for message in asked:
            ids, theirs = asked_for(message.numpy().astype(np.int64), keys.values)
            answers.append(pack(self._sample_here(ids, theirs, request), layout))
        replies = self._exchange.all_to_all(answers)
        pieces = self._local_pieces(nodes, keys, order, bounds, request)
        for places, reply in zip(remote, replies, strict=True):
            if places.size:
                pieces.append((places, unpack(reply, places.size, layout)))
        return stitch(nodes.size, pieces, layout)

    def _sample_here(self, nodes: np.ndarray, keys: Keys, request: _Request) -> Neighbours:
        """``nodes`` are all of this host's parts."""
        if len(self._rows) == 1 and nodes.size:
            return request.of(next(iter(self._rows.values())), nodes, keys)
        parts = self._graph.num_parts
        order, bounds = kernels.group(nodes, self._offsets, np.arange(parts), parts)
        pieces = self._local_pieces(nodes, keys, order, bounds, request)
        return stitch(nodes.size, pieces, self._layout(request))

    def _local_pieces(
        self,
        nodes: np.ndarray,
        keys: Keys,
        order: np.ndarray,
        bounds: np.ndarray,
        request: _Request,
    ) -> list[tuple[np.ndarray, Neighbours]]:
        pieces = []
        for part, rows in self._rows.items():
            places = order[bounds[part] : bounds[part + 1]]
            if places.size:
                pieces.append((places, request.of(rows, nodes[places], keys.at(places))))
        return pieces

    def _layout(self, request: _Request) -> Layout:
        schema = self._graph.schema.edge
        return Layout(
            np.dtype(index_dtype(self.num_nodes)),
            request.edge_ids,
            {name: (np.dtype(schema[name].dtype), schema[name].shape) for name in request.edge},
        )


def question(nodes: np.ndarray, keys: Keys, places: np.ndarray) -> np.ndarray:
    """A request for ``nodes[places]``: their ids, after the rows of each group where there are
    several. The keys themselves are known to every rank."""
    if len(keys.values) == 1:
        return nodes[places]
    return np.concatenate([np.diff(keys.at(places).bounds), nodes[places]])


def asked_for(message: np.ndarray, values: tuple[int, ...]) -> tuple[np.ndarray, Keys]:
    """The ids of a request, and their keys."""
    if len(values) == 1:
        return message, Keys.of(values[0], message.size)
    groups = len(values)
    bounds = np.concatenate([[0], np.cumsum(message[:groups])])
    return message[groups:], Keys(values, bounds)


def stitch(
    num_rows: int, pieces: Sequence[tuple[np.ndarray, Neighbours]], layout: Layout
) -> Neighbours:
    """The rows of all pieces as one answer; a piece is ``(places int64[n], neighbours)``."""
    if len(pieces) == 1 and pieces[0][0].size == num_rows:
        return pieces[0][1]  # places are ascending, so these are all rows in order
    indptr = np.zeros(num_rows + 1, np.int64)
    for places, piece in pieces:
        kernels.place_counts(places, piece.indptr, indptr)
    kernels.running_sum(indptr)
    total = int(indptr[-1])
    indices = np.empty(total, layout.index)
    edge_ids = np.empty(total, np.int64) if layout.edge_ids else None
    edge = {name: np.empty((total, *s), d) for name, (d, s) in layout.edge.items()}
    for places, piece in pieces:
        kernels.place_rows(places, piece.indptr, piece.indices, indptr, indices)
        if edge_ids is not None:
            kernels.place_rows(places, piece.indptr, piece.edge_ids, indptr, edge_ids)
        if edge:
            _place_tensors(kernels.edge_places(places, piece.indptr, indptr), piece.edge, edge)
    return Neighbours(indptr, indices, edge_ids, edge)


def _place_tensors(
    places: np.ndarray, rows: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray]
) -> None:
    for name, values in out.items():
        values[places] = rows[name]
