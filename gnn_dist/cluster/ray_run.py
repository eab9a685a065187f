"""One run under Ray Train V2: start the workers, listen to them, explain how it ended."""

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnn_dist.cluster import ray_session
from gnn_dist.cluster.context import Voices, WorkerContext
from gnn_dist.cluster.launch import Workers
from gnn_dist.cluster.ray_worker import Failure, worker_main
from gnn_dist.errors import InputError, WorkerError

_LISTEN = 0.5
"""Seconds that the driver waits for news before it looks at the run again."""


_PATIENCE = 10.0
"""Seconds until people are told what a cluster lacks."""


@dataclass
class _News:
    """What the driver has heard."""

    attempt: int = 0
    result: list[Any] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)
    pids: list[tuple[str, int]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    """What Ray says of the ranks that it has lost in this attempt."""

    def final(self) -> Failure | None:
        return next((f for f in self.failures if f.final), None)

    def losses(self) -> str:
        """The ranks that died in this attempt, in words; empty where none did."""
        return "; ".join(
            f"rank {rank} {what}"
            + (f" (peak {self.peaks[rank]} MiB)" if rank in self.peaks else "")
            for rank, what in sorted(self.lost.items())
        )


def _mailbox() -> Any:
    """A Ray actor through which workers speak to the driver.

    Its class is made here so that it is pickled by value: its process then need not import torch.
    """
    import ray

    class Mailbox:
        def __init__(self) -> None:
            import asyncio

            self._attempts = -1
            self._over = False
            self._posts: list[tuple[str, int, Any]] = []
            self._news = asyncio.Event()

        async def post(self, kind: str, rank: int, value: Any) -> None:
            self._over |= kind == "failure" and value.final
            self._posts.append((kind, rank, value))
            self._news.set()

        async def next_attempt(self) -> int:
            if self._over:
                raise RuntimeError("a worker has failed for good: a restart is of no use")
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
    say: Voices,
) -> Any:
    """``launch`` for one or more Ray workers."""
    news = _News()
    with ray_session.connect(workers) as session:
        from ray.exceptions import RayError
        from ray.train import TrainingFailedError

        error: Exception | None = None
        mailbox = _mailbox()
        listener = _Listener(mailbox, news, say, workers, session)
        try:
            trainer = _trainer(worker, payload, workers, session, mailbox)
            listener.start(on_final_failure=trainer.stop)
            trainer.fit()
        except (RayError, TrainingFailedError) as raised:
            error = raised
        finally:
            # No thread may be inside Ray when Ray ends: its library would crash the process.
            with ray_session.uninterrupted():
                listener.stop()
            session.pids.extend(news.pids)
        final = news.final()
        if final is not None:
            raise _as_itself(final)
        if error is not None:
            raise _explain(error, news, workers, session)
        assert news.result, "the workers ended without an answer of rank 0"
        return pickle.loads(news.result[0])


class _Listener:
    """Takes what workers post, on a thread of its own, until it is stopped."""

    def __init__(
        self,
        mailbox: Any,
        news: _News,
        say: Voices,
        workers: Workers,
        session: ray_session.Session,
    ) -> None:
        self._mailbox = mailbox
        self._news = news
        self._say = say
        self._workers = workers
        self._session = session
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._patience = time.monotonic() + _PATIENCE

    def start(self, on_final_failure: Callable[[], None]) -> None:
        """Begin; ``on_final_failure`` is called once, when no restart can help."""
        self._thread = threading.Thread(
            target=self._run, args=(on_final_failure,), name="gnn-dist-listen", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take what is left, and end the thread."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_final_failure: Callable[[], None]) -> None:
        import ray

        stopped = False
        while True:
            last = self._end.is_set()
            try:
                posts = ray.get(self._mailbox.take.remote(0.0 if last else _LISTEN), timeout=10)
            except ray.exceptions.RayError:  # Ray has ended or is slow
                posts = []
            with contextlib.suppress(OSError):  # the terminal may be gone
                _listen(self._news, posts, self._say, self._workers)
                self._say_what_is_lacking()
            if not stopped and self._news.final() is not None:
                stopped = True
                on_final_failure()
            if last:
                return

    def _say_what_is_lacking(self) -> None:
        if self._news.pids or time.monotonic() < self._patience:
            return
        self._patience = float("inf")
        if self._session.lacks_resources():
            self._say.warn(
                f"waiting for {self._session.wanted()}; the Ray cluster has "
                f"{self._session.offered()}"
            )


def _trainer(
    worker: Callable[[WorkerContext, Any], Any],
    payload: Any,
    workers: Workers,
    session: ray_session.Session,
    mailbox: Any,
) -> Any:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train.torch import TorchConfig, TorchTrainer

    class LeanTrainer(TorchTrainer):
        """Without Ray's helper actors that have nothing to do here: there is no Ray data set, and
        what a run holds of a cluster ends with its driver. Each is one more process to start."""

        controller: Any = None

        def _create_default_callbacks(self) -> list[Any]:
            unused = ("DatasetsCallback", "PlacementGroupCleanerCallback")
            every = super()._create_default_callbacks()  # type: ignore[misc]
            return [c for c in every if type(c).__name__ not in unused]

        def _register_sigint_handler(self, controller: Any) -> None:
            # Ray's own handler ends the driver's process; Ctrl-C is an exception here.
            self.controller = controller

        def stop(self) -> None:
            """End ``fit`` from another thread, with an error."""
            if self.controller is not None:
                ray.kill(self.controller)

    class LossReport(UserCallback):
        """Tells the driver of lost ranks, from Ray's controller: they cannot do it themselves."""

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Any]) -> None:
            lost = {r: _death(e, workers.timeout) for r, e in worker_exceptions.items()}
            sent = [mailbox.post.remote("lost", r, what) for r, what in lost.items() if what]
            # It must be there before the next attempt tells why it is one.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(sent, timeout=30)

    _begin_coordinator()
    use_gpu = session.device == "cuda"
    resources = {"CPU": workers.cpus}
    if use_gpu:
        resources["GPU"] = 1.0
    return LeanTrainer(
        worker_main,
        train_loop_config={
            # As bytes: Ray's controller need not import what only workers need.
            "work": ray.cloudpickle.dumps((worker, payload)),
            "workers": workers,
            "mailbox": mailbox,
            "device": session.device,
            "folder": os.getcwd(),
            "host": os.uname().nodename,
            "storage": str(session.folder),
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
            callbacks=[LossReport()],  # type: ignore[list-item]
            worker_runtime_env={"env_vars": workers.worker_environment()},  # type: ignore[call-arg]
        ),
    )


def _begin_coordinator() -> None:
    """Start the actor that Ray's controller would start and wait for, while that one starts."""
    with contextlib.suppress(ImportError):  # it has no public name
        from ray.data._internal.cluster_autoscaler import get_or_create_autoscaling_coordinator

        get_or_create_autoscaling_coordinator()


def _listen(
    news: _News,
    posts: list[tuple[str, int, Any]],
    say: Voices,
    workers: Workers,
) -> None:
    for kind, rank, value in posts:
        if kind in ("show", "keep", "warn"):
            getattr(say, kind)(value)
        elif kind == "peak":
            news.peaks[rank] = value
        elif kind == "process":
            news.pids.append(value)
        elif kind == "failure":
            news.failures.append(value)
        elif kind == "lost":
            news.lost[rank] = value
        elif kind == "result":
            news.result = [value]
        elif kind == "attempt":
            news.attempt = value
            if value > 0:
                told = news.failures[0].text if news.failures else "a worker was lost"
                why = news.losses() or told
                say.warn(
                    f"restarted all workers from the last checkpoint ({value} of "
                    f"{workers.max_failures}) after: {why}"
                )
            news.failures, news.lost = [], {}


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
        for rank, failure in error.worker_failures.items():
            what = _death(failure, workers.timeout)
            if what is not None:
                news.lost[rank] = what
        if news.lost:
            return _caused(WorkerError(news.losses()), error)
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


def _death(error: BaseException, timeout: float) -> str | None:
    """What became of a rank that Ray has lost; None for one that raised an exception."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    inner = getattr(error, "health_check_failure", error)
    if type(error).__name__ == "WorkerHealthCheckTimeoutError":
        return f"has not answered for {max(timeout, ray_session.HEALTH):g} s"
    if isinstance(inner, OutOfMemoryError) or "low on memory" in str(inner):
        return "was killed by Ray because its host ran out of memory"
    if not isinstance(inner, RayActorError):
        return None
    if "NODE_DIED" in str(inner):
        return "was lost with its host"
    return "was killed, probably out of memory"
