"""Row ranges of a kernel on several threads.

Kernels are compiled with ``nogil=True`` and never with ``parallel=True``: numba's default
threading layer aborts the process when two Python threads enter it, and a sampling thread runs
beside the training thread here. Kernels given to ``run`` write only rows ``lo .. hi - 1`` of their
output, each from its own inputs, so the bits of a result do not depend on the number of threads.
"""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_CHUNKS_PER_THREAD = 4  # evens out rows of unequal cost
_SMALL = 16_384  # below this much work (rows + edges) a hand-over costs more than it saves
_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def num_threads() -> int:
    """Threads that ``run`` uses: those of torch in the calling thread."""
    return torch.get_num_threads()


def run(fn: Callable[..., Any], n: int, *args: Any, work: int | None = None) -> None:
    """Call ``fn(lo, hi, *args)`` over ranges that cover ``0 .. n - 1``.

    ``work`` estimates the cost (rows plus edges; ``n`` where not given) to leave small jobs on the
    calling thread. Returns when all ranges are done and raises the first error of any.
    """
    threads = num_threads()
    if threads == 1 or n < 2 or (n if work is None else work) < _SMALL:
        if n:
            fn(0, n, *args)
        return
    chunks = min(n, threads * _CHUNKS_PER_THREAD)
    run_ranges(fn, [n * k // chunks for k in range(chunks + 1)], *args)


def run_rows(fn: Callable[..., Any], indptr: np.ndarray, *args: Any) -> None:
    """``run`` over the rows of a CSC or CSR matrix, cut so that each range has as many rows plus
    edges as another."""
    n = indptr.size - 1
    threads = num_threads()
    work = n + int(indptr[-1])
    if threads == 1 or n < 2 or work < _SMALL:
        if n:
            fn(0, n, *args)
        return
    chunks = min(n, threads * _CHUNKS_PER_THREAD)
    bounds = [0, *(_cut(indptr, work * k // chunks) for k in range(1, chunks)), n]
    run_ranges(fn, bounds, *args)


def _cut(indptr: np.ndarray, wanted: int) -> int:
    """The first row before which at least ``wanted`` rows and edges lie."""
    lo, hi = 0, indptr.size - 1
    while lo < hi:
        middle = (lo + hi) // 2
        if middle + int(indptr[middle]) < wanted:
            lo = middle + 1
        else:
            hi = middle
    return lo


def run_ranges(fn: Callable[..., Any], bounds: Sequence[int], *args: Any) -> None:
    """Call ``fn(bounds[k], bounds[k + 1], *args)`` for every non-empty range, on all threads.

    The caller works too. Ranges are taken in order by whoever is free.
    """
    ranges = [(lo, hi) for lo, hi in itertools.pairwise(bounds) if lo < hi]
    threads = min(num_threads(), len(ranges))
    turn = itertools.count()

    def work() -> None:
        while (k := next(turn)) < len(ranges):
            fn(*ranges[k], *args)

    helpers = [_executor(threads).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()


def run_tasks(task: Callable[[int], Any], count: int) -> None:
    """Call ``task(0)`` to ``task(count - 1)`` on threads in which torch is single-threaded.

    For tasks that call torch: what a task computes does not depend on the number of threads. With
    one thread they run in the caller; otherwise the caller waits.
    """
    threads = min(num_threads(), count)
    if num_threads() == 1:
        for k in range(count):
            task(k)
        return
    turn = itertools.count()

    def work() -> None:
        while (k := next(turn)) < count:
            task(k)

    helpers = [_executor(threads).submit(work) for _ in range(threads)]
    for helper in helpers:
        helper.exception()  # let all end before an error is raised
    for helper in helpers:
        helper.result()


def _executor(threads: int) -> ThreadPoolExecutor:
    """The pool of this process, shared by all callers; grows to the largest number asked for.

    torch runs single-threaded in its threads. ``torch.set_num_threads`` holds for the calling
    thread and for threads that have not used torch yet, so the caller sets its own number again.
    """
    global _pool
    with _pool_lock:
        if _pool is None or _pool._max_workers < threads:
            own = torch.get_num_threads()
            pool = ThreadPoolExecutor(threads, "gnn-dist-kernel", initializer=_be_single_threaded)
            ready = threading.Barrier(threads + 1)
            for _ in range(threads):
                pool.submit(ready.wait)
            ready.wait()
            torch.set_num_threads(own)
            _pool = pool
        return _pool


def _be_single_threaded() -> None:
    torch.get_num_threads()  # the first call in a thread takes the process's number: not later
    torch.set_num_threads(1)


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork
