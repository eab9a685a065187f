"""How likely a rank is to need a node's row: vertex inclusion probability, by analysis.

Kaler, Iliopoulos, Murzynowski, Schardl, Leiserson, Chen, "Communication-efficient graph neural
networks with probabilistic neighborhood expansion analysis and caching" (SALIENT++, MLSys 2023).
"""

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.features.owners import Add, Directory
from gnn_dist.features.workload import Workload
from gnn_dist.kernels import cache as kernels
from gnn_dist.storage import PartitionedGraph


def inclusion(
    graph: PartitionedGraph, directory: Directory, workload: Workload, window: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Log of the probability of each node *not* to be an input node of this rank.

    Two float64[N]: in one batch, and in any of ``window`` batches of one epoch. Collective where
    ``directory`` is.

    A node ``v`` reached with probability ``q(v)`` draws each of its ``d(v)`` in-neighbours with
    probability ``t(v) = min(1, f / d(v))`` for fan-out ``f`` (``1 - (1 - 1/d)^f`` with
    replacement), so after a hop

        1 - q'(u) = (1 - q0(u)) * prod over edges (u -> v) of (1 - t(v) q(v)),

    beginning with the probability ``q0`` of being a seed. This is the published recursion with two
    differences. The product runs over the *out*-edges of ``u``, which are other edges than its
    in-edges where the graph is directed. And ``q`` accumulates from hop to hop, since here every
    node reached so far draws again in the next hop. Draws are taken as independent.

    The batches of a window are not independent: an epoch is a permutation, so each seed is in at
    most one of them. A node that is reached ``k q`` times in ``k`` batches on average, and not at
    all with probability ``w``, is taken as reached in each of ``m`` independent trials with
    probability ``p``, where ``m p = k q`` and ``(1 - p)^m = w``: one trial for a seed, ``k`` for a
    node with many paths from seeds. The factor of an edge is then ``(1 - t(v) p(v))^m``.
    """
    assert window >= 1
    ids = np.asarray(workload.seeds, np.int64)
    batch, many = np.zeros(graph.num_nodes), np.zeros(graph.num_nodes)
    with np.errstate(divide="ignore"):  # log 0: always reached
        batch[ids] = np.log1p(-np.minimum(1.0, workload.probability))
        many[ids] = np.log1p(-np.minimum(1.0, window * workload.probability))
    for fanout in workload.fanouts:
        frontier = np.flatnonzero(batch)
        reached = -np.expm1(batch[frontier])
        add = _add(graph, workload, fanout)
        values = np.stack([reached, np.ones(frontier.size)], axis=1)
        new_batch = batch + directory.accumulate(frontier, values, add)
        if window > 1:
            values = np.stack(trials(reached, many[frontier], window), axis=1)
            many = many + directory.accumulate(frontier, values, add)
        batch = new_batch
    return batch, many if window > 1 else batch


def inclusion_probability(
    graph: PartitionedGraph, directory: Directory, workload: Workload
) -> np.ndarray:
    """Probability of each node to be an input node of this rank in a batch: float64[N]."""
    return -np.expm1(inclusion(graph, directory, workload)[0])


def trials(reached: np.ndarray, missed: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """``(p, m)`` with ``m p = window * reached`` and ``m log(1 - p) = missed``; ``m <= window``.

    ``reached`` float64[n] in (0, 1]; ``missed`` float64[n], a log. Solves
    ``-log(1 - p) / p = ratio`` by bisection; p is at least ``reached``.
    """
    mean = window * reached
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = -missed / mean
        low, high = np.minimum(reached, 1.0), np.ones_like(reached)
        for _ in range(40):
            middle = (low + high) / 2
            less = -np.log1p(-middle) / middle < ratio
            low, high = np.where(less, middle, low), np.where(less, high, middle)
    return low, mean / low


def _add(graph: PartitionedGraph, workload: Workload, fanout: int) -> Add:
    def add(part: int, rows: np.ndarray, values: np.ndarray, total: np.ndarray) -> None:
        p = graph.part(part)
        reached, times = np.ascontiguousarray(values.T)
        if workload.weights is None:
            kernels.spread(
                p.indptr, p.indices, rows, reached, times, fanout, workload.replace, total
            )
            return
        if workload.weights not in p.edge:
            raise InputError(
                f"sampler.weights: the graph has no edge tensor {workload.weights!r}; it has "
                f"{', '.join(p.edge) or 'no edge tensor'}"
            )
        weights = np.ascontiguousarray(p.edge[workload.weights], np.float32).reshape(-1)
        kernels.weighted_spread(
            p.indptr, p.indices, weights, rows, reached, times, fanout, workload.replace, total
        )

    return add
