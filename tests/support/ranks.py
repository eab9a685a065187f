"""Real processes as ranks, without Ray: quick, bounded in time, never left behind.

Ranks are forked from a server process that has imported the package and loaded its kernels already,
so a rank starts in tens of milliseconds and inherits no threads.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gnn_dist.cluster.world import World

_PRELOAD = ["support.preload", "support.ranks"]


@dataclass
class Outcome:
    """How a rank ended: with a ``value``, an ``error``, or neither (killed, or out of time)."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return self.error is None and self.exit_code == 0


def run_ranks(
    fn: Callable[..., Any],
    size: int,
    args: Sequence[Any] = (),
    timeout: float = 60.0,
    limit: float = 30.0,
) -> list[Any]:
    """What ``fn(world, *args)`` returns on each of ``size`` ranks, in the order of ranks.

    ``fn`` is a top-level function of any module; arguments and results are pickled. All ends
    within ``timeout`` seconds; ``limit`` is the time limit of one collective. An exception of a
    rank is raised here with the rank's traceback as a note: the one that came first of itself,
    rather than those it caused on other ranks.
    """
    outcomes = try_ranks(fn, size, args, timeout, limit)
    failed = [(r, o) for r, o in enumerate(outcomes) if not o.finished]
    if failed:
        rank, worst = min(failed, key=lambda x: (type(x[1].error).__name__ == "WorkerError", x[0]))
        error = worst.error or AssertionError(
            f"rank {rank} ended with exit code {worst.exit_code} after {worst.seconds:.1f} s"
        )
        error.add_note(f"on rank {rank} of {size}:\n{worst.trace}")
        raise error
    return [o.value for o in outcomes]


def try_ranks(
    fn: Callable[..., Any],
    size: int,
    args: Sequence[Any] = (),
    timeout: float = 60.0,
    limit: float = 30.0,
    grace: float = 20.0,
) -> list[Outcome]:
    """Like ``run_ranks``, with the outcome of every rank instead of an exception.

    Once a rank has failed, the others may go on for ``limit + grace`` seconds.
    """
    context = server()
    host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), False)
    payload = pickle.dumps(tuple(args))
    module = sys.modules[fn.__module__]
    where = (fn.__module__, getattr(module, "__file__", None), fn.__qualname__)
    start = time.monotonic()
    processes: list[Any] = []
    pipes: list[Connection] = []
    outcomes = [Outcome() for _ in range(size)]
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_main,
                args=(theirs, where, payload, rank, size, host.port, limit, list(sys.path)),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        waiting = dict(enumerate(pipes))
        end = start + timeout
        while waiting and (left := end - time.monotonic()) > 0:
            ready = wait(list(waiting.values()), left)
            for rank in [r for r, pipe in waiting.items() if pipe in ready]:
                with contextlib.suppress(EOFError):
                    outcomes[rank] = pickle.loads(waiting[rank].recv_bytes())
                outcomes[rank].seconds = time.monotonic() - start
                del waiting[rank]
                if outcomes[rank].error is not None:
                    end = min(end, time.monotonic() + limit + grace)
        for rank, process in enumerate(processes):
            process.join(0 if rank in waiting else 10)
            outcomes[rank].exit_code = process.exitcode
            if rank in waiting:
                outcomes[rank].seconds = time.monotonic() - start
    finally:
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            process.close()
        for pipe in pipes:
            pipe.close()
    return outcomes


def server() -> Any:
    """The context of the process that ranks are forked from, which is started once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    with pytest.MonkeyPatch.context() as patch:
        # Its search path is not handed on, and what it cannot import it leaves out silently.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def _main(
    pipe: Connection,
    where: tuple[str, str | None, str],
    payload: bytes,
    rank: int,
    size: int,
    port: int,
    limit: float,
    path: list[str],
) -> None:
    assert set(_PRELOAD) <= sys.modules.keys(), "each rank would import and load for itself"
    sys.path[:] = path
    torch.set_num_threads(1)
    world: World | None = None
    try:
        fn = _find(where)
        args = pickle.loads(payload)
        store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=limit), False)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=limit)
        )
        world = World.connect(timeout=limit)
        outcome = Outcome(value=fn(world, *args))
        data = pickle.dumps(outcome)
        world.close()
    except BaseException as error:
        trace = traceback.format_exc()
        if world is not None:
            world.close(error)
        try:
            data = pickle.dumps(Outcome(error=error, trace=trace))
            pickle.loads(data)
        except Exception:
            data = pickle.dumps(Outcome(error=RuntimeError(repr(error)), trace=trace))
    pipe.send_bytes(data)
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the library may still sit in a broken collective: do not wait for them.
    os._exit(0)


def _find(where: tuple[str, str | None, str]) -> Callable[..., Any]:
    name, file, qualname = where
    if name not in sys.modules and file is not None:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    target: Any = sys.modules[name]
    for part in qualname.split("."):
        target = getattr(target, part)
    return target
