"""The data set ``ogbn_like``: synthetic graphs of the published size and shape of OGB's."""

from dataclasses import dataclass

import numpy as np

from gnn_dist import rng
from gnn_dist.datasets import edges
from gnn_dist.datasets.checks import check_count, check_number
from gnn_dist.datasets.synthetic import planted_graph
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph


@dataclass(frozen=True)
class Shape:
    """What is published of a data set, and how it is drawn.

    Attributes:
        num_nodes: N.
        num_edges: E, as the data set counts them: pairs where it is undirected.
        num_classes: C.
        num_features: F.
        homophily: share of edges that join two nodes of one class.
        drawn_homophily: that of the pairs drawn; repeated pairs, which are dropped, are mostly
            of one class.
        split: shares of nodes in train, val and test.
        undirected: whether the data set has every edge in both directions.
        degree_exponent: exponent of the power law that nodes' weights follow.
        repeats: pairs to draw for one that is left when repeated ones are dropped.
    """

    num_nodes: int
    num_edges: int
    num_classes: int
    num_features: int
    homophily: float
    drawn_homophily: float
    split: tuple[float, float, float]
    undirected: bool
    degree_exponent: float
    repeats: float


# Sizes, classes and splits: Hu et al., "Open Graph Benchmark", 2020. Homophily: the share of
# same-class edges that is reported for these graphs. Exponents: typical of citation and
# co-purchase graphs. What is drawn in excess is measured at scale 1; smaller graphs have somewhat
# fewer edges.
SHAPES = {
    "arxiv": Shape(
        *(169_343, 1_166_243, 40, 128, 0.655, 0.677),
        split=(90_941 / 169_343, 29_799 / 169_343, 48_603 / 169_343),
        undirected=False,
        degree_exponent=2.2,
        repeats=1.065,
    ),
    "products": Shape(
        *(2_449_029, 61_859_140, 47, 100, 0.808, 0.8105),
        split=(196_615 / 2_449_029, 39_323 / 2_449_029, 2_213_091 / 2_449_029),
        undirected=True,
        degree_exponent=2.6,
        repeats=1.013,
    ),
}


def ogbn_like(
    *,
    name: str = "arxiv",
    scale: float = 1.0,
    undirected: bool = True,
    signal: float = 0.2,
    seed: int = 0,
) -> Graph:
    """Synthetic stand-in for ogbn-arxiv or -products: their size and shape, not their data.

    A degree-corrected stochastic block model of the published numbers of nodes, edges, features
    and classes, the published homophily and shares of the splits, and a power law of degrees.
    Classes are of equal size and splits are random, so results say nothing about the real sets;
    it is for benchmarks of speed where nothing can be fetched. Node tensors: ``x`` float32[N, F]
    of classes' planted means and noise, ``y`` int64[N].

    Args:
        name: arxiv or products.
        scale: nodes and edges as a multiple of the published ones.
        undirected: every edge in both directions, as the set is mostly used (products always is).
        signal: standard deviation of a class's mean feature, against 1 of the noise.
        seed: of everything that is drawn.

    Raises ``InputError`` for an argument out of range.
    """
    if name not in SHAPES:
        raise InputError(f"ogbn_like.name: there is no {name!r}; use one of {', '.join(SHAPES)}")
    check_number("ogbn_like.scale", scale, 1e-6, 100)
    check_number("ogbn_like.signal", signal, 0, None)
    check_count("ogbn_like.seed", seed, 0, None)
    if not isinstance(undirected, bool):
        raise InputError(f"ogbn_like.undirected: must be true or false, not {undirected!r}")
    shape = SHAPES[name]
    num_nodes = round(shape.num_nodes * scale)
    if num_nodes < 4 * shape.num_classes:
        raise InputError(
            f"ogbn_like.scale: {scale} leaves {num_nodes} nodes for {shape.num_classes} classes; "
            f"make it at least {4 * shape.num_classes / shape.num_nodes:.1g}"
        )
    ranks = -(-num_nodes // shape.num_classes)
    # Weights i^(-1/(g-1)) give degrees whose density falls with the exponent g.
    weights = np.arange(1, ranks + 1) ** (-1.0 / (shape.degree_exponent - 1.0))
    pairs = round(shape.num_edges * scale * shape.repeats)
    src, dst = np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    key = np.uint64(rng.fold(seed, rng.Stream.DATASET, 15))
    keep, other = edges.alias_table(weights)
    homophily = shape.drawn_homophily
    edges.sbm_pairs(key, num_nodes, shape.num_classes, homophily, keep, other, src, dst)
    return planted_graph(
        src,
        dst,
        num_nodes,
        shape.num_classes,
        shape.num_features,
        signal,
        dict(zip(("train", "val", "test"), shape.split, strict=True)),
        seed,
        info={"name": f"synthetic stand-in for ogbn-{name}", "synthetic": True},
        undirected=undirected or shape.undirected,
    )
