"""``Part`` and ``PartitionedGraph``: a graph cut into parts, in memory or as memory maps.

Nodes are renumbered so that part ``p`` owns the *global* ids ``offsets[p] .. offsets[p + 1] - 1``;
within a part they keep the order of their *original* ids. A part holds the rows of its nodes: all
their in-edges, in the graph's own order, and the rows of every node and edge tensor.
"""

import copyreg
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

if TYPE_CHECKING:
    from gnn_dist.storage.manifest import Manifest
    from gnn_dist.storage.stamps import Stamps


@dataclass(frozen=True)
class TensorSpec:
    """What a node or edge tensor is: ``dtype`` as meant, ``stored`` as held, shape of a row.

    They differ for features kept in float16: ``stored`` is ``float16``, ``dtype`` ``float32``,
    and whoever reads rows for computing widens them.
    """

    dtype: str
    stored: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Schema:
    """The tensors that every part of a graph has."""

    node: Mapping[str, TensorSpec] = field(default_factory=dict)
    edge: Mapping[str, TensorSpec] = field(default_factory=dict)


class TakenRows(Mapping[str, np.ndarray]):
    """The rows ``rows`` of named tables, gathered when a name is first asked for."""

    def __init__(self, tables: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        self._tables = tables
        self._rows = rows
        self._taken: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._taken:
            self._taken[name] = np.asarray(self._tables[name][self._rows])
        return self._taken[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def chunk(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start .. stop - 1`` alone; nothing is kept."""
        if name in self._taken:
            return self._taken[name][start:stop]
        return np.asarray(self._tables[name][self._rows[start:stop]])


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """One part: the rows of the nodes that it owns.

    Attributes:
        index: which part, from 0.
        first: global id of its first node; row ``i`` is global node ``first + i``.
        indptr: int64[n + 1].
        indices: int32[e] (int64 where N does not fit), *global* ids of the edges' sources.
        edge_ids: int64[e], ids in the user's edge list.
        original_ids: int64[n], ascending.
        node: named tensors with n rows, as stored (see ``Schema``).
        edge: named tensors with e rows, in the order of ``indices``.
        splits: name → int64 global ids of the split's nodes in this part, ascending.
        halo: int32/int64[h], global ids of sources that another part owns, ascending.
    """

    index: int
    first: int
    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    original_ids: np.ndarray
    node: Mapping[str, np.ndarray]
    edge: Mapping[str, np.ndarray]
    splits: Mapping[str, np.ndarray]
    halo: np.ndarray

    @property
    def num_nodes(self) -> int:
        return self.indptr.size - 1

    @property
    def num_edges(self) -> int:
        return self.indices.size

    @property
    def last(self) -> int:
        """One past the global id of the last node."""
        return self.first + self.num_nodes

    def __repr__(self) -> str:
        return (
            f"Part({self.index}: global nodes {self.first} to {self.last - 1}, "
            f"{self.num_edges:,} edges, halo {self.halo.size:,})"
        )


class PartSource(Protocol):
    """Makes one part, each time anew."""

    def __call__(self, index: int) -> Part: ...


class GraphSource(Protocol):
    """Says which graph this is (``Graph.digest``), possibly by computing it."""

    @property
    def digest(self) -> str: ...


class PartitionedGraph:
    """A graph in parts; made by ``assemble``, ``from_graph`` or ``open_partition``.

    Attributes:
        offsets: int64[P + 1]; part ``p`` owns global ids ``offsets[p] .. offsets[p + 1] - 1``.
        num_edges: edges of the whole graph.
        schema: the tensors of every part.
        info: JSON-able facts of the graph.
        manifest: what is written beside the parts; None in memory.
        path: the folder of the parts; None in memory.
    """

    def __init__(
        self,
        *,
        offsets: np.ndarray,
        num_edges: int,
        schema: Schema,
        original_ids: np.ndarray,
        splits: Mapping[str, np.ndarray],
        parts: PartSource,
        graph: GraphSource,
        info: Mapping[str, Any],
        manifest: "Manifest | None" = None,
        path: Path | None = None,
        stamps: "Stamps | None" = None,
    ) -> None:
        self.offsets = offsets
        self.num_edges = num_edges
        self.schema = schema
        self.info = dict(info)
        self.manifest = manifest
        self.path = path
        self._stamps = stamps
        self._original_ids = original_ids
        self._splits = dict(splits)
        self._make_part = parts
        self._graph = graph
        self._parts: dict[int, Part] = {}

    @classmethod
    def from_graph(cls, graph: Graph) -> "PartitionedGraph":
        """The whole graph as one part: global ids are the original ones, nothing is copied."""
        from gnn_dist.storage.assemble import one_part

        return one_part(graph)

    def check_files(self) -> None:
        """Raise ``InputError`` where a file went missing or was changed since it was opened."""
        if self._stamps is not None:
            self._stamps.check()

    @property
    def num_nodes(self) -> int:
        return int(self.offsets[-1])

    @property
    def num_parts(self) -> int:
        return self.offsets.size - 1

    @property
    def digest(self) -> str:
        """``Graph.digest`` of the graph that was cut."""
        return self._graph.digest

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def part(self, index: int) -> Part:
        """Part ``index``, opened or made when first asked for, then kept."""
        if index not in self._parts:
            part = self.fresh_part(index)
            self._parts.setdefault(index, part)  # of two threads that ask at once, one wins
        return self._parts[index]

    def fresh_part(self, index: int) -> Part:
        """Part ``index`` made anew and not kept: for one pass over all parts."""
        if not 0 <= index < self.num_parts:
            raise InputError(
                f"part: there is no part {index}; this graph has parts 0 to {self.num_parts - 1}"
            )
        return self._make_part(index)

    def owner(self, global_ids: np.ndarray) -> np.ndarray:
        """The part that owns each of ``global_ids`` (int[n]): int64[n]."""
        return np.searchsorted(self.offsets, global_ids, side="right") - 1

    def original_ids(self) -> np.ndarray:
        """The partition book: the original id of every global id, int64[N]."""
        return self._original_ids

    def global_ids(self) -> np.ndarray:
        """The global id of every original id, int64[N]; computed once."""
        return self._global_ids

    @functools.cached_property
    def _global_ids(self) -> np.ndarray:
        inverse = np.empty(self.num_nodes, np.int64)
        inverse[self._original_ids] = np.arange(self.num_nodes)
        return inverse

    def split(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """All nodes of a split: ``(global int64[k], original int64[k])``, by original id."""
        global_ids = self.split_in_parts(name)
        original = self._original_ids[global_ids]
        order = np.argsort(original)
        return global_ids[order], original[order]

    def split_in_parts(self, name: str) -> np.ndarray:
        """All nodes of a split by global id, thus part after part: int64[k]."""
        if name not in self._splits:
            names = f"use {', '.join(self._splits)}" if self._splits else "it has none: give splits"
            raise InputError(f"split: the graph has no split {name!r}; {names}")
        return self._splits[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """A graph of a folder is pickled as its path: another process maps the same files."""
        if self.path is None:
            return copyreg.__newobj__, (PartitionedGraph,), self.__dict__  # type: ignore[attr-defined]
        from gnn_dist.storage.read import open_partition

        return open_partition, (self.path,)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return (
            f"PartitionedGraph({self.num_nodes:,} nodes, {self.num_edges:,} edges, "
            f"{self.num_parts} parts, {where})"
        )


def splits_of(splits: Mapping[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    """The share of global ids ``first .. last - 1`` in each ascending split."""
    share = {}
    for name, ids in splits.items():
        low, high = np.searchsorted(ids, (first, last))
        share[name] = ids[low:high]
    return share
