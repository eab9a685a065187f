"""Graph partitioners: which part owns each node.

A partitioner is any callable with the signature of ``Partitioner``; it is named in a
configuration by one of the short names of ``BUILTIN``, by an entry point of the group
``gnn_dist.partitioners``, or by dotted path, and takes arguments of its own as keywords::

    def stripes(graph, num_parts, *, seed, width=1):
        return np.arange(graph.num_nodes) // width % num_parts

    partition(graph, 4, "my_package.stripes", {"width": 8}, seed=0)

The keywords ``node_weights`` and ``edge_weights`` may be left out by one that cannot use them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gnn_dist import plugins
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.partitioners.checks import (
    BalanceWarning,
    check_answer,
    check_balance,
    check_num_parts,
    check_weights,
)
from gnn_dist.partitioners.quality import Quality, quality
from gnn_dist.partitioners.weights import balance_weights

__all__ = [
    "BUILTIN",
    "BalanceWarning",
    "Partitioner",
    "Quality",
    "balance_weights",
    "partition",
    "quality",
]

BUILTIN = {
    "random": "gnn_dist.partitioners.simple.random_parts",
    "hash": "gnn_dist.partitioners.simple.hash_parts",
    "range": "gnn_dist.partitioners.simple.range_parts",
    "ldg": "gnn_dist.partitioners.streaming.ldg",
    "fennel": "gnn_dist.partitioners.streaming.fennel",
    "refennel": "gnn_dist.partitioners.streaming.refennel",
    "metis": "gnn_dist.partitioners.multilevel.metis",
    "kaminpar": "gnn_dist.partitioners.multilevel.kaminpar",
    "mtkahypar": "gnn_dist.partitioners.hypergraph.mtkahypar",
}


class Partitioner(Protocol):
    """``(graph, number of parts, weights, seed) -> int32[N]``, the part of every node.

    Edges may be taken as undirected. The answer depends on nothing but the arguments.

    Args:
        node_weights: float64[N] >= 0 whose sums the parts should share evenly; None for all 1.
        edge_weights: float64[E] >= 0 in the order of ``graph.indices``, the cost of cutting each
            edge; None for all 1.
        seed: for what is drawn at random.
    """

    def __call__(
        self,
        graph: Graph,
        num_parts: int,
        *,
        node_weights: np.ndarray | None,
        edge_weights: np.ndarray | None,
        seed: int,
    ) -> np.ndarray: ...


def partition(
    graph: Graph,
    num_parts: int,
    name: str = "metis",
    args: Mapping[str, Any] | None = None,
    *,
    seed: int,
    node_weights: np.ndarray | None = None,
    edge_weights: np.ndarray | None = None,
    max_imbalance: float | None = None,
) -> np.ndarray:
    """Run the partitioner ``name`` with ``args`` and check its answer: int32[N].

    Args:
        args: its own arguments. ``balance`` is understood for every partitioner that has no such
            argument itself: ``nodes``, ``edges`` (in-edges) or ``train`` (training nodes), or a
            list of them; it becomes node weights, with ``node_weights`` as one more constraint.
        node_weights: float or int[N], not negative.
        edge_weights: float or int[E] in CSC order, not negative.
        max_imbalance: refuse a partition whose heaviest part weighs more than this times the
            mean; without it, 1.2 times the mean gives a ``BalanceWarning``. One heaviest node is
            always allowed on top.

    Raises ``InputError`` for more parts than nodes, for weights of the wrong length, for an
    unknown name or argument, and for an answer of the wrong type or length, with a part out of
    range or an empty part.
    """
    args = dict(args or {})
    check_num_parts(graph, num_parts)
    takes = plugins.keywords(plugins.resolve("partitioner", name, BUILTIN))
    if "balance" in args and (takes is None or "balance" not in takes):
        node_weights = balance_weights(graph, args.pop("balance"), node_weights)
    node_weights = check_weights("node_weights", node_weights, graph.num_nodes, "nodes")
    edge_weights = check_weights("edge_weights", edge_weights, graph.num_edges, "edges")
    for reserved in ("graph", "num_parts", "node_weights", "edge_weights", "seed"):
        if reserved in args:
            raise InputError(
                f"partitioner.args: {reserved!r} is given to every partitioner and cannot be an "
                "argument of its own; leave it out"
            )
    run: Callable[..., Any] = plugins.build("partitioner", name, args, BUILTIN)
    given = {"node_weights": node_weights, "edge_weights": edge_weights, "seed": seed}
    takes = plugins.keywords(run)
    if takes is not None:
        for keyword in set(given) - takes:
            if given.pop(keyword) is not None and keyword != "seed":
                raise InputError(
                    f"partitioner: {name!r} takes no {keyword}; choose one that does, such as "
                    "metis, or leave the weights (and args.balance) out"
                )
    plugins.check_call("partitioner", name, run, ("graph", "num_parts"), *given)
    assignment = check_answer(name, run(graph, num_parts, **given), graph.num_nodes, num_parts)
    check_balance(name, assignment, num_parts, node_weights, max_imbalance)
    return assignment
