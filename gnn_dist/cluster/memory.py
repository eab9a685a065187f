"""Running out of memory, in words."""

import errno
import resource

import torch

from gnn_dist.errors import OutOfMemory

_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")
"""What torch's CPU allocators say, in a plain RuntimeError."""


def peak_mib() -> int:
    """The peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def out_of_memory(error: BaseException, rank: int | None = None) -> OutOfMemory | None:
    """The error for people, where ``error`` is that memory was asked for and not given.

    ``rank`` is None in the driver.
    """
    asked = isinstance(error, MemoryError | torch.OutOfMemoryError)
    asked |= isinstance(error, OSError) and error.errno == errno.ENOMEM
    asked |= isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    if not asked or isinstance(error, OutOfMemory):
        return None
    who = "the driver" if rank is None else f"rank {rank}"
    said = f": {str(error).strip().splitlines()[0]}" if str(error).strip() else ""
    return OutOfMemory(
        f"{who} ran out of memory, its peak was {peak_mib()} MiB{said}; lower train.batch_size, "
        "sampler.fanouts or the model's width, or use more hosts"
    )
