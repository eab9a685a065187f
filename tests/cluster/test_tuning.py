import ctypes
import os
import platform
import subprocess
import sys

import pytest

from gnn_dist.cluster import tuning

PROGRAM = """
import importlib.util, resource, sys, threading
import numpy as np
spec = importlib.util.spec_from_file_location("tuning", sys.argv[3])
tuning = sys.modules["tuning"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tuning)  # without the package, and so without torch: quick
def faults(batches):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(batches):
        [np.ones(n << 17) for n in (1, 4, 40)]  # MiB; 40 is over the limit of an older glibc
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def work():
    ready.wait()
    faults(20)
    print(faults(10))
where, tune = sys.argv[1:3]
ready, thread = threading.Event(), threading.Thread(target=work)
if where == "started thread":
    thread.start()
if tune == "mallopt":
    assert tuning.tune_allocator()
ready.set()
if where == "main":
    work()
else:
    if where == "new thread":
        thread.start()
    thread.join()
"""
PAGES_OF_TEN_BATCHES = 10 * (1 + 4 + 40) * 256


def page_faults(where: str, tune: str = "mallopt") -> int:
    """Page faults of ten batches once memory has settled."""
    environment = tuning.allocator_environment(keep_freed=tune == "environment", huge_pages=False)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where, tune, tuning.__file__],
        env={**os.environ, **environment, "NUMPY_MADVISE_HUGEPAGE": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("where", "tune"),
    [("main", "mallopt"), ("new thread", "mallopt"), ("started thread", "environment")],
)
def test_a_tuned_process_does_not_map_its_memory_anew_at_every_batch(where, tune):
    assert page_faults(where, tune) < 0.05 * PAGES_OF_TEN_BATCHES


def test_without_tuning_every_batch_maps_its_memory_anew():
    assert page_faults("main", "nothing") > 0.5 * PAGES_OF_TEN_BATCHES


def test_what_was_done_is_told():
    done = tuning.tune_allocator()
    assert done
    assert done.settings["mmap_threshold"] in (32 << 20, 1 << 30)
    assert done.settings["arena_max"] == 1
    assert done.reason == ""


def test_a_setting_that_malloc_refuses_is_not_claimed(monkeypatch):
    class Library:
        def __init__(self, name: str) -> None:
            self.mallopt = Mallopt()

    class Mallopt:
        """Of a glibc that takes at most 32 MiB for the threshold, and no arena limit."""

        def __call__(self, key: int, value: int) -> int:
            return 0 if key == -8 or (key == -3 and value > 32 << 20) else 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    done = tuning.tune_allocator()
    assert done.settings["mmap_threshold"] == 32 << 20
    assert "arena_max" not in done.settings


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: 1 / 0)
    done = tuning.tune_allocator()
    assert not done
    assert "musl" in done.reason


def test_each_part_of_the_environment_has_its_switch():
    assert tuning.allocator_environment(keep_freed=False, huge_pages=False) == {}
    wanted = tuning.allocator_environment(keep_freed=False, huge_pages=True)
    assert wanted == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
    assert "MALLOC_ARENA_MAX" in tuning.allocator_environment(keep_freed=True, huge_pages=False)
