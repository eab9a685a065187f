"""Sampling as products of sparse matrices: the reference that the fused kernels are equal to.

Tripathy, Yelick, Buluç, "Distributed matrix-based sampling for graph neural network training"
(MLSys 2024): the rows of a frontier are Q·A, a sample is drawn of each row in proportion to its
entries, and what was drawn is extracted. A is kept as D·S, D node × edge and S edge × node, so that
parallel edges stay apart and keep their order. Draws have the keys of ``gnn_dist.rng``, in plain
Python: for study, a thousand times slower than the kernels.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from gnn_dist import rng
from gnn_dist.errors import InputError
from gnn_dist.kernels.sample_layer import UNITS
from gnn_dist.sampling.topology import (
    ALL,
    Keys,
    Neighbours,
    check_weights,
    edge_tensor,
    running_masses,
)
from gnn_dist.storage import PartitionedGraph

_SHORT = 64  # rows up to this length share a random word between two draws (kernels.sample)


class MatrixTopology:
    """The whole graph as sparse matrices in one process; draws what the kernels draw."""

    collective = False

    def __init__(self, graph: PartitionedGraph) -> None:
        parts = [graph.part(p) for p in range(graph.num_parts)]
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        self._book = np.asarray(graph.original_ids())
        self._sources = np.concatenate([part.indices for part in parts])
        self._edge_ids = np.concatenate([part.edge_ids for part in parts])
        self._edge = {
            name: np.concatenate([part.edge[name] for part in parts])
            for name in (parts[0].edge if parts else {})
        }
        edges, nodes = self._sources.size, self._book.size
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        ones = np.ones(edges, np.int64)
        self._into = sp.csr_matrix((ones, np.arange(edges), indptr), (nodes, edges))
        self._out_of = sp.csr_matrix((ones, self._sources, np.arange(edges + 1)), (edges, nodes))

    @property
    def num_nodes(self) -> int:
        return self._book.size

    def original_ids(self, nodes: np.ndarray) -> np.ndarray:
        return self._book[nodes]

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
        rows = self._choose(nodes) @ self._into  # Q·D: the edges of each row
        rows.sort_indices()
        weight = None if weights is None else self._weight(weights)
        drawn: list[np.ndarray] = []
        for value, at, _ in Keys.of(key, nodes.size).groups():
            for i in range(at.start, at.stop):
                edges = rows.indices[rows.indptr[i] : rows.indptr[i + 1]]
                node = int(self._book[nodes[i]])
                if fanout == ALL:
                    places = list(range(edges.size))
                elif shared:
                    places = shared_row(int(value), self._book[self._sources[edges]], fanout)
                elif weight is not None:
                    places = weighted_row(int(value), node, weight[edges], fanout, replace)
                else:
                    places = uniform_row(int(value), node, edges.size, fanout, replace)
                drawn.append(edges[places])
        indptr = np.concatenate([[0], np.cumsum([d.size for d in drawn])]).astype(np.int64)
        positions = np.concatenate([np.empty(0, np.int64), *drawn]).astype(np.int64)
        # extraction: a row an edge drawn, times S
        choose = sp.csr_matrix(
            (np.ones(positions.size, np.int64), positions, np.arange(positions.size + 1)),
            (positions.size, self._sources.size),
        )
        sources = (choose @ self._out_of).indices.astype(self._sources.dtype)
        return Neighbours(
            indptr,
            sources,
            self._edge_ids[positions] if edge_ids else None,
            {name: edge_tensor(self._edge, name)[positions] for name in edge},
        )

    def source_masses(self) -> tuple[np.ndarray, np.ndarray]:
        every = np.arange(self.num_nodes)
        return running_masses(self.squared_columns(every), self._book)

    def squared_columns(self, nodes: np.ndarray) -> np.ndarray:
        """The column sums of Q·(A∘A), Q choosing ``nodes``: int64[N] in units of 2⁻³⁶."""
        rows = self._choose(nodes) @ self._into
        length = np.maximum(np.asarray(rows.sum(axis=1)).ravel(), 1)
        squares = sp.diags(np.maximum(1, UNITS // length**2), dtype=np.int64) @ rows
        return np.asarray((squares @ self._out_of).sum(axis=0)).ravel().astype(np.int64)

    def _choose(self, nodes: np.ndarray) -> sp.csr_matrix:
        """Q: one row a node of the frontier."""
        n = nodes.size
        return sp.csr_matrix((np.ones(n, np.int64), nodes, np.arange(n + 1)), (n, self.num_nodes))

    def _weight(self, name: str) -> np.ndarray:
        values = edge_tensor(self._edge, name, "sampler.weights")
        check_weights(name, values.shape[1:])
        if (values < 0).any() or np.isnan(values).any():
            raise InputError(
                f"sampler.weights: edge tensor {name!r} holds negative weights or NaN; give "
                "weights >= 0"
            )
        return values.reshape(-1)


def uniform_row(key: int, node: int, length: int, fanout: int, replace: bool) -> list[int]:
    """Positions drawn of a row, ascending: Floyd's algorithm, or with replacement."""
    if length == 0:
        return []
    if replace:
        return sorted(int(_unit(key, node, i) * length) for i in range(fanout))
    if fanout >= length:
        return list(range(length))
    drawn: set[int] = set()
    for i in range(fanout):
        top = length - fanout + i
        if length <= _SHORT:
            half = _bits(key, node, i // 2) >> 32 * (i % 2) & 0xFFFFFFFF
            place = half * (top + 1) >> 32
        else:
            place = int(_unit(key, node, i) * (top + 1))
        drawn.add(top if place in drawn else place)
    return sorted(drawn)


def weighted_row(key: int, node: int, weights: np.ndarray, fanout: int, replace: bool) -> list[int]:
    """Positions drawn of a row in proportion to its normalised weights, ascending."""
    possible = np.flatnonzero(weights > 0).tolist()
    if not possible:
        return []
    if not replace:
        score = {
            j: math.log(((_bits(key, node, j) >> 11) + 1) * 2.0**-53) / float(weights[j])
            for j in possible
        }
        return sorted(sorted(possible, key=score.__getitem__, reverse=True)[:fanout])
    running = np.cumsum(weights.astype(np.float64))
    drawn = [_unit(key, node, i) * running[-1] for i in range(fanout)]
    places = np.minimum(np.searchsorted(running, drawn, side="right"), possible[-1])
    return sorted(places.tolist())


def shared_row(key: int, sources: np.ndarray, fanout: int) -> list[int]:
    """LABOR-0: the positions whose source (an original id) drew below fanout / degree."""
    limit = fanout / max(sources.size, 1)
    if limit >= 1.0:
        return list(range(sources.size))
    variates = [_unit(key, int(source), 0) for source in sources]
    return [j for j, r in enumerate(variates) if r < limit] or [int(np.argmin(variates))]


def _bits(key: int, node: int, counter: int) -> int:
    return int(rng.node_draws(key, np.array([node]), counter)[0])


def _unit(key: int, node: int, counter: int) -> float:
    return (_bits(key, node, counter) >> 11) * 2.0**-53
