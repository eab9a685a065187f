"""Multilevel partitioners by METIS and KaMinPar, on the undirected graph."""

import tempfile
from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.kernels import partition as kernels
from gnn_dist.partitioners.weights import LARGEST_TOTAL, fill_empty, integer_weights

_SEEDS = 1 << 31


def metis(
    graph: Graph,
    num_parts: int,
    *,
    node_weights: np.ndarray | None = None,
    edge_weights: np.ndarray | None = None,
    seed: int,
    imbalance: float = 0.03,
    recursive: bool = False,
    cuts: int = 1,
    iterations: int = 10,
) -> np.ndarray:
    """METIS 5 (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998) through ``pymetis``.

    Args:
        imbalance: allowed weight of a part above the mean.
        recursive: recursive bisection instead of k-way refinement.
        cuts: partitions to compute, of which the best is kept.
        iterations: refinement rounds at each level.
    """
    _check_multilevel(imbalance)
    for field, value in (("cuts", cuts), ("iterations", iterations)):
        if value < 1:
            raise InputError(f"partitioner.args.{field}: must be at least 1, not {value}")
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    import pymetis

    indptr, neighbours, weights = undirected(graph, edge_weights)
    if not neighbours.size:
        return _no_edges(graph.num_nodes, num_parts, node_weights)
    # pymetis reads arrays of its own integer type without a copy, and checks no lengths.
    dtype = np.dtype(pymetis.zero_copy_dtype())
    vweights = None if node_weights is None else integer_weights(node_weights).astype(dtype)
    eweights = None if (weights == 1).all() else integer_weights(weights).astype(dtype)
    adjacency = pymetis.CSRAdjacency(
        indptr.astype(dtype, copy=False), neighbours.astype(dtype, copy=False)
    )
    del neighbours, weights  # METIS at its peak needs several times their size
    result = pymetis.part_graph(
        num_parts,
        adjacency,
        vweights=vweights,
        eweights=eweights,
        recursive=recursive,
        options=pymetis.Options(
            seed=seed % _SEEDS,
            ufactor=max(1, round(imbalance * 1000)),
            ncuts=cuts,
            niter=iterations,
        ),
    )
    return fill_empty(np.asarray(result.vertex_part, np.int32), num_parts, node_weights)


def kaminpar(
    graph: Graph,
    num_parts: int,
    *,
    node_weights: np.ndarray | None = None,
    edge_weights: np.ndarray | None = None,
    seed: int,
    imbalance: float = 0.03,
    preset: str = "default",
    threads: int = 1,
) -> np.ndarray:
    """KaMinPar (Gottesbüren, Heuer, Sanders, Schulz, Seemaier, ESA 2021); extra ``kaminpar``.

    The library reads graphs from files only, so the graph goes through one in the folder for
    temporary files (16 bytes an undirected edge and direction, 16 a node).

    Args:
        imbalance: allowed weight of a part above the mean.
        preset: ``fast``, ``default``, ``eco``, ``strong``, ``terapart``, ``largek`` and others of
            ``kaminpar.context_names()``.
        threads: with more than one the answer may differ from run to run.
    """
    _check_multilevel(imbalance)
    try:
        import kaminpar as library
    except ImportError as error:
        raise InputError(
            "partitioner: 'kaminpar' needs the package kaminpar; install it with "
            "pip install 'gnn-dist[kaminpar]', or use metis"
        ) from error
    if preset not in library.context_names():
        raise InputError(
            f"partitioner.args.preset: {preset!r} is not one of "
            f"{', '.join(sorted(library.context_names()))}"
        )
    if threads < 1:
        raise InputError(f"partitioner.args.threads: must be at least 1, not {threads}")
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    indptr, neighbours, weights = undirected(graph, edge_weights)
    if not neighbours.size:
        return _no_edges(graph.num_nodes, num_parts, node_weights)
    with tempfile.TemporaryDirectory(prefix="gnn-dist-") as folder:
        file = Path(folder) / "graph.parhip"
        try:
            _write_parhip(file, indptr, neighbours, weights, node_weights)
        except OSError as error:
            raise InputError(
                f"partitioner 'kaminpar': cannot write {file}: {error.strerror}; set TMPDIR to a "
                "folder with room"
            ) from error
        loaded = library.load_graph(str(file), library.GraphFileFormat.PARHIP)
    library.reseed(seed % _SEEDS)
    solver = library.KaMinPar(threads, library.context_by_name(preset))
    parts = solver.compute_partition(loaded, k=num_parts, eps=imbalance)
    return fill_empty(np.asarray(parts, np.int32), num_parts, node_weights)


def undirected(
    graph: Graph, edge_weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr int64[N + 1], neighbours, float64 weights): no self-loops, parallel edges summed."""
    given = np.empty(0, np.float64) if edge_weights is None else edge_weights
    by_source = kernels.transpose(graph.indptr, graph.indices, given)
    return kernels.symmetric_rows(graph.indptr, graph.indices, given, *by_source)


def _write_parhip(
    file: Path,
    indptr: np.ndarray,
    neighbours: np.ndarray,
    weights: np.ndarray,
    node_weights: np.ndarray | None,
) -> None:
    """ParHIP's binary format: header, byte offset of each row, neighbours, weights.

    The header is (version, nodes, directed edges); bits 0 and 1 of the version are *off* where the
    file has edge and node weights, the others are off for 64-bit integers.
    """
    num_nodes = indptr.size - 1
    weighted_edges = not (weights == 1).all()
    version = (not weighted_edges) + 2 * (node_weights is None)
    first = 8 * (3 + indptr.size)
    with file.open("wb") as out:
        np.array([version, num_nodes, neighbours.size], np.uint64).tofile(out)
        (indptr * 8 + first).astype(np.uint64).tofile(out)
        neighbours.astype(np.uint64).tofile(out)
        if node_weights is not None:
            _above_zero(integer_weights(node_weights)).tofile(out)
        if weighted_edges:
            integer_weights(weights).tofile(out)


def _above_zero(weights: np.ndarray) -> np.ndarray:
    """Whole weights with 1 for 0, and the others scaled up so that a 1 hardly counts.

    KaMinPar 3.7 does not end where fewer nodes than parts have a weight.
    """
    if weights.all():
        return weights
    return np.maximum(weights * max(1, LARGEST_TOTAL // int(weights.sum())), 1)


def _no_edges(num_nodes: int, num_parts: int, node_weights: np.ndarray | None) -> np.ndarray:
    """Nothing to cut: the heaviest nodes first, each to the lightest part."""
    weights = np.ones(num_nodes) if node_weights is None else node_weights
    assignment = np.empty(num_nodes, np.int32)
    load = np.zeros(num_parts)
    for node in np.argsort(-weights, kind="stable"):
        assignment[node] = part = int(load.argmin())
        load[part] += weights[node]
    return fill_empty(assignment, num_parts, node_weights)


def _check_multilevel(imbalance: float) -> None:
    if not 0 < imbalance < 10:
        raise InputError(
            f"partitioner.args.imbalance: must be between 0 and 10, not {imbalance:g}; "
            "0.03 allows 3% above the mean"
        )
