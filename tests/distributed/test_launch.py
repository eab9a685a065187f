"""Launching in this process. What Ray does is in ``test_launch_ray.py``."""

import subprocess
import sys

import pytest
import torch

from gnn_dist.cluster import LocalExchange, WorkerContext, Workers, launch
from gnn_dist.errors import InputError


def describe(context: WorkerContext, payload: str) -> tuple:
    context.report({"loss": 1.0})
    context.show("shown")
    context.keep("kept")
    world = context.world
    exchanges = [world.gradients, world.sampling, world.features, world.control]
    assert all(isinstance(x, LocalExchange) for x in exchanges)
    assert isinstance(world.exchange("more"), LocalExchange)
    return payload, context.rank, context.size, len(context.hosts), context.attempt, context.device


def test_no_worker_means_this_process():
    told: list[str] = []
    threads = torch.get_num_threads()
    try:
        answer = launch(
            describe,
            "payload",
            Workers(0, device="cpu", threads=2, tune_allocator=False),
            show=lambda text: told.append(f"show {text}"),
            keep=lambda text: told.append(f"keep {text}"),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert answer == ("payload", 0, 1, 1, 0, torch.device("cpu"))
    assert told == ["show shown", "keep kept"]


def test_ray_is_not_imported_without_workers():
    program = (
        "import sys\n"
        "from gnn_dist.cluster import Workers, launch\n"
        "assert launch(lambda context, x: x + context.size, 41, Workers(0)) == 42\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_an_exception_comes_out_as_itself():
    def fail(context: WorkerContext, payload: None) -> None:
        raise InputError("field x")

    with pytest.raises(InputError, match="field x"):
        launch(fail, None, Workers(0, tune_allocator=False))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": -1}, "cluster.workers: -1"),
        ({"threads": 0}, "cluster.threads: 0"),
        ({"timeout": 0}, "cluster.timeout: 0 s"),
        ({"max_failures": -1}, "cluster.max_failures: -1"),
        ({"device": "tpu"}, "use auto, cpu or cuda"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Workers(**settings)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="cuda is not available here"):
        launch(describe, "", Workers(0, device="cuda", tune_allocator=False))


def test_the_environment_of_a_worker():
    plain = Workers(2, threads=3).worker_environment()
    assert plain["OMP_NUM_THREADS"] == "3"
    assert "GLIBC_TUNABLES" not in plain
    assert "GLOO_SOCKET_IFNAME" not in plain
    more = Workers(
        2, huge_pages=True, network_interface="eth1", environment={"OMP_NUM_THREADS": "5"}
    ).worker_environment()
    assert more["THP_MEM_ALLOC_ENABLE"] == "1"
    assert more["GLOO_SOCKET_IFNAME"] == more["NCCL_SOCKET_IFNAME"] == "eth1"
    assert more["OMP_NUM_THREADS"] == "5"


def test_what_ray_says_of_a_lost_worker_is_put_in_words():
    from ray.exceptions import ActorDiedError, OutOfMemoryError

    from gnn_dist.cluster.ray_run import _death, _News

    class WorkerHealthCheckTimeoutError(Exception):
        pass

    class WorkerHealthCheckFailedError(Exception):
        def __init__(self, failure: Exception) -> None:
            super().__init__()
            self.health_check_failure = failure

    died = ActorDiedError()
    for error in (died, WorkerHealthCheckFailedError(died)):
        assert _death(error, 5) == "was killed, probably out of memory"
    assert _death(WorkerHealthCheckTimeoutError(), 120) == "has not answered for 120 s"
    full = _death(OutOfMemoryError("x"), 5)
    assert full == "was killed by Ray because its host ran out of memory"
    assert _death(ValueError("its own"), 5) is None
    news = _News(peaks={1: 345}, lost={2: "was lost with its host", 1: "was killed"})
    assert news.losses() == "rank 1 was killed (peak 345 MiB); rank 2 was lost with its host"
