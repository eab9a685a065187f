"""What work takes: on a device by the clock, on processors by the time that they were busy, on a
link by messages of two sizes."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from gnn_dist.cluster import Exchange

_MESSAGE = 1 << 20  # bytes of the longer message
_TURNS = 5  # messages of each size

T = TypeVar("T")


def now(device: torch.device) -> float:
    """Seconds of the machine's monotonic clock, once ``device`` has nothing left to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def busy(work: Callable[[], T], device: torch.device, threads: int = 1) -> tuple[T, float]:
    """What ``work`` gives, and the seconds that it keeps each of ``threads`` busy; waiting for
    others does not count. On a GPU, by the clock."""
    if device.type == "cuda":
        start = now(device)
        value = work()
        return value, now(device) - start
    start = time.process_time()
    value = work()
    return value, (time.process_time() - start) / threads


def link_speed(once: Callable[[int], float], exchange: Exchange) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes a second of a link on which ``once`` gives the
    seconds of a message of so many bytes, or of the least there is for 0.

    The median of the slowest rank counts, so all ranks get the same numbers. Collective over
    ``exchange``.
    """
    took = [statistics.median(once(size) for _ in range(_TURNS)) for size in (0, _MESSAGE)]
    short, long = exchange.all_reduce_max(torch.tensor(took, dtype=torch.float64)).tolist()
    return short, _MESSAGE / max(long - short, 1e-6)
