"""What work takes: on a device by the clock, on processors by the time that they were busy."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

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
