"""Compiling kernels ahead of a run."""

import os
import subprocess
import sys
from types import ModuleType

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


def test_an_empty_cache_is_filled(tmp_path):
    code = """
from gnn_dist import kernels
few = ("grid", "relabel", "sorted_keys")
modules = [m for m in kernels._modules() if m.__name__.endswith(few)]
kernels._modules = lambda: modules
told = []
kernels.compile_all(lambda *words: told.append(words))
assert [name for name, seconds in told if seconds is None] == list(few), told
kernels.compile_all(lambda *words: told.append("again"))
assert "again" not in told
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    subprocess.run([*one_core, sys.executable, "-c", code], env=environment, check=True)
    assert len(list(tmp_path.rglob("*.nbi"))) >= 3


@pytest.mark.parametrize("cores", [1, 2])
def test_a_second_process_begins_at_the_other_end_where_there_is_a_core(monkeypatch, cores):
    called, ended = [], []

    class Process:
        def __init__(self, command):
            called.append(command[1:])

        def kill(self):
            ended.append("killed")

        def wait(self):
            ended.append("waited for")

    def module(name: str) -> ModuleType:
        made = ModuleType(f"gnn_dist.kernels.{name}")
        made.__file__ = f"{name}.py"
        made.warmup = lambda: called.append(name)
        return made

    modules = [module(name) for name in "abc"]
    monkeypatch.setattr(kernels, "_modules", lambda: modules)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(subprocess, "Popen", Process)
    kernels.compile_all()
    second = [["-m", "gnn_dist.kernels", "backwards"]] if cores > 1 else []
    assert called == [*second, "a", "b", "c"]
    assert ended == (["killed", "waited for"] if cores > 1 else [])
    called.clear()
    kernels.compile_backwards()
    assert called == ["c", "b", "a"]


def test_kernels_are_compiled_by_a_command():
    command = [sys.executable, "-m", "gnn_dist.kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.startswith("kernels are compiled (")
    assert subprocess.run([*command, "backwards"], check=True, timeout=200).returncode == 0
