"""Synthetic graphs of any size with planted labels and features: ``sbm`` and ``rmat``."""

from collections.abc import Mapping

import numpy as np

from gnn_dist import rng
from gnn_dist.datasets import edges
from gnn_dist.datasets.checks import check_count, check_number
from gnn_dist.datasets.splits import check_fractions, random_split
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

_LARGEST = np.iinfo(np.int32).max  # nodes; kernels hold ids as int32
_SPLIT = {"train": 0.6, "val": 0.2, "test": 0.2}


def sbm(
    *,
    num_nodes: int = 20_000,
    num_classes: int = 10,
    avg_degree: float = 10.0,
    homophily: float = 0.8,
    degree_exponent: float | None = None,
    num_features: int = 64,
    signal: float = 0.2,
    split: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Graph:
    """Stochastic block model with planted classes and features, degree-corrected by option.

    Undirected and simple: ``num_nodes * avg_degree / 2`` pairs are drawn without self-loops, and
    repeated ones kept once, so the mean degree comes out a little below ``avg_degree``. Classes
    are of equal size. Node tensors: ``x`` float32[N, F], ``y`` int64[N].

    Args:
        num_nodes: N.
        num_classes: blocks, each of them a class.
        avg_degree: neighbours of a node, in the mean.
        homophily: probability that an edge joins two nodes of one class.
        degree_exponent: exponent of the power law of degrees, above 2 (2.2 is strongly skewed);
            left out, all nodes of a class are alike.
        num_features: F.
        signal: standard deviation of a class's mean feature, against 1 of the noise.
        split: fraction of the nodes in train, val and test; left out, 0.6, 0.2 and 0.2.
        seed: of everything that is drawn.

    Raises ``InputError`` for an argument out of range. The degree-corrected form is that of
    Karrer and Newman, 2011.
    """
    _check("sbm", num_nodes, num_classes, avg_degree, homophily, num_features, signal, seed)
    ranks = -(-num_nodes // num_classes)
    if degree_exponent is None:
        weights: np.ndarray = np.ones(ranks)
    else:
        check_number("sbm.degree_exponent", degree_exponent, 2.0001, None)
        # Weights i^(-1/(g-1)) give degrees whose density falls with the exponent g.
        weights = np.arange(1, ranks + 1) ** (-1.0 / (degree_exponent - 1.0))
    pairs = round(num_nodes * avg_degree / 2)
    src, dst = np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    key = np.uint64(rng.fold(seed, rng.Stream.DATASET, 10))
    keep, other = edges.alias_table(weights)
    edges.sbm_pairs(key, num_nodes, num_classes, float(homophily), keep, other, src, dst)
    info = {"name": "sbm", "synthetic": True}
    fractions = _SPLIT if split is None else split
    return planted_graph(
        src, dst, num_nodes, num_classes, num_features, signal, fractions, seed, info=info
    )


def rmat(
    *,
    num_nodes: int = 20_000,
    num_classes: int = 10,
    avg_degree: float = 10.0,
    homophily: float = 0.6,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    undirected: bool = True,
    num_features: int = 64,
    signal: float = 0.2,
    split: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Graph:
    """R-MAT graph with hubs, planted classes and features.

    Within a pair of classes, edges fall into the quadrants of the adjacency matrix, recursively,
    with probabilities a, b, c and 1 - a - b - c; simple, without self-loops. Node tensors as for
    ``sbm``.

    Args:
        num_nodes: N; need not be a power of two.
        num_classes: classes of equal size.
        avg_degree: in-neighbours of a node, in the mean, before repeated edges are dropped.
        homophily: probability that an edge joins two nodes of one class.
        a: probability of the quadrant of hubs; the larger, the more skewed.
        b: probability of the second quadrant.
        c: probability of the third quadrant.
        undirected: every edge in both directions.
        num_features: F.
        signal: standard deviation of a class's mean feature, against 1 of the noise.
        split: fraction of the nodes in train, val and test; left out, 0.6, 0.2 and 0.2.
        seed: of everything that is drawn.

    Raises ``InputError`` for an argument out of range. Chakrabarti, Zhan and Faloutsos, "R-MAT: A
    Recursive Model for Graph Mining", 2004.
    """
    _check("rmat", num_nodes, num_classes, avg_degree, homophily, num_features, signal, seed)
    for name, value in (("a", a), ("b", b), ("c", c)):
        check_number(f"rmat.{name}", value, 0, 1)
    if a + b + c > 1 + 1e-9:
        raise InputError(f"rmat: a + b + c is {a + b + c:g}; make it at most 1")
    if not isinstance(undirected, bool):
        raise InputError(f"rmat.undirected: must be true or false, not {undirected!r}")
    levels = (-(-num_nodes // num_classes) - 1).bit_length()
    bounds = np.rint(np.cumsum([a, b, c]) * 65536).astype(np.int64)
    pairs = round(num_nodes * avg_degree / (2 if undirected else 1))
    src, dst = np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    key = np.uint64(rng.fold(seed, rng.Stream.DATASET, 11))
    edges.rmat_pairs(key, num_nodes, num_classes, float(homophily), levels, bounds, src, dst)
    info = {"name": "rmat", "synthetic": True}
    fractions = _SPLIT if split is None else split
    return planted_graph(
        src,
        dst,
        num_nodes,
        num_classes,
        num_features,
        signal,
        fractions,
        seed,
        info=info,
        undirected=undirected,
    )


def planted_graph(
    src: np.ndarray,
    dst: np.ndarray,
    num_nodes: int,
    num_classes: int,
    num_features: int,
    signal: float,
    fractions: Mapping[str, float],
    seed: int,
    *,
    info: Mapping[str, object],
    undirected: bool = True,
) -> Graph:
    """The graph of drawn pairs (int32[P] each, -1 for none), ``class + num_classes * rank``.

    Nodes are numbered at random, so that an id tells nothing about its class or degree; ``x`` is
    the mean of the class plus standard normal noise.
    """
    everyone = np.arange(num_nodes, dtype=np.int64)
    order = rng.permutation(rng.fold(seed, rng.Stream.DATASET, 12), everyone)
    ids = np.empty(num_nodes, np.int32)  # of drawn node r
    ids[order] = everyone
    indptr, indices = edges.csc_of_pairs(src, dst, ids, undirected, True)
    labels = order % num_classes
    x = np.empty((num_nodes, num_features), np.float32)
    key = np.uint64(rng.fold(seed, rng.Stream.DATASET, 13))
    centres = np.empty((num_classes, num_features), np.float32)
    zero = np.zeros((1, num_features), np.float32)
    edges.fill_features(key, np.zeros(num_classes, np.int64), zero, centres)
    key = np.uint64(rng.fold(seed, rng.Stream.DATASET, 14))
    edges.fill_features(key, labels, centres * np.float32(signal), x)
    return Graph(
        indptr,
        indices,
        node={"x": x, "y": labels},
        splits=random_split(num_nodes, check_fractions(fractions, "split"), seed),
        info={**info, "num_classes": num_classes, "task": "classification"},
    )


def _check(
    name: str,
    num_nodes: int,
    num_classes: int,
    avg_degree: float,
    homophily: float,
    num_features: int,
    signal: float,
    seed: int,
) -> None:
    check_count(f"{name}.num_nodes", num_nodes, 2, _LARGEST)
    check_count(f"{name}.num_classes", num_classes, 1, num_nodes)
    check_number(f"{name}.avg_degree", avg_degree, 0, num_nodes - 1)
    check_number(f"{name}.homophily", homophily, 0, 1)
    check_count(f"{name}.num_features", num_features, 1, 1 << 20)
    check_number(f"{name}.signal", signal, 0, None)
    check_count(f"{name}.seed", seed, 0, None)
