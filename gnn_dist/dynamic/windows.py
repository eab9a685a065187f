"""Windows of a snapshot sequence and the batches of windows that an optimiser step takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gnn_dist import rng
from gnn_dist.errors import InputError


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """The windows of one optimiser step.

    Attributes:
        epoch, index: which step; ``index`` is the batch's number before shuffling.
        starts: first snapshot of each window.
        length: snapshots a window.
    """

    epoch: int
    index: int
    starts: tuple[int, ...]
    length: int

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The distinct snapshots of all windows, ascending."""
        return tuple(sorted({s + k for s in self.starts for k in range(self.length)}))

    @property
    def slots(self) -> np.ndarray:
        """Position in ``snapshots`` of the k-th snapshot of each window: int64[length, B]."""
        at = np.array(self.starts)[None, :] + np.arange(self.length)[:, None]
        return np.searchsorted(np.array(self.snapshots), at)

    @property
    def targets(self) -> tuple[int, ...]:
        """The last snapshot of each window, whose target is predicted."""
        return tuple(s + self.length - 1 for s in self.starts)

    def only(self, windows: Sequence[int]) -> "WindowBatch":
        """The same step with some of its windows, by position."""
        return WindowBatch(
            self.epoch, self.index, tuple(self.starts[i] for i in windows), self.length
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of ``length`` consecutive snapshots out of ``num_snapshots``, every ``stride``.

    Raises ``InputError`` where no window fits.
    """

    num_snapshots: int
    length: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1:
            raise InputError(
                f"windows: length {self.length} and stride {self.stride}; both are at least 1"
            )
        if self.length > self.num_snapshots:
            raise InputError(
                f"windows.length: a window of {self.length} does not fit into "
                f"{self.num_snapshots} snapshots; choose a shorter one"
            )

    def __len__(self) -> int:
        return (self.num_snapshots - self.length) // self.stride + 1

    @property
    def starts(self) -> np.ndarray:
        """First snapshot of each window: int64[n]."""
        return np.arange(len(self)) * self.stride

    def split(self, train: float, val: float = 0.0) -> dict[str, np.ndarray]:
        """Windows in time order, dealt to ``train``, ``val`` and ``test`` by fraction.

        A window belongs to the split in which its last snapshot lies: first the ``train`` share of
        snapshots, then the ``val`` share. Raises ``InputError`` where ``train`` would be empty.
        """
        if not (0 < train <= 1 and val >= 0 and train + val <= 1):
            raise InputError(
                f"windows.split: fractions train {train} and val {val}; give fractions above 0 "
                "that sum to at most 1"
            )
        last = self.starts + self.length
        first, second = int(self.num_snapshots * train), int(self.num_snapshots * (train + val))
        parts = {
            "train": np.flatnonzero(last <= first),
            "val": np.flatnonzero((last > first) & (last <= second)),
            "test": np.flatnonzero(last > second),
        }
        if not parts["train"].size:
            raise InputError(
                f"windows.split: the first {first} snapshots hold no window of {self.length}; "
                "raise the training fraction or shorten the window"
            )
        return parts

    def batches(
        self,
        windows: np.ndarray,
        size: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        shuffle: bool = True,
    ) -> Iterator[WindowBatch]:
        """Batches of ``size`` windows that stand side by side; their order is drawn for an epoch.

        Windows within a batch are consecutive, because that is what lets them share snapshots; the
        last batch may be smaller.
        """
        if size < 1:
            raise InputError(f"windows a step: {size}; give at least 1")
        starts = self.starts[windows]
        number = -(-len(starts) // size)
        order = np.arange(number)
        if shuffle:
            order = rng.permutation(rng.fold(seed, rng.Stream.SHUFFLE, epoch), order)
        for index in order:
            chunk = starts[index * size : (index + 1) * size]
            yield WindowBatch(epoch, int(index), tuple(int(s) for s in chunk), self.length)


def segments(num_snapshots: int, length: int, epoch: int = 0) -> Iterator[WindowBatch]:
    """Consecutive windows that do not overlap, in order: for truncated back-propagation.

    The last one may be shorter.
    """
    for index, start in enumerate(range(0, num_snapshots, length)):
        yield WindowBatch(epoch, index, (start,), min(length, num_snapshots - start))
