"""Work for the time in which a rank waits: the next batch is prepared inside the bubbles."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Bubbles:
    """A gate that is open while the rank waits for a message."""

    def __init__(self) -> None:
        self._gate = threading.Event()

    @contextmanager
    def open(self) -> Iterator[None]:
        self._gate.set()
        try:
            yield
        finally:
            self._gate.clear()

    def wait(self, seconds: float) -> bool:
        """Whether the gate opened (or stood open) within so many seconds."""
        return self._gate.wait(seconds)


class Ahead:
    """Jobs that a thread does one after another while the gate is open.

    ``results`` does what is left on the calling thread and returns all, in order.
    """

    def __init__(self, jobs: Sequence[Callable[[], Any]], bubbles: Bubbles) -> None:
        self._jobs = list(jobs)
        self._results: list[Any] = []
        self._bubbles = bubbles
        self._lock = threading.Lock()
        self._stop = False
        self.done_in_bubbles = 0
        self._thread = threading.Thread(target=self._run, name="gnn-dist-ahead", daemon=True)
        self._thread.start()

    def results(self) -> list[Any]:
        self._stop = True
        while self._one():
            pass
        self._thread.join()
        return self._results

    def cancel(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        while not self._stop and len(self._results) < len(self._jobs):
            if not self._bubbles.wait(0.05):
                continue
            try:
                if not self._stop and self._one():
                    self.done_in_bubbles += 1
            except Exception:
                return  # the calling thread meets the same error, in its own frame

    def _one(self) -> bool:
        with self._lock:
            if len(self._results) == len(self._jobs):
                return False
            self._results.append(self._jobs[len(self._results)]())
            return True
