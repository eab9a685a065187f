"""Compiling kernels ahead of a run."""

import os
import subprocess
import sys

import pytest

from gnn_dist import kernels


def test_only_what_is_not_in_the_cache_is_told(monkeypatch):
    kernels.compile_all()
    told = []
    kernels.compile_all(lambda *words: told.append(words))
    assert told == []
    monkeypatch.setattr(kernels, "_is_cached", lambda module: not module.__name__.endswith("topk"))
    kernels.compile_all(lambda *words: told.append(words))
    assert [name for name, _ in told] == ["topk", "topk"]
    assert told[0][1] is None
    assert told[1][1] >= 0


@pytest.mark.parametrize("cores", [1, 2])
def test_an_empty_cache_is_filled_whole(tmp_path, cores):
    """By one process, and by two that begin at the two ends; then nothing is left to tell."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    code = f"""
import os
from gnn_dist import kernels
few = ("cache", "grid", "relabel", "sorted_keys")
modules = [m for m in kernels._modules() if m.__name__.endswith(few)]
kernels._modules = lambda: modules
os.sched_getaffinity = lambda _: set(range({cores}))
told = []
kernels.compile_all(lambda *words: told.append(words))
assert told[0] == ("cache", None)
kernels.compile_all(lambda *words: told.append("again"))
assert "again" not in told
"""
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
    assert len(list(tmp_path.rglob("sorted_keys*.nbi"))) > 0
