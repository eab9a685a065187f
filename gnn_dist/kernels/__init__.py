"""The hot loops: arrays in, arrays out, compiled by numba on first use and cached on disk."""

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from numba.core.registry import CPUDispatcher

Report = Callable[[str, float | None], None]


def compile_all(report: Report | None = None) -> float:
    """Call every kernel module's ``warmup()``, so that nothing is compiled in the middle of a run.

    Where numba's cache has nothing of a module, ``report(module, None)`` is called before it is
    compiled and ``report(module, seconds)`` after. A second process, where there is a core for it,
    compiles from the other end; what it has left in the cache is not told. Returns the seconds it
    all took: a fraction of a second where the compiled code was found in the cache.
    """
    start = time.perf_counter()
    modules = _modules()
    with _second_process(sum(not _is_cached(m) for m in modules)):
        _compile(modules, report)
    return time.perf_counter() - start


def compile_backwards() -> None:
    """What the second process does until the first has ended it."""
    _compile(reversed(_modules()), None)


def _modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(__path__) if info.name != "__main__"]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [module for module in modules if hasattr(module, "warmup")]


def _compile(modules: Iterable[ModuleType], report: Report | None) -> None:
    for module in modules:
        begin = time.perf_counter()
        name = module.__name__.rpartition(".")[2]
        told = None if _is_cached(module) else report
        if told is not None:
            told(name, None)
        module.warmup()
        if told is not None:
            told(name, time.perf_counter() - begin)


@contextlib.contextmanager
def _second_process(missing: int) -> Iterator[None]:
    if missing < 2 or len(os.sched_getaffinity(0)) < 2:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", __name__, "backwards"])
    try:
        yield
    finally:
        process.kill()  # numba's cache puts whole files in place
        process.wait()


def _is_cached(module: ModuleType) -> bool:
    """Whether numba has kept compiled code of a module, be it of an earlier version."""
    assert module.__file__ is not None
    index = f"{Path(module.__file__).stem}.*.nbi"
    kernels = (k for k in vars(module).values() if isinstance(k, CPUDispatcher))
    folders = {k.stats.cache_path for k in kernels if k.__module__ == module.__name__}
    return any(any(Path(folder).glob(index)) for folder in folders if folder)
