"""The time at which a device has done what it was given."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of the machine's monotonic clock, once ``device`` has nothing left to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
