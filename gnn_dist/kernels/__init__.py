"""The hot loops: arrays in, arrays out, compiled by numba on first use and cached on disk."""

import importlib
import pkgutil
import time
from collections.abc import Callable


def compile_all(report: Callable[[str, float], None] | None = None) -> float:
    """Call every kernel module's ``warmup()``, so that nothing is compiled in the middle of a run.

    ``report(module, seconds)`` is called after each module. Returns the seconds it all took: a
    fraction of a second where the compiled code was found in numba's cache.
    """
    start = time.perf_counter()
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if not hasattr(module, "warmup"):
            continue
        begin = time.perf_counter()
        module.warmup()
        if report is not None:
            report(info.name, time.perf_counter() - begin)
    return time.perf_counter() - start
