"""The hot loops: arrays in, arrays out, compiled by numba on first use and cached on disk."""

import importlib
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from numba.core.registry import CPUDispatcher


def compile_all(report: Callable[[str, float | None], None] | None = None) -> float:
    """Call every kernel module's ``warmup()``, so that nothing is compiled in the middle of a run.

    Where numba's cache has nothing of a module, ``report(module, None)`` is called before it is
    compiled and ``report(module, seconds)`` after. Returns the seconds it all took: a fraction of
    a second where the compiled code was found in the cache.
    """
    start = time.perf_counter()
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if not hasattr(module, "warmup"):
            continue
        begin = time.perf_counter()
        told = None if _is_cached(module) else report
        if told is not None:
            told(info.name, None)
        module.warmup()
        if told is not None:
            told(info.name, time.perf_counter() - begin)
    return time.perf_counter() - start


def _is_cached(module: ModuleType) -> bool:
    """Whether numba has kept compiled code of a module, be it of an earlier version."""
    assert module.__file__ is not None
    index = f"{Path(module.__file__).stem}.*.nbi"
    kernels = (k for k in vars(module).values() if isinstance(k, CPUDispatcher))
    folders = {k.stats.cache_path for k in kernels if k.__module__ == module.__name__}
    return any(any(Path(folder).glob(index)) for folder in folders if folder)
