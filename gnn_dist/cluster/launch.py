"""Running a worker function on every rank: in this process, or under Ray Train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from gnn_dist.cluster.context import Terminal, Voices, WorkerContext
from gnn_dist.cluster.memory import out_of_memory
from gnn_dist.cluster.tuning import allocator_environment, tune_allocator
from gnn_dist.cluster.world import TIMEOUT, World
from gnn_dist.errors import InputError

P = TypeVar("P")
T = TypeVar("T")

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Workers:
    """How many workers there are, where they run and how they are set up."""

    count: int = 0
    """Ray workers, one rank each; 0 runs one rank in this process without Ray."""
    address: str | None = None
    """A Ray cluster's address, or ``auto`` to find one; None starts a local Ray."""
    threads: int = 1
    """Compute threads of a rank."""
    device: Device = "auto"
    timeout: float = TIMEOUT
    """Seconds after which a rank that does not answer is an error."""
    max_failures: int = 0
    """How often the group of workers is restarted after a rank was lost."""
    tune_allocator: bool = True
    """Keep freed memory in the process instead of returning it to the kernel."""
    huge_pages: bool = False
    """Transparent huge pages for large blocks; only for workers that Ray starts."""
    cpus: float = 1.0
    """Ray's logical CPUs that a worker reserves."""
    network_interface: str | None = None
    """The interface that collectives use, where a host has several (``eth0``)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the workers that Ray starts."""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(f"cluster.workers: {self.count} is below 0; give 0 (no Ray) or more")
        if self.threads < 1:
            raise InputError(f"cluster.threads: {self.threads} is below 1; give at least 1")
        if self.timeout <= 0:
            raise InputError(
                f"cluster.timeout: {self.timeout:g} s is not a positive time; give seconds above 0"
            )
        if self.max_failures < 0:
            raise InputError(
                f"cluster.max_failures: {self.max_failures} is below 0; give 0 or more"
            )
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError(f"cluster.device: there is no {self.device!r}; use auto, cpu or cuda")

    def worker_environment(self) -> dict[str, str]:
        """The environment that Ray gives to a worker process."""
        out = {
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            # A collective that hangs on a GPU must raise here, not end the process from a thread.
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        }
        if self.network_interface is not None:
            out["GLOO_SOCKET_IFNAME"] = self.network_interface
            out["NCCL_SOCKET_IFNAME"] = self.network_interface
        out.update(
            allocator_environment(keep_freed=self.tune_allocator, huge_pages=self.huge_pages)
        )
        out.update(self.environment)
        return out


def launch(
    worker: Callable[[WorkerContext, P], T],
    payload: P,
    workers: Workers,
    *,
    show: Callable[[str], None] | None = None,
    keep: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> T:
    """Call ``worker(context, payload)`` on every rank; what rank 0 returns.

    With ``workers.count`` 0 it is called here, and Ray is not imported. Otherwise Ray Train starts
    one process a rank; ``worker`` and ``payload`` are pickled, and rank 0's answer is pickled back.

    ``show``, ``keep`` and ``warn`` receive what rank 0 tells people, and ``warn`` that workers are
    waited for or were restarted (default: the terminal).

    An exception of a worker is raised here as itself, with the worker's traceback as its cause,
    and is final. A rank that is killed or stops answering restarts the whole group, at most
    ``workers.max_failures`` times; after that it is a ``WorkerError`` that names the rank. A
    ``KeyboardInterrupt`` ends all workers and is raised again.
    """
    terminal = Terminal()
    say = Voices(show or terminal.show, keep or terminal.keep, warn or terminal.keep)
    try:
        if workers.count == 0:
            return _run_here(worker, payload, workers, say)
        from gnn_dist.cluster.ray_run import run

        answer: Any = run(worker, payload, workers, say)
        return answer
    finally:
        terminal.clear()


def _run_here(
    worker: Callable[[WorkerContext, P], T],
    payload: P,
    workers: Workers,
    say: Voices,
) -> T:
    try:
        context = WorkerContext(_here(workers), show=say.show, keep=say.keep, warn=say.warn)
        return worker(context, payload)
    except Exception as error:
        lacking = out_of_memory(error, rank=0)
        if lacking is None:
            raise
        raise lacking from error


def prepare_process(threads: int, tune: bool) -> None:
    """Set up the process of a rank before it computes."""
    torch.set_num_threads(threads)
    if tune:
        tune_allocator()


def _here(workers: Workers) -> World:
    prepare_process(workers.threads, workers.tune_allocator)
    available = torch.cuda.is_available()
    if workers.device == "cuda" and not available:
        raise InputError("cluster.device: cuda is not available here; use cpu or auto")
    device = "cuda" if available and workers.device != "cpu" else "cpu"
    return World.local(device, workers.timeout)
