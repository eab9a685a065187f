"""Ordered work ahead on threads: bounded in number and in bytes, errors delivered as themselves."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ByteBudget:
    """Admits work in order, while what is under way and what waits stay below ``limit`` bytes.

    A piece of work is taken to need as much as the largest result so far; until the first result
    is known, and where one result alone exceeds the limit, one piece at a time is admitted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0  # bytes of finished results that wait for the consumer
        self._waiting = 0  # number of them
        self._running = 0
        self._largest: int | None = None
        self._next = 0
        self._changed = threading.Condition()
        self._closed = False

    def admit(self, number: int) -> None:
        """Block until piece ``number`` may begin (or the budget is closed).

        In order, so that the piece that the consumer waits for is never behind a later one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (number == self._next and self._room()))
            self._next += 1
            self._running += 1
            self._changed.notify_all()

    def _room(self) -> bool:
        if self._running + self._waiting == 0:
            return True
        if self._largest is None:
            return False
        return self._held + (self._running + 1) * self._largest <= self._limit

    def finished(self, size: int) -> None:
        """A result of ``size`` bytes is ready and waits."""
        with self._changed:
            self._running -= 1
            self._waiting += 1
            self._held += size
            self._largest = max(size, self._largest or 0)
            self._changed.notify_all()

    def delivered(self, size: int) -> None:
        with self._changed:
            self._waiting -= 1
            self._held -= size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Prefetcher(Generic[T, R]):
    """Runs ``first`` then ``second`` on each item, ahead of the consumer, in the order of items.

    ``first`` runs on ``threads`` threads; ``second`` on one thread, in order. A stage that takes
    part in collectives must therefore be ``second``, or ``first`` with one thread. At most
    ``depth`` items are begun ahead, and their results hold about ``max_bytes`` at most (see
    ``ByteBudget``); ``size`` tells the bytes of a result. With ``depth`` 0 everything runs on the
    caller's thread.

    An exception of a stage is raised, itself, where its item would have been delivered.
    """

    def __init__(
        self,
        first: Callable[[T], Any],
        second: Callable[[Any], R],
        *,
        depth: int,
        threads: int = 1,
        max_bytes: int = 1 << 30,
        size: Callable[[R], int] = lambda result: 0,
    ) -> None:
        self._first = first
        self._second = second
        self._depth = depth
        self._threads = threads
        self._max_bytes = max_bytes
        self._size = size

    def __call__(self, items: Iterable[T]) -> Iterator[R]:
        if self._depth == 0:
            for item in items:
                yield self._second(self._first(item))
            return
        budget = ByteBudget(self._max_bytes)
        stop = threading.Event()
        firsts = ThreadPoolExecutor(self._threads, thread_name_prefix="sample")
        seconds = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        waiting: deque[Future[tuple[R, int]]] = deque()

        def run_first(number: int, item: T) -> Any:
            budget.admit(number)
            if stop.is_set():
                raise _Stopped
            return self._first(item)

        def run_second(future: Future[Any]) -> tuple[R, int]:
            value = future.result()
            if stop.is_set():
                raise _Stopped
            result = self._second(value)
            count = self._size(result)
            budget.finished(count)
            return result, count

        source = enumerate(items)
        try:
            while True:
                while len(waiting) < self._depth:
                    try:
                        number, item = next(source)
                    except StopIteration:
                        break
                    waiting.append(
                        seconds.submit(run_second, firsts.submit(run_first, number, item))
                    )
                if not waiting:
                    return
                result, count = waiting.popleft().result()
                budget.delivered(count)
                yield result
        finally:
            stop.set()
            budget.close()
            firsts.shutdown(wait=True, cancel_futures=True)
            seconds.shutdown(wait=True, cancel_futures=True)


class _Stopped(Exception):
    """The consumer went away; nobody reads this."""
