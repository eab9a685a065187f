"""Cut a graph in memory, given the part of every node."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph, index_dtype
from gnn_dist.kernels import partition as kernels
from gnn_dist.storage.layout import Part, PartitionedGraph, Schema, TakenRows, TensorSpec, splits_of


def assemble(graph: Graph, assignment: np.ndarray, num_parts: int) -> PartitionedGraph:
    """The graph cut into ``num_parts``; node ``v`` belongs to part ``assignment[v]``.

    A part's arrays are made when it is first asked for, so the peak is the graph, 12 to 16 bytes
    a node, and the parts in use. Parts may be empty here (``partitioners.partition`` refuses
    them). Raises ``InputError`` for an assignment of the wrong length, dtype or range.
    """
    assignment = check_assignment(assignment, graph.num_nodes, num_parts)
    original_ids = np.argsort(assignment, kind="stable").astype(np.int64, copy=False)
    offsets = np.zeros(num_parts + 1, np.int64)
    np.cumsum(np.bincount(assignment, minlength=num_parts), out=offsets[1:])
    dtype = index_dtype(graph.num_nodes)
    global_of = np.empty(graph.num_nodes, dtype)
    global_of[original_ids] = np.arange(graph.num_nodes, dtype=dtype)
    splits = {name: np.sort(global_of[ids]).astype(np.int64) for name, ids in graph.splits.items()}
    return PartitionedGraph(
        offsets=offsets,
        num_edges=graph.num_edges,
        schema=schema_of(graph),
        original_ids=original_ids,
        splits=splits,
        parts=_Cut(graph, offsets, original_ids, global_of, splits),
        graph=graph,
        info=graph.info,
    )


def one_part(graph: Graph) -> PartitionedGraph:
    """The whole graph as part 0, sharing its arrays."""
    return PartitionedGraph(
        offsets=np.array([0, graph.num_nodes], np.int64),
        num_edges=graph.num_edges,
        schema=schema_of(graph),
        original_ids=np.arange(graph.num_nodes),
        splits=graph.splits,
        parts=_Whole(graph),
        graph=graph,
        info=graph.info,
    )


def check_assignment(assignment: np.ndarray, num_nodes: int, num_parts: int) -> np.ndarray:
    """``assignment`` as an integer array, or ``InputError`` saying what is wrong with it."""
    if num_parts < 1:
        raise InputError(f"num_parts: must be at least 1, not {num_parts}")
    assignment = np.asarray(assignment)
    if assignment.shape != (num_nodes,):
        raise InputError(
            f"assignment: has shape {assignment.shape} for {num_nodes} nodes; "
            "give the part of every node"
        )
    if not np.issubdtype(assignment.dtype, np.integer):
        raise InputError(f"assignment: parts must be integers, these are {assignment.dtype}")
    low, high = int(assignment.min()), int(assignment.max())
    if low < 0 or high >= num_parts:
        bad = low if low < 0 else high
        node = int(np.flatnonzero(assignment == bad)[0])
        raise InputError(
            f"assignment: node {node} is given part {bad}; parts run from 0 to {num_parts - 1}"
        )
    return assignment


def halo_of(indices: np.ndarray, first: int, last: int, num_nodes: int) -> np.ndarray:
    """The distinct ``indices`` outside ``first .. last - 1``, ascending, of the same dtype."""
    mark = np.zeros(num_nodes, np.bool_)
    kernels.mark_halo(indices, first, last, mark)
    return np.flatnonzero(mark).astype(indices.dtype)


def schema_of(graph: Graph) -> Schema:
    """What the tensors of a graph in memory are; float16 is a way to store float32."""

    def spec(array: np.ndarray) -> TensorSpec:
        stored = array.dtype.name
        return TensorSpec("float32" if stored == "float16" else stored, stored, array.shape[1:])

    def specs(tensors: Mapping[str, np.ndarray]) -> dict[str, TensorSpec]:
        return {name: spec(array) for name, array in tensors.items()}

    return Schema(specs(graph.node), specs(graph.edge))


@dataclass(frozen=True, eq=False)
class _Whole:
    graph: Graph

    def __call__(self, index: int) -> Part:
        graph = self.graph
        in_order = graph.edge_ids is None
        edge_ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
        return Part(
            index=index,
            first=0,
            indptr=graph.indptr,
            indices=graph.indices,
            edge_ids=edge_ids,
            original_ids=np.arange(graph.num_nodes),
            node=graph.node,
            edge=graph.edge if in_order else TakenRows(graph.edge, edge_ids),
            splits=graph.splits,
            halo=np.empty(0, graph.indices.dtype),
        )


@dataclass(frozen=True, eq=False)
class _Cut:
    graph: Graph
    offsets: np.ndarray
    original_ids: np.ndarray
    global_of: np.ndarray
    splits: Mapping[str, np.ndarray]

    def __call__(self, index: int) -> Part:
        graph = self.graph
        first, last = int(self.offsets[index]), int(self.offsets[index + 1])
        rows = self.original_ids[first:last]
        indptr = np.zeros(rows.size + 1, np.int64)
        np.cumsum(graph.indptr[rows + 1] - graph.indptr[rows], out=indptr[1:])
        indices = np.empty(indptr[-1], graph.indices.dtype)
        edge_ids = np.empty(indptr[-1], np.int64)
        given_ids = np.empty(0, np.int64) if graph.edge_ids is None else graph.edge_ids
        kernels.part_edges(
            graph.indptr, graph.indices, given_ids, rows, self.global_of, indptr, indices, edge_ids
        )
        return Part(
            index=index,
            first=first,
            indptr=indptr,
            indices=indices,
            edge_ids=edge_ids,
            original_ids=rows,
            node=TakenRows(graph.node, rows),
            edge=TakenRows(graph.edge, edge_ids),
            splits=splits_of(self.splits, first, last),
            halo=halo_of(indices, first, last, graph.num_nodes),
        )
