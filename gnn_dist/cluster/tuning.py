"""Settings of the memory allocator that decide how fast a step is.

glibc gives large blocks back to the kernel as soon as they are freed, and every batch pays again
for mapping and clearing them. Keeping freed memory in the process is the largest single gain on a
CPU, at the price of peak memory.
"""

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1 << 20

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_LIMIT = 32 * MIB  # glibc refuses more


@dataclass(frozen=True)
class Tuned:
    """What ``tune_allocator`` did: the settings that were taken (bytes), or why none was."""

    settings: dict[str, int]
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.settings)


def tune_allocator(
    mmap_threshold: int = _MMAP_THRESHOLD_LIMIT,
    trim_threshold: int = 2047 * MIB,
    top_pad: int = 64 * MIB,
) -> Tuned:
    """Let malloc keep freed memory instead of returning it to the kernel at every batch.

    Blocks below ``mmap_threshold`` bytes (glibc allows at most 32 MiB) come from the heap, which
    grows by ``top_pad`` bytes at a time and shrinks only when more than ``trim_threshold`` bytes
    at its top are free. For the whole process, glibc only; elsewhere nothing is done and the
    answer says why.
    """
    if platform.libc_ver()[0] != "glibc":
        return Tuned({}, f"the C library is {platform.libc_ver()[0] or 'not glibc'}")
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError) as error:
        return Tuned({}, str(error))
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    wanted = {
        "mmap_threshold": (_M_MMAP_THRESHOLD, mmap_threshold),
        "trim_threshold": (_M_TRIM_THRESHOLD, trim_threshold),
        "top_pad": (_M_TOP_PAD, top_pad),
    }
    taken = {name: value for name, (key, value) in wanted.items() if mallopt(key, value) == 1}
    return Tuned(taken, "" if taken else "mallopt refused every setting")


def huge_page_environment(enabled: bool) -> Mapping[str, str]:
    """Environment of a process that is to use transparent huge pages for large blocks.

    Read by glibc (2.35 or newer) and by torch when a process starts, so it can only be given to
    workers that are started, not to the running process.
    """
    if not enabled:
        return {}
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
