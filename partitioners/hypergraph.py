"""Hypergraph partitioning by Mt-KaHyPar: nets that are cut, not edges."""

import functools
from typing import Any

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.partitioners.weights import fill_empty, integer_weights

PRESETS = ("deterministic", "default", "quality", "large_k")
OBJECTIVES = ("km1", "cut", "soed")


def mtkahypar(
    graph: Graph,
    num_parts: int,
    *,
    node_weights: np.ndarray | None = None,
    seed: int,
    imbalance: float = 0.03,
    preset: str = "deterministic",
    objective: str = "km1",
    threads: int = 1,
) -> np.ndarray:
    """Mt-KaHyPar (Gottesbüren, Heuer, Maas, Sanders, Schlag, 2024); extra ``mtkahypar``.

    A net is a node with everything that reads it, which is what a circuit's wire is. A graph made
    of a hypergraph (``info["hypergraph_vertices"]``, see the data set ``hgr``) gives its own
    hyperedges; the node of a hyperedge goes where most of its vertices are.

    Args:
        imbalance: allowed weight of a part above the mean.
        preset: deterministic, default, quality or large_k; only the first gives the same answer
            every time.
        objective: km1 (parts a net spans, less one), cut (nets cut) or soed (their sum).
        threads: of the process; the first call decides.
    """
    for field, value, allowed in (
        ("preset", preset, PRESETS),
        ("objective", objective, OBJECTIVES),
    ):
        if value not in allowed:
            raise InputError(
                f"partitioner.args.{field}: {value!r} is not one of {', '.join(allowed)}"
            )
    if not 0 <= imbalance < 1:
        raise InputError(
            f"partitioner.args.imbalance: {imbalance} is not valid; give a number in [0, 1)"
        )
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    indptr, pins, vertices = nets_of(graph)
    weights = np.ones(vertices, np.int64)
    if node_weights is not None:
        weights = integer_weights(node_weights)[:vertices]
    if not pins.size:  # nothing can be cut; the library takes no empty hypergraph
        parts = np.empty(graph.num_nodes, np.int32)
        parts[np.argsort(-weights, kind="stable")] = np.arange(graph.num_nodes) % num_parts
        return parts
    library, session = _session(threads)
    context = session.context_from_preset(getattr(library.PresetType, preset.upper()))
    library.set_seed(seed % (1 << 31))
    context.set_partitioning_parameters(
        num_parts, imbalance, getattr(library.Objective, objective.upper())
    )
    context.logging = False
    hypergraph = session.create_hypergraph(
        context,
        vertices,
        indptr.size - 1,
        [p.tolist() for p in np.split(pins, indptr[1:-1])],
        weights.tolist(),
        [1] * (indptr.size - 1),
    )
    result = hypergraph.partition(context)
    parts = np.array([result.block_id(v) for v in range(vertices)], np.int32)
    if vertices < graph.num_nodes:
        parts = np.concatenate((parts, _where_most_are(indptr, pins, parts, num_parts)))
    return fill_empty(parts, num_parts, node_weights)


def nets_of(graph: Graph) -> tuple[np.ndarray, np.ndarray, int]:
    """(indptr int64[M + 1], pins int64[P], number of vertices): nets of at least two pins, or the
    hyperedges of a graph that was made of some."""
    vertices = graph.info.get("hypergraph_vertices")
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    if vertices is not None:
        inward = destinations >= vertices
        indptr = np.zeros(graph.num_nodes - vertices + 1, np.int64)
        np.cumsum(np.diff(graph.indptr)[vertices:], out=indptr[1:])
        return indptr, graph.indices[inward].astype(np.int64), int(vertices)
    pairs = np.stack((graph.indices.astype(np.int64), destinations), axis=1)
    own = np.unique(pairs[:, 0])
    pairs = np.unique(np.concatenate((pairs, np.stack((own, own), axis=1))), axis=0)
    counts = np.bincount(pairs[:, 0], minlength=graph.num_nodes)
    kept = counts[pairs[:, 0]] > 1
    indptr = np.concatenate(([0], np.cumsum(counts[counts > 1])))
    return indptr, pairs[kept, 1], graph.num_nodes


def connectivity(indptr: np.ndarray, pins: np.ndarray, parts: np.ndarray) -> int:
    """Sum over nets of the parts that they span, less one (km1)."""
    net = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    spans = np.unique(np.stack((net, parts[pins]), axis=1), axis=0).shape[0]
    return int(spans - np.unique(net).size)


def _where_most_are(
    indptr: np.ndarray, pins: np.ndarray, parts: np.ndarray, num_parts: int
) -> np.ndarray:
    count = np.zeros((indptr.size - 1, num_parts), np.int64)
    net = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    np.add.at(count, (net, parts[pins]), 1)
    return count.argmax(axis=1).astype(np.int32)


@functools.cache
def _session(threads: int) -> tuple[Any, Any]:
    try:
        import mtkahypar as library
    except ImportError as error:
        raise InputError(
            "partitioner.name: 'mtkahypar' is not installed; install the extra mtkahypar, or use "
            "metis"
        ) from error
    return library, library.initialize(threads)
