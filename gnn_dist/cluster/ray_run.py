"""One run under Ray Train V2: start the workers, listen to them, explain how it ended."""

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnn_dist.cluster import ray_session
from gnn_dist.cluster.context import WorkerContext
from gnn_dist.cluster.launch import Workers, prepare_process
from gnn_dist.cluster.watch import peak_mib
from gnn_dist.cluster.world import World
from gnn_dist.errors import InputError, WorkerError

_LISTEN = 0.5
"""Seconds that the driver waits for news before it looks at the run again."""


_PATIENCE = 10.0
"""Seconds until people are told what a cluster lacks."""


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


@dataclass
class _News:
    """What the driver has heard."""

    attempt: int = 0
    result: list[Any] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)
    pids: list[tuple[str, int]] = field(default_factory=list)

    def final(self) -> Failure | None:
        return next((f for f in self.failures if f.final), None)


def _mailbox() -> Any:
    """A Ray actor through which workers speak to the driver.

    Its class is made here so that it is pickled by value: its process then need not import torch.
    """
    import ray

    class Mailbox:
        def __init__(self) -> None:
            import asyncio

            self._attempts = -1
            self._posts: list[tuple[str, int, Any]] = []
            self._news = asyncio.Event()

        async def post(self, kind: str, rank: int, value: Any) -> None:
            self._posts.append((kind, rank, value))
            self._news.set()

        async def next_attempt(self) -> int:
            self._attempts += 1
            return self._attempts

        async def take(self, timeout: float) -> list[tuple[str, int, Any]]:
            """All that was posted since the last call; waits ``timeout`` seconds for the first."""
            import asyncio
            import contextlib

            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout)
            self._news.clear()
            out, self._posts = self._posts, []
            return out

    return ray.remote(num_cpus=0)(Mailbox).remote()


def run(
    worker: Callable[[WorkerContext, Any], Any],
    payload: Any,
    workers: Workers,
    show: Callable[[str], None],
    keep: Callable[[str], None],
) -> Any:
    """``launch`` for one or more Ray workers."""
    news = _News()
    with ray_session.connect(workers) as session:
        import ray

        mailbox = _mailbox()
        trainer = _trainer(worker, payload, workers, session, mailbox)
        fit = _Fit(trainer)
        patience = time.monotonic() + _PATIENCE
        try:
            while fit.running and news.final() is None:
                if not news.pids and time.monotonic() > patience:
                    patience = float("inf")
                    if session.lacks_resources():
                        keep(
                            f"waiting for {session.wanted()}; the Ray cluster has "
                            f"{session.offered()}"
                        )
                _listen(news, ray.get(mailbox.take.remote(_LISTEN)), show, keep, workers)
            if news.final() is None:
                _listen(news, ray.get(mailbox.take.remote(0.0)), show, keep, workers)
        finally:
            session.pids.extend(news.pids)
        final = news.final()
        if final is not None:
            raise _as_itself(final)
        if fit.error is not None:
            raise _explain(fit.error, news, workers, session)
        assert news.result, "the workers ended without an answer of rank 0"
        return pickle.loads(news.result[0])


class _Fit:
    """``TorchTrainer.fit`` on a thread, so that Ray leaves the handling of Ctrl-C to us."""

    def __init__(self, trainer: Any) -> None:
        self.error: BaseException | None = None
        self._trainer = trainer
        self._thread = threading.Thread(target=self._run, name="gnn-dist-fit", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:
            self.error = error


def _trainer(
    worker: Callable[[WorkerContext, Any], Any],
    payload: Any,
    workers: Workers,
    session: ray_session.Session,
    mailbox: Any,
) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    class LeanTrainer(TorchTrainer):
        """Without Ray's helper actors that this project has no use for on one machine.

        Each is one more process to start: about a third of the time to the first batch.
        """

        def _create_default_callbacks(self) -> list[Any]:
            unused = ("DatasetsCallback", "PlacementGroupCleanerCallback")
            every = super()._create_default_callbacks()  # type: ignore[misc]
            return [c for c in every if not session.local or type(c).__name__ not in unused]

    use_gpu = session.device == "cuda"
    resources = {"CPU": workers.cpus}
    if use_gpu:
        resources["GPU"] = 1.0
    return LeanTrainer(
        _worker_main,
        train_loop_config={
            "worker": worker,
            "payload": payload,
            "workers": workers,
            "mailbox": mailbox,
            "device": session.device,
            "folder": os.getcwd(),
        },
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo",
            timeout_s=max(60, int(workers.timeout)),
        ),
        scaling_config=ScalingConfig(
            num_workers=workers.count, use_gpu=use_gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name="run",
            storage_path=str(session.folder),
            failure_config=FailureConfig(
                max_failures=workers.max_failures,
                controller_failure_limit=0,  # type: ignore[call-arg]
            ),
            worker_runtime_env={"env_vars": workers.worker_environment()},  # type: ignore[call-arg]
        ),
    )


def _worker_main(job: dict[str, Any]) -> None:
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

    post("process", (os.uname().nodename, os.getpid()))
    peaks = _Peaks(lambda mib: post("peak", mib))
    world: World | None = None
    error: BaseException | None = None
    try:
        # Ray has made the default group already, with the time limit that it was given.
        address = ray.util.get_node_ip_address()
        world = World.connect(address=address, device=device, timeout=workers.timeout)
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
            report=report,
        )
        answer = job["worker"](context, job["payload"])
        if rank == 0:
            post("result", pickle.dumps(answer), wait=True)
    except BaseException as raised:
        error = raised
        peaks.tell()
        post("failure", _pack(rank, raised), wait=True)
        # Ray would pickle the exception again; it must only learn that there was one.
        raise RuntimeError(f"rank {rank} of {size}: {type(raised).__name__}") from None
    finally:
        peaks.stop()
        if world is not None:
            world.close(error)


class _Peaks:
    """Tells the driver how much memory this rank has used, since a killed rank cannot."""

    def __init__(self, tell: Callable[[int], None], interval: float = 1.0) -> None:
        self._tell = tell
        self._told = 0
        self._end = threading.Event()
        self._interval = interval
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
        final=not isinstance(error, WorkerError),
    )


def _listen(
    news: _News,
    posts: list[tuple[str, int, Any]],
    show: Callable[[str], None],
    keep: Callable[[str], None],
    workers: Workers,
) -> None:
    for kind, rank, value in posts:
        if kind == "show":
            show(value)
        elif kind == "keep":
            keep(value)
        elif kind == "peak":
            news.peaks[rank] = value
        elif kind == "process":
            news.pids.append(value)
        elif kind == "failure":
            news.failures.append(value)
        elif kind == "result":
            news.result = [value]
        elif kind == "attempt":
            news.attempt = value
            if value > 0:
                why = news.failures[-1].text if news.failures else "a worker was lost"
                keep(
                    f"restarted all workers from the last checkpoint ({value} of "
                    f"{workers.max_failures}) after: {why}"
                )
            news.failures = []


class WorkerTraceback(Exception):
    """The traceback of an exception that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _as_itself(failure: Failure) -> BaseException:
    cause = WorkerTraceback(f"on rank {failure.rank}:\n{failure.trace}")
    error: BaseException
    if failure.error is not None:
        error = pickle.loads(failure.error)
    else:
        error = WorkerError(f"rank {failure.rank} failed: {failure.text}")
    error.__cause__ = cause
    return error


def _explain(
    error: BaseException, news: _News, workers: Workers, session: ray_session.Session
) -> BaseException:
    """The error to raise when Ray has given up."""
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        lost = [_death(r, e, news, workers.timeout) for r, e in error.worker_failures.items()]
        if any(lost):
            return _caused(WorkerError("; ".join(x for x in lost if x)), error)
        if news.failures:
            return _as_itself(news.failures[0])
    if isinstance(error, ControllerError):
        text = str(error.controller_failure)
        if session.lacks_resources():
            return _caused(
                InputError(
                    f"cluster.workers: {workers.count} workers need {session.wanted()}, and the "
                    f"Ray cluster has {session.offered()}; use fewer workers or a larger cluster"
                ),
                error,
            )
        return _caused(WorkerError(f"the workers could not be started: {text}"), error)
    return _caused(WorkerError(f"Ray ended the run: {error}"), error)


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def _death(rank: int, error: BaseException, news: _News, timeout: float) -> str | None:
    """What became of a rank that Ray has lost; None for one that raised an exception."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    inner = getattr(error, "health_check_failure", error)
    peak = f" (peak {news.peaks[rank]} MiB)" if rank in news.peaks else ""
    if type(error).__name__ == "WorkerHealthCheckTimeoutError":
        return f"rank {rank} has not answered for {max(timeout, ray_session.HEALTH):g} s{peak}"
    if isinstance(inner, OutOfMemoryError) or "low on memory" in str(inner):
        return f"rank {rank} was killed by Ray because its host ran out of memory{peak}"
    if not isinstance(inner, RayActorError):
        return None
    if "NODE_DIED" in str(inner):
        return f"rank {rank} was lost with its host{peak}"
    return f"rank {rank} was killed, probably out of memory{peak}"
