"""``Graph``: an immutable graph in memory, validated once at the border.

Topology is CSC over in-neighbours: the in-neighbours of node ``v`` are
``indices[indptr[v]:indptr[v + 1]]``, in the order in which their edges were given. Samplers, the
partition storage and the kernels all rely on that order (see ``gnn_dist.rng``).
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnn_dist.errors import InputError

SPLITS = ("train", "val", "test")


def index_dtype(num_nodes: int) -> type[np.signedinteger[Any]]:
    """int32 where every id fits, else int64."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with named node and edge tensors.

    Attributes:
        indptr: int64[N + 1].
        indices: int32[E] (int64 where N does not fit), the sources of the edges, by destination.
        edge_ids: int64[E] or None. Edge ``k`` of the CSC arrays is edge ``edge_ids[k]`` of the
            edge list that the user gave; None where both orders are the same.
        node: named arrays with N rows. By convention ``x`` is float[N, F] and ``y`` the labels
            (int64[N] classes; float32[N] or float32[N, T] targets or multi-labels).
        edge: named arrays with E rows, row ``i`` for edge ``i`` *of the user's edge list*.
        splits: ``train``, ``val``, ``test`` → int64 node ids, ascending.
        info: JSON-able facts for people and tasks (``name``, ``num_classes``, ``targets``, ...).
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray | None = None
    node: Mapping[str, np.ndarray] = field(default_factory=dict)
    edge: Mapping[str, np.ndarray] = field(default_factory=dict)
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        indptr = np.ascontiguousarray(self.indptr, dtype=np.int64)
        if indptr.ndim != 1 or indptr.size < 2 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise InputError(
                "graph.indptr: must be int64[N + 1] with N >= 1, begin with 0 and never decrease"
            )
        num_nodes = indptr.size - 1
        indices = np.asarray(self.indices)
        if indices.ndim != 1 or indices.size != indptr[-1]:
            raise InputError(
                f"graph.indices: has shape {indices.shape}, but indptr ends with {indptr[-1]}; "
                "give one source for every edge"
            )
        _check_ids("graph.indices", indices, num_nodes, "a node that does not exist")
        indices = np.ascontiguousarray(indices, dtype=index_dtype(num_nodes))
        edge_ids = self.edge_ids
        if edge_ids is not None:
            edge_ids = np.ascontiguousarray(edge_ids, dtype=np.int64)
            if edge_ids.shape != indices.shape:
                raise InputError(
                    f"graph.edge_ids: {edge_ids.size} ids for {indices.size} edges; give one each"
                )
            _check_ids("graph.edge_ids", edge_ids, indices.size, "an edge that does not exist")
        set_ = functools.partial(object.__setattr__, self)
        set_("indptr", indptr)
        set_("indices", indices)
        set_("edge_ids", edge_ids)
        set_("node", _check_tensors("node", self.node, num_nodes, "nodes"))
        set_("edge", _check_tensors("edge", self.edge, indices.size, "edges"))
        set_("splits", _check_splits(self.splits, num_nodes))
        set_("info", dict(self.info))

    @classmethod
    def from_edges(
        cls,
        src: np.ndarray,
        dst: np.ndarray,
        num_nodes: int | None = None,
        *,
        node: Mapping[str, np.ndarray] | None = None,
        edge: Mapping[str, np.ndarray] | None = None,
        splits: Mapping[str, np.ndarray] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> "Graph":
        """From edge lists ``src -> dst`` (int[E] each); parallel edges and self-loops are kept.

        ``num_nodes`` defaults to one more than the largest id. Raises ``InputError`` for an edge
        that names a node that does not exist.
        """
        src, dst = (a if a.size else a.astype(np.int64) for a in map(np.asarray, (src, dst)))
        if src.ndim != 1 or src.shape != dst.shape:
            raise InputError(
                f"graph edges: src has shape {src.shape} and dst {dst.shape}; give two equally "
                "long one-dimensional arrays"
            )
        if num_nodes is None:
            largest = max((int(a.max()) for a in (src, dst) if a.size), default=-1)
            rows = max((len(v) for v in (node or {}).values()), default=0)
            num_nodes = max(largest + 1, rows)
        if num_nodes < 1:
            raise InputError("graph: has no nodes; give edges, node tensors or num_nodes >= 1")
        _check_ids("graph edges (src)", src, num_nodes, "a node that does not exist")
        _check_ids("graph edges (dst)", dst, num_nodes, "a node that does not exist")
        in_order = bool((dst[1:] >= dst[:-1]).all())
        order = None if in_order else np.argsort(dst, kind="stable").astype(np.int64, copy=False)
        indptr = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
        return cls(
            indptr,
            src if order is None else src[order],
            order,
            node or {},
            edge or {},
            splits or {},
            info or {},
        )

    @classmethod
    def from_scipy(cls, matrix: Any, **tensors: Any) -> "Graph":
        """From a sparse matrix A with A[i, j] != 0 for an edge ``i -> j``; values become
        ``edge['weight']`` unless all are 1."""
        coo = matrix.tocoo()
        if coo.shape[0] != coo.shape[1]:
            raise InputError(f"graph: an adjacency matrix must be square, this one is {coo.shape}")
        edge = dict(tensors.pop("edge", None) or {})
        if coo.data.size and not (coo.data == 1).all():
            edge.setdefault("weight", coo.data)
        return cls.from_edges(coo.row, coo.col, coo.shape[0], edge=edge, **tensors)

    @classmethod
    def from_networkx(cls, graph: Any, **tensors: Any) -> "Graph":
        """From a networkx graph; node ``k`` is the k-th of ``graph.nodes``, an undirected edge
        becomes two, and an edge attribute ``weight`` becomes ``edge['weight']``."""
        position = {node: k for k, node in enumerate(graph.nodes)}
        rows = [(position[u], position[v], d.get("weight")) for u, v, d in graph.edges(data=True)]
        if not graph.is_directed():
            rows += [(v, u, w) for u, v, w in rows if u != v]
        src = np.fromiter((r[0] for r in rows), np.int64, len(rows))
        dst = np.fromiter((r[1] for r in rows), np.int64, len(rows))
        edge = dict(tensors.pop("edge", None) or {})
        if rows and all(r[2] is not None for r in rows):
            edge.setdefault("weight", np.array([r[2] for r in rows], np.float32))
        return cls.from_edges(src, dst, len(position), edge=edge, **tensors)

    @classmethod
    def from_pyg(cls, data: Any) -> "Graph":
        """From ``torch_geometric.data.Data``: ``x``, ``y`` and other node tensors, ``edge_attr``
        and ``edge_weight``, and the masks ``train_mask``, ``val_mask``, ``test_mask``; bfloat16
        becomes float32. Raises ``InputError`` for typed graphs and for what does not fit."""
        edge_index: Any = getattr(data, "edge_index", None)
        if getattr(edge_index, "ndim", 0) != 2 or edge_index.shape[0] != 2:
            raise InputError(
                f"data.edge_index: {type(data).__name__} has none of shape [2, E]; give a "
                "torch_geometric.data.Data with one (typed graphs are not supported yet: use "
                "data.to_homogeneous())"
            )
        num_nodes, num_edges = int(data.num_nodes), edge_index.shape[1]
        node, edge, splits = {}, {}, {}
        for key, value in data.to_dict().items():
            if key == "edge_index" or not hasattr(value, "numpy"):
                continue
            array = from_torch(key, value)
            if key.endswith("_mask") and key[:-5] in SPLITS:
                if array.shape != (num_nodes,) or array.dtype not in (bool, np.uint8):
                    raise InputError(
                        f"data.{key}: has shape {array.shape} of {array.dtype} for {num_nodes} "
                        f"nodes; give one boolean a node, of several splits one, as in "
                        f"data.{key} = data.{key}[:, 0]"
                    )
                splits[key[:-5]] = np.flatnonzero(array)
            elif key in ("edge_attr", "edge_weight") and array.shape[:1] != (num_edges,):
                raise InputError(
                    f"data.{key}: has shape {array.shape} for {num_edges} edges; give a row each"
                )
            elif key.startswith("edge_") and array.ndim and len(array) == num_edges:
                edge["weight" if key == "edge_weight" else key.removeprefix("edge_")] = array
            elif array.ndim and len(array) == num_nodes:
                node[key] = array
        src, dst = edge_index.cpu().numpy()
        return cls.from_edges(src, dst, num_nodes, node=node, edge=edge, splits=splits)

    def to_pyg(self) -> Any:
        """As ``torch_geometric.data.Data``; ``from_pyg`` reads it back."""
        from gnn_dist.interop.pyg import graph_to_data

        return graph_to_data(self)

    @classmethod
    def from_dgl(cls, graph: Any) -> "Graph":
        """From a ``DGLGraph`` of one type: ``feat`` becomes ``x``, ``label`` ``y``, the masks
        ``train_mask``, ``val_mask``, ``test_mask`` splits (see ``interop.dgl``)."""
        from gnn_dist.interop.dgl import graph_from_dgl

        return graph_from_dgl(graph)

    def to_dgl(self) -> Any:
        """As ``DGLGraph``; ``from_dgl`` reads it back."""
        from gnn_dist.interop.dgl import graph_to_dgl

        return graph_to_dgl(self)

    @property
    def num_nodes(self) -> int:
        return self.indptr.size - 1

    @property
    def num_edges(self) -> int:
        return self.indices.size

    def in_degrees(self) -> np.ndarray:
        """int64[N]."""
        return np.diff(self.indptr)

    def out_degrees(self) -> np.ndarray:
        """int64[N]."""
        return np.bincount(self.indices, minlength=self.num_nodes)

    def destinations(self) -> np.ndarray:
        """The destination of every edge of the CSC arrays: int32/int64[E]."""
        return np.repeat(np.arange(self.num_nodes, dtype=self.indices.dtype), self.in_degrees())

    def edge_in_csc_order(self, name: str) -> np.ndarray:
        """Edge tensor ``name`` with row ``k`` for edge ``k`` of the CSC arrays."""
        rows = self.edge[name]
        return rows if self.edge_ids is None else rows[self.edge_ids]

    @functools.cached_property
    def digest(self) -> str:
        """Hexadecimal BLAKE2b over topology, tensors and splits: what a partition is made for."""
        sha = hashlib.blake2b(digest_size=16)
        arrays = {"indptr": self.indptr, "indices": self.indices}
        if self.edge_ids is not None:
            arrays["edge_ids"] = self.edge_ids
        for group, named in (("node", self.node), ("edge", self.edge), ("split", self.splits)):
            arrays.update({f"{group}.{name}": named[name] for name in sorted(named)})
        for name, array in arrays.items():
            sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
            sha.update(np.ascontiguousarray(array).view(np.uint8).data)
        return sha.hexdigest()

    def __repr__(self) -> str:
        names = ", ".join([*self.node, *(f"edge.{name}" for name in self.edge)])
        return f"Graph({self.num_nodes:,} nodes, {self.num_edges:,} edges; {names or 'no tensors'})"


def from_torch(name: str, tensor: Any) -> np.ndarray:
    """A dense tensor as an array on the host; bfloat16, which NumPy lacks, as float32."""
    if str(tensor.layout) != "torch.strided":
        raise InputError(
            f"data.{name}: is sparse, which node and edge tensors cannot be; make it dense with "
            "to_dense(), or leave it out"
        )
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def _check_ids(field_name: str, ids: np.ndarray, limit: int, meaning: str) -> None:
    if not ids.size:
        return
    if not np.issubdtype(ids.dtype, np.integer):
        raise InputError(
            f"{field_name}: ids must be integers, these are {ids.dtype}; convert them first"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= limit:
        bad = low if low < 0 else high
        where = int(np.flatnonzero(ids == bad)[0])
        raise InputError(
            f"{field_name}: entry {where} is {bad}, {meaning}; ids run from 0 to {limit - 1}: "
            "correct or remove that entry"
        )


def _check_tensors(
    group: str, tensors: Mapping[str, Any], rows: int, what: str
) -> dict[str, np.ndarray]:
    checked = {}
    for name, value in tensors.items():
        array = np.asarray(value)
        if not name.isidentifier():
            raise InputError(f"graph.{group}: a tensor's name must be an identifier, not {name!r}")
        if array.ndim == 0 or array.shape[0] != rows:
            raise InputError(
                f"graph.{group}.{name}: has shape {array.shape} for {rows} {what}; give {rows} rows"
            )
        if array.dtype.kind not in "fiub":
            raise InputError(
                f"graph.{group}.{name}: dtype {array.dtype} is not supported; "
                "give floats, integers or booleans"
            )
        if array.dtype.kind == "f" and (bad := _first_not_finite(array)) is not None:
            raise InputError(
                f"graph.{group}.{name}: row {bad} holds NaN or infinity; "
                "clean or impute the values first"
            )
        checked[name] = array
    return checked


def _first_not_finite(array: np.ndarray, chunk: int = 1 << 16) -> int | None:
    for start in range(0, len(array), chunk):  # in chunks: the array may be a memory map
        rows = array[start : start + chunk]
        finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        if not finite.all():
            return start + int(np.argmin(finite))
    return None


def _check_splits(splits: Mapping[str, Any], num_nodes: int) -> dict[str, np.ndarray]:
    checked = {}
    for name, value in splits.items():
        ids = np.asarray(value)
        if ids.dtype == bool:
            if ids.shape != (num_nodes,):
                raise InputError(
                    f"graph.splits.{name}: a mask of shape {ids.shape} for {num_nodes} nodes; "
                    "give one boolean a node"
                )
            ids = np.flatnonzero(ids)
        if ids.ndim != 1:
            raise InputError(
                f"graph.splits.{name}: has shape {ids.shape}; give node ids in one dimension, or "
                "one boolean a node"
            )
        if ids.size == 0:
            ids = ids.astype(np.int64)
        _check_ids(f"graph.splits.{name}", ids, num_nodes, "a node that does not exist")
        unique = np.unique(ids).astype(np.int64)
        if unique.size != ids.size:
            raise InputError(f"graph.splits.{name}: a node is named twice; give each id once")
        checked[name] = unique
    return checked
