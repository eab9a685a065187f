"""How long work keeps a processor busy."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def busy(work: Callable[[], T], device: torch.device, threads: int = 1) -> tuple[T, float]:
    """What ``work`` gives, and the seconds that it keeps each of ``threads`` busy; waiting for
    others does not count. On a GPU, by the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        value = work()
        torch.cuda.synchronize(device)
        return value, time.perf_counter() - start
    start = time.process_time()
    value = work()
    return value, (time.process_time() - start) / threads
