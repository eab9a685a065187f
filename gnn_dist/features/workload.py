"""What a rank is going to ask for, as far as it is known before training."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Workload:
    """The seeds and the sampler of one rank, for policies and predictions.

    Attributes:
        seeds: int64[s] global ids of nodes that may be seeds of this rank, distinct.
        probability: float64[s], of each to be a seed of this rank in any one batch.
        fanouts: from the seeds outward; -1 takes all.
        replace: neighbours are drawn with replacement.
        weights: the edge tensor of sampling weights, or None.
        epoch: input nodes (int64[n] global ids) of this rank's batches of an epoch; it samples.
            Negative epochs are for rehearsal: training never has them. Only ``presample`` needs it.
    """

    seeds: np.ndarray
    probability: np.ndarray
    fanouts: tuple[int, ...]
    replace: bool = False
    weights: str | None = None
    epoch: Callable[[int], Iterator[np.ndarray]] | None = None


def seed_probability(
    homes: np.ndarray, batch_size: int, num_ranks: int, rank: int, drop_last: bool = False
) -> np.ndarray:
    """Probability of each training node to be a seed of ``rank`` in one global batch: float64[n].

    An epoch cuts the ``n`` nodes into batches of ``batch_size``, of which the last is smaller or,
    with ``drop_last``, left out. A node goes to its home (int[n], a rank) unless that has its even
    share of the batch already, and the rest fill up the other ranks. How many nodes of a home are
    in a batch is taken as normal, with mean and variance of the hypergeometric distribution; the
    mean over an epoch.
    """
    n = homes.size
    full, rest = divmod(n, batch_size)
    sizes = [(batch_size, full)] + ([] if drop_last and full else [(rest, 1)])
    total = np.zeros(n)
    for size, times in sizes:
        if size and times:
            total += times * _in_one_batch(homes, size, num_ranks, rank)
    return total / sum(times for size, times in sizes if size and times)


def _in_one_batch(homes: np.ndarray, size: int, num_ranks: int, rank: int) -> np.ndarray:
    """The same for a batch of ``size`` nodes, drawn from all."""
    n = homes.size
    counts = np.bincount(homes, minlength=num_ranks)
    share = size // num_ranks + (np.arange(num_ranks) < size % num_ranks)
    expected = counts * (size / n)
    spread = np.sqrt(expected * (1 - counts / n) * ((n - size) / max(n - 1, 1)))
    over = np.array([_excess(*x) for x in zip(expected, spread, share, strict=True)])
    stays = 1.0 - over / np.maximum(expected, 1e-300)
    room = share - (expected - over)
    others = over.sum() - over[rank]  # a home that has seeds to give takes none
    taken = room[rank] / others if others > 0 else 0.0
    return size / n * np.where(homes == rank, stays[rank], (1.0 - stays[homes]) * taken)


def _excess(mean: float, spread: float, limit: float) -> float:
    """The mean of ``max(X - limit, 0)`` for a normal X."""
    if spread <= 1e-12:
        return max(mean - limit, 0.0)
    d = (mean - limit) / spread
    density = math.exp(-d * d / 2) / math.sqrt(2 * math.pi)
    return spread * (density + d * 0.5 * (1 + math.erf(d / math.sqrt(2))))
