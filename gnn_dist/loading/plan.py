"""The epoch plan: which seeds make which global batch, and which rank takes which of them."""

from dataclasses import dataclass

import numpy as np

from gnn_dist import rng
from gnn_dist.errors import InputError


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """Cuts the training nodes of an epoch into global batches and deals each to the ranks.

    The order is a permutation keyed by (seed, epoch) over *original* ids, so a global batch is the
    same set in the same order whatever the partition and the number of ranks.

    Attributes:
        global_ids: int64[n] global ids of the training nodes.
        original_ids: int64[n] their original ids.
        homes: int[n] the rank that is nearest to each node (a rank of its owner's host).
        batch_size: seeds of a global batch.
        num_ranks: ranks that share a batch.
        seed: seed of the run.
        drop_last: leave out a last batch smaller than ``batch_size``.
    """

    global_ids: np.ndarray
    original_ids: np.ndarray
    homes: np.ndarray
    batch_size: int
    num_ranks: int
    seed: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(
                f"train.batch_size: {self.batch_size} is not valid; give at least 1 seed a batch"
            )
        if self.num_batches == 0:
            raise InputError(
                f"train split: {len(self.global_ids)} nodes make no batch of {self.batch_size}; "
                "give training nodes, a smaller train.batch_size or loader.drop_last: false"
            )

    @property
    def num_batches(self) -> int:
        """Global batches in an epoch."""
        full, rest = divmod(len(self.global_ids), self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def order(self, epoch: int) -> np.ndarray:
        """Positions of the training nodes in the order of this epoch: int64[n]."""
        return rng.permutation(rng.fold(self.seed, rng.Stream.SHUFFLE, epoch), self.original_ids)

    def batch(self, order: np.ndarray, batch: int) -> np.ndarray:
        """Positions of the seeds of one global batch."""
        return order[batch * self.batch_size : (batch + 1) * self.batch_size]

    def takers(self, positions: np.ndarray) -> np.ndarray:
        """The rank that takes each seed of a global batch: int64[n]."""
        return deal(self.homes[positions], self.num_ranks)

    def share(self, positions: np.ndarray, rank: int) -> np.ndarray:
        """Global ids of the seeds of a global batch that ``rank`` takes, in batch order."""
        return self.global_ids[positions[self.takers(positions) == rank]]


def deal(homes: np.ndarray, num_ranks: int) -> np.ndarray:
    """The rank of each seed: int64[n].

    A seed goes to its home while that rank is below its even share of ``n`` seeds (the first
    ``n mod num_ranks`` ranks take one more); seeds beyond it fill the other ranks in order.
    """
    n = homes.size
    if num_ranks == 1:
        return np.zeros(n, np.int64)
    quota = np.full(num_ranks, n // num_ranks)
    quota[: n % num_ranks] += 1
    by_home = np.argsort(homes, kind="stable")
    counts = np.bincount(homes, minlength=num_ranks)
    starts = np.cumsum(counts) - counts
    nth = np.empty(n, np.int64)  # how many earlier seeds of the batch have the same home
    nth[by_home] = np.arange(n) - np.repeat(starts, counts)
    ranks = np.where(nth < quota[homes], homes, -1).astype(np.int64)
    room = quota - np.minimum(counts, quota)
    ranks[ranks < 0] = np.repeat(np.arange(num_ranks), room)
    return ranks
