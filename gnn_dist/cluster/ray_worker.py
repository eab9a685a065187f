"""The process of one rank under Ray."""

import os
import pickle
import shutil
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gnn_dist.cluster.context import WorkerContext
from gnn_dist.cluster.launch import Workers, prepare_process
from gnn_dist.cluster.memory import out_of_memory, peak_mib
from gnn_dist.cluster.world import World
from gnn_dist.errors import OutOfMemory, WorkerError


@dataclass
class Failure:
    """An exception of a worker, ready to travel."""

    rank: int
    error: bytes | None
    """The pickled exception, where it can be pickled."""
    text: str
    trace: str
    final: bool
    """Not worth a restart: the same would happen again."""


def worker_main(job: dict[str, Any]) -> None:
    """The process of one rank."""
    import ray
    import ray.train
    import ray.train.torch

    workers: Workers = job["workers"]
    mailbox = job["mailbox"]
    ray_context = ray.train.get_context()
    rank, size = ray_context.get_world_rank(), ray_context.get_world_size()
    if os.path.isdir(job["folder"]):
        os.chdir(job["folder"])
    prepare_process(workers.threads, workers.tune_allocator)
    device = ray.train.torch.get_device() if job["device"] == "cuda" else "cpu"

    def post(kind: str, value: Any, wait: bool = False) -> None:
        sent = mailbox.post.remote(kind, rank, value)
        if wait:
            ray.get(sent, timeout=60)

    peaks = _Peaks(lambda mib: post("peak", mib))
    post("process", (os.uname().nodename, os.getpid()), wait=True)
    world: World | None = None
    error: BaseException | None = None
    try:
        # Ray has made the default group already, with the time limit that it was given.
        address = ray.util.get_node_ip_address()
        try:
            world = World.connect(address=address, device=device, timeout=workers.timeout)
        except RuntimeError as failed:  # a rank was lost on the way here: a restart may help
            raise WorkerError(f"rank {rank} could not join the others: {failed}") from failed
        attempt = ray.get(mailbox.next_attempt.remote()) if rank == 0 else 0
        attempt = world.control.all_gather_object(attempt)[0]
        if rank == 0:
            post("attempt", attempt)

        def report(metrics: Mapping[str, Any]) -> None:
            # Ray's own barrier cannot say who is missing: meet under the watch first.
            world.control.barrier()
            ray.train.report(dict(metrics))

        context = WorkerContext(
            world,
            attempt,
            show=lambda text: post("show", text),
            keep=lambda text: post("keep", text),
            warn=lambda text: post("warn", text),
            report=report,
        )
        worker, payload = pickle.loads(job["work"])
        answer = worker(context, payload)
        if rank == 0:
            post("result", pickle.dumps(answer), wait=True)
    except BaseException as raised:
        error = out_of_memory(raised, rank) or raised
        if error is not raised:
            error.__cause__ = raised
        peaks.tell()
        post("failure", _pack(rank, error), wait=True)
        # Ray would pickle the exception again; it must only learn that there was one.
        raise RuntimeError(f"rank {rank} of {size}: {type(raised).__name__}") from None
    finally:
        peaks.stop()
        if world is not None:
            world.close(error)
        if os.uname().nodename != job["host"]:  # Ray Train makes its folder on every host
            shutil.rmtree(job["storage"], ignore_errors=True)


class _Peaks:
    """Tells the driver how much memory this rank has used, since a killed rank cannot."""

    def __init__(self, tell: Callable[[int], None], interval: float = 1.0) -> None:
        self._tell = tell
        self._told = 0
        self._end = threading.Event()
        self._interval = interval
        self.tell()
        self._thread = threading.Thread(target=self._run, name="gnn-dist-peaks", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        peak = peak_mib()
        if peak > 1.02 * self._told:
            self._told = peak
            self._tell(peak)

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            self.tell()


def _pack(rank: int, error: BaseException) -> Failure:
    import ray.cloudpickle

    try:
        data: bytes | None = ray.cloudpickle.dumps(error)
        pickle.loads(data or b"")
    except Exception:
        data = None
    return Failure(
        rank,
        data,
        f"{type(error).__name__}: {error}",
        "".join(traceback.format_exception(error)),
        final=not isinstance(error, WorkerError) or isinstance(error, OutOfMemory),
    )
