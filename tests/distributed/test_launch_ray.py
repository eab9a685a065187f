"""Real Ray workers: restarts, errors, and what is left behind.

Each test is one driver process with one Ray, since starting Ray takes most of the time.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

SECONDS = 500
"""A driver ends in well under a minute on an idle machine."""
pytestmark = pytest.mark.timeout(2 * SECONDS)

MARK = "GNN_DIST_TEST_MARK"

RESTART = """
import json, os, signal, warnings
import torch
from gnn_dist.cluster import Workers, launch

def work(context, payload):
    print("a worker prints")
    warnings.warn("a library warns")
    context.world.control.barrier()
    if context.rank == 0 and context.attempt == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    total = context.world.gradients.all_reduce_sum(torch.tensor([context.rank + 1.0]))
    context.report({"total": float(total)})
    if context.rank == 0:
        context.show("never on a pipe")
        context.keep(f"in attempt {context.attempt}")
    names = ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "TOLD")
    return {
        "payload": payload,
        "total": float(total),
        "rank": context.rank,
        "size": context.size,
        "hosts": len(set(context.hosts)),
        "attempt": context.attempt,
        "folder": os.getcwd(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ.get(name) for name in names},
    }

workers = Workers(2, threads=1, timeout=5, max_failures=2, environment={"TOLD": "yes"})
print(json.dumps(launch(work, {"a": [1, 2]}, workers)))
"""

ERRORS = """
import json, os, signal, sys
import torch
from gnn_dist.cluster import Workers, launch, ray_session
from gnn_dist.errors import InputError, WorkerError

def work(context, how):
    assert context.attempt == 0
    context.world.control.barrier()
    if context.rank == 1 and how == "input":
        raise InputError("train.lr: -1 is below 0")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    context.world.gradients.all_reduce_sum(torch.ones(1))

def tell(how, workers):
    try:
        launch(work, how, workers)
    except Exception as error:
        print(json.dumps([how, type(error).__name__, str(error), str(error.__cause__)]))

tell("nowhere", Workers(1, address="127.0.0.1:1"))
tell("client", Workers(1, address="ray://127.0.0.1:10001"))
address = sys.argv[1]
tell("input", Workers(2, address=address, max_failures=3))
tell("killed", Workers(1, address=address, max_failures=0))
ray_session.START = 3
tell("many", Workers(3, address=address, timeout=3))
"""

SLEEP = """
import os, sys, time
from gnn_dist.cluster import Workers, launch

def work(context, payload):
    context.world.control.barrier()
    context.keep("asleep")
    time.sleep(600)

launch(work, None, Workers(1))
"""


@pytest.fixture
def mark() -> Iterator[str]:
    """Marks all processes of a test; those that it leaves behind are ended."""
    value = uuid.uuid4().hex
    yield value
    for pid in marked(value):
        os.kill(pid, signal.SIGKILL)


def marked(value: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if value.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def left_behind(value: str, seconds: float) -> list[str]:
    """The marked processes that are still there after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and marked(value):
        time.sleep(0.2)
    found = []
    for pid in marked(value):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found.append(f"{pid} {words}")
    return found


def start(program: str, mark: str, *arguments: str, **options: object) -> subprocess.Popen:
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def folders_of(pid: int) -> list[Path]:
    found: list[Path] = []
    for parent in {tempfile.gettempdir(), "/tmp"}:
        found += Path(parent).glob(f"gnn-dist-{pid}-*")
    return found


def test_a_stopped_worker_restarts_the_group_quietly(mark, tmp_path):
    """One that is killed does in test_faults; a group is told who hangs in test_exchange_faults."""
    process = start(RESTART, mark, cwd=tmp_path)
    out, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, told
    assert json.loads(out) == {
        "payload": {"a": [1, 2]},
        "total": 3.0,
        "rank": 0,
        "size": 2,
        "hosts": 1,
        "attempt": 1,
        "folder": str(tmp_path),
        "threads": 1,
        "environment": {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "TOLD": "yes"},
    }
    restart, last = told.splitlines()
    assert "(1 of 2) after: " in restart
    assert "rank 0 " in restart
    assert "its process is stopped" in restart
    assert last == "in attempt 1"
    assert left_behind(mark, 10) == []
    assert folders_of(process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_errors_of_workers_reach_the_driver_as_themselves(mark, tmp_path, ray_address):
    process = start(ERRORS, mark, ray_address, cwd=tmp_path)
    out, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, told
    nowhere, client, given, killed, many = (json.loads(line) for line in out.splitlines())
    assert nowhere[:2] == ["nowhere", "InputError"]
    assert "there is no Ray at '127.0.0.1:1'" in nowhere[2]
    assert client[:2] == ["client", "InputError"]
    assert "an address is auto or host:port" in client[2]
    assert given[:3] == ["input", "InputError", "train.lr: -1 is below 0"]
    assert "on rank 1:" in given[3]
    assert "in work" in given[3]
    assert killed[:2] == ["killed", "WorkerError"]
    assert "rank 0 was killed, probably out of memory (peak " in killed[2]
    assert many[:2] == ["many", "InputError"]
    assert "3 workers need 3 CPUs, and the Ray cluster has 2 CPUs" in many[2]
    assert left_behind(mark, 10) == []
    assert folders_of(process.pid) == []


def test_a_driver_that_is_told_to_end_leaves_nothing(mark, tmp_path):
    """Other ends of a driver are in test_faults: they are those of whole runs."""
    process = start(SLEEP, mark, cwd=tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline() == "asleep\n"
    assert len(marked(mark)) > 4
    os.kill(process.pid, signal.SIGTERM)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out, told) == (128 + signal.SIGTERM, "", "")
    assert left_behind(mark, 10) == []
    assert folders_of(process.pid) == []
