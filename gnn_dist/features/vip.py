"""How likely a rank is to need a node's row: vertex inclusion probability, by analysis.

Kaler, Iliopoulos, Murzynowski, Schardl, Leiserson, Chen, "Communication-efficient graph neural
networks with probabilistic neighborhood expansion analysis and caching" (SALIENT++, MLSys 2023).
"""

from collections.abc import Sequence

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

    A node ``v`` draws each of its ``d(v)`` in-neighbours with probability ``t_l(v) = min(1, f_l /
    d(v))`` in hop ``l`` of fan-out ``f_l`` (``1 - (1 - 1/d)^f`` with replacement). Let ``q_h(v)``
    be the probability of ``v`` to be reached by hop ``h`` (``q_0``: to be a seed). The published
    recursion is ``q_h(u) = 1 - prod over v of (1 - t_h(v) q_{h-1}(v))`` for the nodes of hop h
    alone. Here, after hop h,

        1 - q_h(u) = (1 - q_0(u)) * prod over edges (u -> v) of (1 - a_h(v)),
        a_h(v) = sum over j < h of (q_j(v) - q_{j-1}(v)) (1 - prod over j < l <= h of (1 - t_l(v)))

    which differs in two points. The product runs over the *out*-edges of ``u``, which are other
    edges than its in-edges where the graph is directed. And a node that was first reached by hop
    ``j`` draws anew in every later hop, as this sampler does, so its draws are taken together.
    Different nodes are taken as independent.

    The batches of a window are not independent: an epoch is a permutation, so each seed is in at
    most one of them. A node that is reached ``k q`` times in ``k`` batches on average, and not at
    all with probability ``w``, is taken as reached in each of ``m`` independent trials with
    probability ``p``, where ``m p = k q`` and ``(1 - p)^m = w``: one trial for a seed, ``k`` for a
    node with many paths from seeds. The factor of an edge is then ``(1 - a(v) p(v) / q(v))^m``.
    """
    assert window >= 1
    ids = np.asarray(workload.seeds, np.int64)
    seed_log, many_log = np.zeros(graph.num_nodes), np.zeros(graph.num_nodes)
    with np.errstate(divide="ignore"):  # log 0: always reached
        seed_log[ids] = np.log1p(-np.minimum(1.0, workload.probability))
        many_log[ids] = np.log1p(-np.minimum(1.0, window * workload.probability))
    batch, many = seed_log, many_log
    first = [-np.expm1(seed_log)]  # by hop: probability of being reached for the first time
    for hop in range(1, len(workload.fanouts) + 1):
        frontier = np.flatnonzero(batch)
        add = _add(graph, workload, workload.fanouts[:hop])
        firsts = np.stack([f[frontier] for f in first], axis=1)
        reached = -np.expm1(batch[frontier])
        values = np.concatenate([firsts, np.ones((frontier.size, 1))], axis=1)
        if window > 1:
            each, times = trials(reached, many[frontier], window)
            scaled = np.concatenate([firsts * (each / reached)[:, None], times[:, None]], axis=1)
            many = many_log + directory.accumulate(frontier, scaled, add)
        after = seed_log + directory.accumulate(frontier, values, add)
        first.append(np.maximum(np.expm1(batch) - np.expm1(after), 0.0))
        batch = after
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


def _add(graph: PartitionedGraph, workload: Workload, fanouts: Sequence[int]) -> Add:
    hops = np.array(fanouts, np.int64)

    def add(part: int, rows: np.ndarray, values: np.ndarray, total: np.ndarray) -> None:
        p = graph.part(part)
        first, times = np.ascontiguousarray(values[:, :-1]), np.ascontiguousarray(values[:, -1])
        rest = rows, first, times, hops, workload.replace, total
        if workload.weights is None:
            kernels.spread(p.indptr, p.indices, *rest)
            return
        if workload.weights not in p.edge:
            raise InputError(
                f"sampler.weights: the graph has no edge tensor {workload.weights!r}; it has "
                f"{', '.join(p.edge) or 'no edge tensor'}"
            )
        weights = np.ascontiguousarray(p.edge[workload.weights], np.float32).reshape(-1)
        kernels.weighted_spread(p.indptr, p.indices, weights, *rest)

    return add
