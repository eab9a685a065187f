"""Ordered work ahead on threads: bounded in number and in bytes, errors delivered as themselves."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ByteBudget:
    """Lets work begin while less than ``limit`` bytes are held; one piece is always let through."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._free = threading.Condition()
        self._closed = False

    def wait(self) -> None:
        """Block until there is room (or the budget is closed)."""
        with self._free:
            while self.held >= self.limit and not self._closed:
                self._free.wait()

    def add(self, count: int) -> None:
        with self._free:
            self.held += count

    def remove(self, count: int) -> None:
        with self._free:
            self.held -= count
            self._free.notify_all()

    def close(self) -> None:
        with self._free:
            self._closed = True
            self._free.notify_all()


class Prefetcher(Generic[T, R]):
    """Runs ``first`` then ``second`` on each item, ahead of the consumer, in the order of items.

    ``first`` runs on ``threads`` threads; ``second`` on one thread, in order. A stage that takes
    part in collectives must therefore be ``second``, or ``first`` with one thread. At most
    ``depth`` items are under way, and none begins while ``max_bytes`` of finished ones wait;
    ``size`` tells the bytes of a result. With ``depth`` 0 everything runs on the caller's thread.

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

        def run_first(item: T) -> Any:
            budget.wait()
            if stop.is_set():
                raise _Stopped
            return self._first(item)

        def run_second(future: Future[Any]) -> tuple[R, int]:
            value = future.result()
            if stop.is_set():
                raise _Stopped
            result = self._second(value)
            count = self._size(result)
            budget.add(count)
            return result, count

        source = iter(items)
        try:
            while True:
                while len(waiting) < self._depth:
                    try:
                        item = next(source)
                    except StopIteration:
                        break
                    waiting.append(seconds.submit(run_second, firsts.submit(run_first, item)))
                if not waiting:
                    return
                result, count = waiting.popleft().result()
                budget.remove(count)
                yield result
        finally:
            stop.set()
            budget.close()
            firsts.shutdown(wait=True, cancel_futures=True)
            seconds.shutdown(wait=True, cancel_futures=True)


class _Stopped(Exception):
    """The consumer went away; nobody reads this."""
