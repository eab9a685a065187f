"""``Topology``: sampled or full in-neighbours of these nodes, wherever their rows are stored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.kernels import sample, sample_layer, sample_weighted
from gnn_dist.kernels.gather import gather
from gnn_dist.storage import Part

T = TypeVar("T")

ALL = sample.ALL
"""The fan-out that takes every in-neighbour."""

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """Some in-edges of n nodes. The arrays belong to the caller, who may overwrite them.

    Attributes:
        indptr: int64[n + 1].
        indices: int32[e] or int64[e], *global* ids of the sources; within a row in the order of the
            graph.
        edge_ids: int64[e] original edge ids, where asked for.
        edge: the edge tensors asked for, with e rows.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray | None = None
    edge: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Keys of rows that lie in groups, one group a batch.

    Attributes:
        values: the key of each group.
        bounds: int64[groups + 1]; rows ``bounds[g] .. bounds[g + 1] - 1`` are drawn with
            ``values[g]``.
    """

    values: tuple[int, ...]
    bounds: np.ndarray

    @classmethod
    def of(cls, key: "int | Keys", num_rows: int) -> "Keys":
        """``key`` itself, or the one key of all rows."""
        return key if isinstance(key, Keys) else cls((key,), np.array([0, num_rows]))

    def at(self, places: np.ndarray) -> "Keys":
        """The keys of the rows at ``places`` (int64[m], ascending)."""
        if len(self.values) == 1:
            return Keys(self.values, np.array([0, places.size]))
        return Keys(self.values, np.searchsorted(places, self.bounds))

    def groups(self) -> Iterator[tuple[np.uint64, slice, slice]]:
        """(key, its rows, its CSC pointers) of every group that has rows."""
        for value, low, high in zip(
            self.values, self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True
        ):
            if low < high:
                yield np.uint64(value), slice(low, high), slice(low, high + 1)


class Topology(Protocol):
    """Where neighbours come from.

    Draws are keyed by ``key`` and the *original* id of each node alone: the same edges come back
    whatever the partition, the other nodes of the call and their order. With ``Keys``, several
    batches are drawn in one call, each as if it were alone.
    """

    @property
    def num_nodes(self) -> int: ...

    @property
    def collective(self) -> bool:
        """Whether ``sample`` is a collective call: every rank makes the same calls in the same
        order, one thread at a time, also with no nodes."""
        ...

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
        """Up to ``fanout`` in-edges of each of ``nodes`` (int64[n], global ids; -1 takes all).

        Without ``replace`` an edge is drawn at most once. ``weights`` names an edge tensor of
        non-negative numbers: the probabilities of a draw are proportional to them. ``shared``
        draws by a variate of each source instead (see ``LaborSampler``), ``fanout`` in the mean.
        """
        ...

    def original_ids(self, nodes: np.ndarray) -> np.ndarray:
        """int64[n] original ids of ``nodes`` (int64[n], global ids)."""
        ...

    def source_masses(self) -> tuple[np.ndarray, np.ndarray]:
        """What FastGCN's distribution is proportional to: (nodes with out-edges, int64[c] global
        ids in the order of their original ids; int64[c] running sum of the column sums of A∘A).

        Reads every edge once, when first called; collective where ``collective`` is.
        """
        ...


class PartRows:
    """The rows of one part, sampled where they lie. ``nodes`` are global ids that it owns.

    ``book`` int64[N] has the original id of every node of the graph.
    """

    def __init__(self, part: Part, book: np.ndarray) -> None:
        self.part = part
        ids = part.original_ids
        # ascending and distinct, so the ends alone tell
        self.identity = ids.size == 0 or (
            int(ids[0]) == part.first and int(ids[-1]) == part.first + ids.size - 1
        )
        self._book = _NONE if self.identity and ids.size == book.size else book
        self._weights: dict[str, np.ndarray] = {}

    def original_ids(self, nodes: np.ndarray) -> np.ndarray:
        return (
            nodes if self.identity else sample.take(self.part.original_ids, nodes - self.part.first)
        )

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
        part = self.part
        nodes = np.ascontiguousarray(nodes, np.int64)
        rows = nodes - part.first if part.first else nodes
        assert not rows.size or (rows.min() >= 0 and rows.max() < part.indptr.size - 1), (
            f"part {part.index} is asked for nodes that it does not own"
        )
        if shared and fanout != ALL:
            return self._sample_shared(rows, fanout, Keys.of(key, nodes.size), edge_ids, edge)
        probability = None if weights is None or fanout == ALL else self._weight(weights)
        if probability is None:
            starts, lengths, indptr = sample.extents(part.indptr, rows, fanout, replace)
        else:
            starts, lengths, indptr, bad = sample_weighted.weighted_extents(
                part.indptr, probability, rows, fanout, replace
            )
            if bad >= 0:
                raise InputError(
                    f"sampler.weights: edge tensor {weights!r} holds {probability[bad]} for edge "
                    f"{part.edge_ids[bad]}; weights must not be negative"
                )
        total = int(indptr[-1])
        by_weight = probability is not None
        positions = np.empty(total if by_weight or edge_ids or edge else 0, np.int64)
        if fanout == ALL:
            sources = np.empty(total, part.indices.dtype)
            sample.copy_rows(part.indices, starts, lengths, indptr, sources, positions)
        else:
            ids = self.original_ids(nodes)
            sources = np.empty(0 if by_weight else total, part.indices.dtype)
            for value, at, ends in Keys.of(key, nodes.size).groups():
                # out and positions are addressed by the pointers, so a group is a slice of rows
                frontier = (value, ids[at], starts[at], lengths[at], indptr[ends])
                if by_weight:
                    sample_weighted.weighted_positions(probability, *frontier, replace, positions)
                else:
                    sample.fill(part.indices, *frontier, fanout, replace, sources, positions)
            if by_weight:
                sources = sample.take(part.indices, positions)
        return self._with_edges(indptr, sources, positions, edge_ids, edge)

    def _sample_shared(
        self, rows: np.ndarray, fanout: int, keys: Keys, edge_ids: bool, edge: Sequence[str]
    ) -> Neighbours:
        part = self.part
        drawn = [
            sample_layer.shared_positions(
                part.indptr, part.indices, rows[at], fanout, value, self._book
            )
            for value, at, _ in keys.groups()
        ]
        positions = np.concatenate([_NONE, *(positions for _, positions in drawn)])
        counts = np.concatenate([_NONE, *(np.diff(indptr) for indptr, _ in drawn)])
        indptr = np.zeros(rows.size + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        return self._with_edges(
            indptr, sample.take(part.indices, positions), positions, edge_ids, edge
        )

    def _with_edges(
        self,
        indptr: np.ndarray,
        sources: np.ndarray,
        positions: np.ndarray,
        edge_ids: bool,
        edge: Sequence[str],
    ) -> Neighbours:
        part = self.part
        return Neighbours(
            indptr,
            sources,
            sample.take(part.edge_ids, positions) if edge_ids else None,
            {name: gather(edge_tensor(part.edge, name), positions) for name in edge},
        )

    def add_masses(self, mass: np.ndarray) -> None:
        """Add this part's column sums of A∘A to ``mass`` int64[N] (see ``sample_layer``)."""
        sample_layer.squared_masses(self.part.indptr, self.part.indices, mass)

    def _weight(self, name: str) -> np.ndarray:
        """The weights as float32[e] or float64[e]; other dtypes are converted once."""
        if name not in self._weights:
            values = edge_tensor(self.part.edge, name, "sampler.weights")
            check_weights(name, values.shape[1:])
            if values.dtype.kind in "iu":
                dtype: type = np.float64
            else:
                dtype = np.float64 if values.dtype == np.float64 else np.float32
            self._weights[name] = np.ascontiguousarray(values.reshape(-1), dtype)
        return self._weights[name]


def edge_tensor(tensors: Mapping[str, T], name: str, key: str = "sampler.edge") -> T:
    """``tensors[name]``, or an ``InputError`` that lists the edge tensors there are."""
    if name not in tensors:
        names = ", ".join(tensors) or "no edge tensor"
        raise InputError(f"{key}: the graph has no edge tensor {name!r}; it has {names}")
    return tensors[name]


def check_weights(name: str, shape: Sequence[int]) -> None:
    """Raise ``InputError`` unless a row of the edge tensor is one number."""
    if math.prod(shape) != 1:
        raise InputError(
            f"sampler.weights: a row of edge tensor {name!r} has shape {tuple(shape)}; "
            "give one number an edge"
        )


def running_masses(mass: np.ndarray, book: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``mass`` int64[N] by global id as ``Topology.source_masses`` gives it; ``book``: original
    ids."""
    nodes = np.argsort(book).astype(np.int64, copy=False)
    nodes = nodes[mass[nodes] > 0]
    return nodes, np.cumsum(mass[nodes])


class LocalTopology:
    """The whole graph in one part, in this process."""

    collective = False

    def __init__(self, part: Part) -> None:
        if part.first != 0 or part.halo.size:
            raise InputError(
                f"topology: part {part.index} is not the whole graph; use PartitionedTopology, or "
                "PartitionedGraph.from_graph(graph).part(0)"
            )
        self._rows = PartRows(part, part.original_ids)
        self._masses: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def num_nodes(self) -> int:
        return self._rows.part.indptr.size - 1

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
        return self._rows.sample(
            nodes,
            fanout,
            key,
            replace=replace,
            weights=weights,
            shared=shared,
            edge_ids=edge_ids,
            edge=edge,
        )

    def original_ids(self, nodes: np.ndarray) -> np.ndarray:
        return self._rows.original_ids(nodes)

    def source_masses(self) -> tuple[np.ndarray, np.ndarray]:
        if self._masses is None:
            mass = np.zeros(self.num_nodes, np.int64)
            self._rows.add_masses(mass)
            self._masses = running_masses(mass, self._rows.part.original_ids)
        return self._masses
