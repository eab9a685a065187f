"""``Windows``: batches sampled in bulk and ahead, so that their rows can be fetched together."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gnn_dist.batch import MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.sampling import Share

B = TypeVar("B")
Held = deque[tuple[MiniBatch, float]]
"""Sampled batches, each with the seconds that it took."""


@dataclass(slots=True)
class LoadTimes:
    """Seconds that preparing one batch took, and that the model waited for it.

    ``wait_features`` is the part of ``wait`` in which its rows were being fetched.
    """

    sample: float = 0.0
    fetch: float = 0.0
    wait: float = 0.0
    wait_features: float = 0.0
    fetch_began: float = 0.0
    """of ``time.perf_counter``"""

    def waited(self, began: float, ended: float) -> None:
        """The model waited from ``began`` to ``ended``."""
        self.wait = ended - began
        fetched = self.fetch_began + self.fetch
        self.wait_features = max(0.0, min(ended, fetched) - max(began, self.fetch_began))


def timed(loaded: Iterator[tuple[B, LoadTimes]]) -> Iterator[tuple[B, LoadTimes]]:
    """The same, with the seconds that were waited for each batch in its times."""
    while True:
        start = time.perf_counter()
        following = next(loaded, None)
        if following is None:
            return
        following[1].waited(start, time.perf_counter())
        yield following


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far batches are prepared together; none of it changes a batch.

    Attributes:
        bulk: global batches sampled in one call.
        window: batches whose missing rows are fetched together.
        ahead: batches beyond the window, also of the next epoch, that are sampled before it is
            fetched, so that rows that they need are not given up.
    """

    bulk: int = 1
    window: int = 1
    ahead: int = 0

    def __post_init__(self) -> None:
        for key, value, least in (
            ("sampler.bulk", self.bulk, 1),
            ("cache.window", self.window, 1),
            ("cache.ahead", self.ahead, 0),
        ):
            if value < least:
                raise InputError(f"{key}: {value} batches; give at least {least}")


@dataclass(slots=True, eq=False)
class Sampled:
    """A batch without rows, and what is fetched before its rows are there.

    Attributes:
        window: where this batch is the first of a window: all batches of it.
        ahead: the batches known beyond that window.
        last: whether this is the last batch of its window.
    """

    batch: MiniBatch
    times: LoadTimes
    window: Sequence[MiniBatch]
    ahead: Sequence[MiniBatch]
    last: bool


class Windows:
    """Samples batches ``first`` to ``stop - 1`` in order, as early as their windows need it.

    For one thread. Holds the topology, without rows, of at most a window, what is known beyond it
    and one bulk.

    Args:
        share: this rank's share of a batch.
        sample: the mini-batches of several shares.
        horizon: how many are sampled and fetched together.
        follow: batches after ``stop - 1`` that may be known ahead; ``share`` numbers them on.
        held: batches from ``first`` on that are sampled already: the ``held`` that is left of a
            range before this one.
    """

    def __init__(
        self,
        first: int,
        stop: int,
        share: Callable[[int], Share],
        sample: Callable[[Sequence[Share]], list[MiniBatch]],
        horizon: Horizon,
        follow: int = 0,
        held: Held | None = None,
    ) -> None:
        self.held: Held = deque() if held is None else held  # from the batch taken next
        self._first, self._stop = first, stop
        self._end = stop + (follow if horizon.ahead else 0)
        self._share = share
        self._sample = sample
        self._horizon = horizon

    def take(self, number: int) -> Sampled:
        """Batch ``number``; to be called for ``first``, ``first + 1`` and so on."""
        place = (number - self._first) % self._horizon.window
        size = min(self._horizon.window, self._stop - number + place)
        window: list[MiniBatch] = []
        ahead: list[MiniBatch] = []
        if place == 0:
            wanted = min(size + self._horizon.ahead, self._end - number)
            self._hold(number, wanted)
            known = [batch for batch, _ in self.held]
            window, ahead = known[:size], known[size:wanted]
        batch, seconds = self.held.popleft()
        return Sampled(batch, LoadTimes(sample=seconds), window, ahead, place == size - 1)

    def _hold(self, number: int, wanted: int) -> None:
        while len(self.held) < wanted:
            first = number + len(self.held)
            stop = min(first + self._horizon.bulk, self._end)
            start = time.perf_counter()
            batches = self._sample([self._share(b) for b in range(first, stop)])
            seconds = (time.perf_counter() - start) / len(batches)
            self.held.extend((batch, seconds) for batch in batches)
