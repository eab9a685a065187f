"""Several ranks as threads of one process, with an exchange between them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Meeting:
    """Every rank brings a value and leaves with everybody's."""

    def __init__(self, size: int) -> None:
        self._values: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def __call__(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait(timeout=60)
        values = list(self._values)
        self._barrier.wait(timeout=60)
        return values

    def abort(self) -> None:
        self._barrier.abort()


class ThreadExchange:
    """``cluster.Exchange`` between threads; ``calls`` counts the collectives of this rank."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self.calls = 0
        self._meeting = meeting

    def _meet(self, value: Any) -> list[Any]:
        self.calls += 1
        return self._meeting(self.rank, value)

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        assert len(parts) == self.size
        got = [sent[self.rank].clone() for sent in self._meet(list(parts))]
        assert len({(t.dtype, t.shape[1:]) for t in got}) == 1
        assert receive is None or [len(t) for t in got] == list(receive)
        return got

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._meet(tensor.clone())  # which nobody changes; a rank may change its own

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._meet(value)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.all_gather(tensor)).sum(0))

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.all_gather(tensor)).amax(0))

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        return tensor.copy_(self.all_gather(tensor)[source])

    def barrier(self) -> None:
        self._meet(None)


def run_threads(size: int, work: Callable[[int, ThreadExchange], T]) -> list[T]:
    """``work(rank, exchange)`` on every rank at once; raises the first error of any."""
    meeting = _Meeting(size)

    def run(rank: int) -> T:
        try:
            return work(rank, ThreadExchange(rank, size, meeting))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
        errors = [e for f in futures if (e := f.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        if errors:
            raise errors[0]
        return [future.result() for future in futures]
