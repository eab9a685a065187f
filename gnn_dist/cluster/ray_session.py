"""A Ray to run on: a local one that is started and ended here, or a cluster that exists."""

import contextlib
import logging
import os
import signal
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_dist.cluster import temporary
from gnn_dist.cluster.launch import Workers
from gnn_dist.errors import InputError

_LONGEST_FOLDER = 40
"""Ray puts Unix sockets under its folder, and their paths may have 107 characters in all."""
_OBJECT_STORE = 100 << 20
"""Bytes of Ray's object store: it carries control only, graph data goes through memory maps."""

START = 60.0
"""Seconds that Ray has at least to start the workers."""
HEALTH = 30.0
"""Seconds that a worker must be silent at least before Ray gives it up."""

_DRIVER_ENVIRONMENT = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
}
"""Ray reads these when it is imported or started; a variable that the user has set is kept."""

_LOCAL_ENVIRONMENT = {
    # A local Ray has no agent that collects metrics, and would say so every few seconds.
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_open_telemetry": "0",
    # Ray's own is 15: beside anything else that computes, a run would all but stand still.
    "RAY_worker_niceness": "0",
}


@dataclass
class Session:
    """A connected Ray."""

    folder: Path
    """Where Ray Train keeps the state of a run; every worker's host can reach it."""
    local: bool
    """Whether this Ray was started here, and ends with the run."""
    device: str
    cpus_wanted: float
    gpus_wanted: float
    pids: list[tuple[str, int]]
    """Host and process of each worker, for those who start them to fill in."""

    def wanted(self) -> str:
        return f"{self.cpus_wanted:g} CPUs" + (
            f" and {self.gpus_wanted:g} GPUs" if self.gpus_wanted else ""
        )

    def offered(self) -> str:
        import ray

        have = ray.cluster_resources()
        return f"{have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs"

    def lacks_resources(self) -> bool:
        import ray

        have = ray.cluster_resources()
        return have.get("CPU", 0) < self.cpus_wanted or have.get("GPU", 0) < self.gpus_wanted


@contextlib.contextmanager
def connect(workers: Workers) -> Iterator[Session]:
    """Connect to Ray for the time of the block, and leave nothing behind after it."""
    local = workers.address is None
    environment = {**_DRIVER_ENVIRONMENT, **(_LOCAL_ENVIRONMENT if local else {})}
    folder = make_folder()
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = f"{max(START, workers.timeout):g}"
    environment["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = f"{max(HEALTH, workers.timeout):g}"
    with (
        _removed(folder),
        _variables(environment, {temporary.MARK: str(folder)}),
        _quiet(),
        _terminable() as install,
    ):
        import ray

        if ray.is_initialized():
            raise InputError(
                "cluster.address: Ray runs in this process already; call ray.shutdown() first, or "
                "use cluster.workers 0"
            )
        pids: list[tuple[str, int]] = []
        try:
            if local:
                _start(ray, workers, folder)
            else:
                _join(ray, workers)
            install()
            _mute(ray)
            yield _session(ray, workers, folder, pids)
        finally:
            with uninterrupted():
                ray.shutdown()
                _end_workers(pids)


def _start(ray: Any, workers: Workers, folder: Path) -> None:
    ray.init(
        address="local",
        num_cpus=max(1, round(workers.count * workers.cpus)),
        object_store_memory=_OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder),
    )


def _join(ray: Any, workers: Workers) -> None:
    remedy = "start one with `ray start --head`, or leave the address out for a local Ray"
    given = workers.address or ""
    address = os.environ.get("RAY_ADDRESS", given) if given == "auto" else given
    if address != "auto":
        reason = _unreachable(address)
        if reason:
            raise InputError(
                f"cluster.address: there is no Ray at {address!r} ({reason}); {remedy}"
            )
    try:
        ray.init(address=given, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"cluster.address: there is no Ray at {address!r} ({_first(error)}); {remedy}"
        ) from error


def _unreachable(address: str) -> str:
    """Why nothing answers at ``host:port``; empty where something does.

    Ray itself would try for minutes, and then end the process.
    """
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        return "an address is auto or host:port, of a node that this machine is part of"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        return str(error)
    return ""


def _mute(ray: Any) -> None:
    """Keep what Ray's processes say from the terminal: a rank that died is explained by us.

    Ray prints it whatever ``log_to_driver`` says; this is the switch that its own debugger uses.
    """
    internals = ray._private.worker
    if hasattr(internals, "_worker_logs_enabled"):
        internals._worker_logs_enabled = False


def _session(ray: Any, workers: Workers, folder: Path, pids: list[tuple[str, int]]) -> Session:
    gpus = ray.cluster_resources().get("GPU", 0)
    if workers.device == "cuda" and gpus < workers.count and workers.address is None:
        raise InputError(
            f"cluster.device: cuda for {workers.count} workers needs as many GPUs, and there are "
            f"{gpus:g}; use fewer workers, or cpu"
        )
    use_gpu = workers.device == "cuda" or (workers.device == "auto" and gpus >= workers.count)
    return Session(
        folder=folder,
        local=workers.address is None,
        device="cuda" if use_gpu else "cpu",
        cpus_wanted=workers.count * workers.cpus,
        gpus_wanted=workers.count if use_gpu else 0,
        pids=pids,
    )


def make_folder() -> Path:
    """A new short folder; what runs left behind that were killed is removed on the way."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_FOLDER:
        parent = "/tmp"
    temporary.sweep(parent)
    return temporary.make_folder(parent=parent)


@contextlib.contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Remove the folder after the block, and end whatever of its session still runs.

    So are those of workers that were killed.
    """
    try:
        yield
    finally:
        with uninterrupted():
            temporary.remove(folder)
            temporary.sweep()


def _end_workers(pids: list[tuple[str, int]]) -> None:
    """End workers of this host that have outlived Ray (one that is stopped, say)."""
    for host, pid in pids:
        if host == os.uname().nodename and _is_ray_worker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_ray_worker(pid: int) -> bool:
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _variables(defaults: dict[str, str], always: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the time of the block; ``defaults`` where they are not set."""
    wanted = {k: v for k, v in defaults.items() if k not in os.environ} | always
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Ray says in this process from the terminal: its errors come as exceptions."""
    loggers = [logging.getLogger(name) for name in ("ray", "ray.train", "ray.tune", "ray.data")]
    levels = [x.level for x in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _terminable() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end the block as an exception, so that it can clean up.

    Ray's own handler prints a stack and aborts the process; the function that is given must be
    called once Ray has installed it.
    """
    previous = signal.getsignal(signal.SIGTERM)
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt  # the exception that Ray passes on as it is

    def install() -> None:
        with contextlib.suppress(ValueError):  # not the main thread: Ray has no handler either
            signal.signal(signal.SIGTERM, previous if callable(previous) else interrupt)

    try:
        yield install
    except KeyboardInterrupt:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    except SystemExit as ended:
        if ended.code != signal.SIGTERM:
            raise
        raise SystemExit(128 + signal.SIGTERM) from None  # by Ray's own handler, as it starts
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not stop the cleaning up."""
    try:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
