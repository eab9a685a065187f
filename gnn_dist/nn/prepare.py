"""What a model needs of the whole graph, added to it before it is partitioned."""

import dataclasses

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.nn.convs import GCN_EDGE_TENSOR


def add_self_loops(graph: Graph) -> Graph:
    """The graph with exactly one self-loop a node: those it has are removed and one is added,
    after the user's edges. Edge tensors keep their rows; the new edges' rows are 1 for floats
    (a weight), 0 for others."""
    n = graph.num_nodes
    src, dst = _edge_list(graph)
    kept = src != dst
    loops = np.arange(n)
    edge = {}
    for name, rows in graph.edge.items():
        value = 1 if rows.dtype.kind == "f" else 0
        new = np.full((n, *rows.shape[1:]), value, rows.dtype)
        edge[name] = np.concatenate((rows[kept], new))
    return Graph.from_edges(
        np.concatenate((src[kept], loops)),
        np.concatenate((dst[kept], loops)),
        n,
        node=graph.node,
        edge=edge,
        splits=graph.splits,
        info=graph.info,
    )


def gcn_norm(graph: Graph, weight: str | None = None) -> Graph:
    """The graph with self-loops and the edge tensor ``gcn`` float32[E] that ``GCNConv`` reads.

    With a_ij the weights of the edges j → i (1, or edge tensor ``weight``; 1 for self-loops) and
    d_i their sum over the k_i in-edges of i, row i → k_i · a_ij / √(d_i d_j). The mean of these
    over all in-edges is the symmetric normalisation of Kipf & Welling, and their mean over a
    uniform sample of in-edges is an unbiased estimate of it.
    """
    if weight is not None and weight not in graph.edge:
        names = ", ".join(graph.edge) or "none"
        raise InputError(f"gcn_norm: the graph has no edge tensor {weight!r}; it has: {names}")
    graph = add_self_loops(graph)
    src, dst = _edge_list(graph)
    a = np.ones(src.size) if weight is None else graph.edge[weight].astype(np.float64)
    if a.shape != src.shape:
        raise InputError(f"gcn_norm: edge tensor {weight!r} has shape {a.shape}; give one a edge")
    if (a < 0).any():
        raise InputError(f"gcn_norm: edge tensor {weight!r} has negative weights; give none")
    degree = np.bincount(dst, a, graph.num_nodes)
    count = np.bincount(dst, minlength=graph.num_nodes)
    values = count[dst] * a / np.sqrt(degree[dst] * degree[src])
    edge = {**graph.edge, GCN_EDGE_TENSOR: values.astype(np.float32)}
    return dataclasses.replace(graph, edge=edge)


def _edge_list(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations in the order of the user's edge list."""
    src, dst = graph.indices, graph.destinations()
    if graph.edge_ids is None:
        return src, dst
    inverse = np.empty_like(graph.edge_ids)
    inverse[graph.edge_ids] = np.arange(src.size)
    return src[inverse], dst[inverse]
