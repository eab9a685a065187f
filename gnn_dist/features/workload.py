"""What a rank is going to ask for, as far as it is known before training."""

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
    share of the batch already, and the rest fill up the other ranks. Taken at the expected number
    of nodes of each home in a batch, in the mean over an epoch.
    """
    n = homes.size
    size = min(batch_size, n) if drop_last else n / -(-n // batch_size)
    in_batch = size / n
    expected = np.bincount(homes, minlength=num_ranks) * in_batch
    share = size / num_ranks
    stays = np.minimum(1.0, share / np.maximum(expected, 1e-300))
    spill = np.maximum(expected - share, 0.0).sum()
    room = max(share - expected[rank], 0.0)
    taken = room / spill if spill else 0.0
    return in_batch * np.where(homes == rank, stays[rank], (1.0 - stays[homes]) * taken)
