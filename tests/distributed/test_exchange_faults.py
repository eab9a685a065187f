"""What the other ranks say, and how soon, when one stops, dies, fails or does not come."""

import contextlib
import json
import os
import signal
import threading
import time

import pytest
import torch
from support.ranks import Outcome, run_ranks, try_ranks

from gnn_dist.cluster import SharedExchange, World
from gnn_dist.cluster.watch import Watch
from gnn_dist.errors import WorkerError

LIMIT = 2.0
SLACK = 6.0
"""Seconds over the limit that a loaded machine may take to notice."""


def step(world: World) -> None:
    """A collective that must end, well or badly, soon after its time limit."""
    start = time.monotonic()
    try:
        world.features.all_to_all([torch.ones(3)] * world.size)
    finally:
        assert time.monotonic() - start < world.timeout + SLACK


def stop_in_the_middle(world: World, who: int, sign: int) -> None:
    for i in range(5):
        step(world)
        if i == 2 and world.rank == who:
            os.kill(os.getpid(), sign)


def failures(outcomes: list[Outcome], who: int) -> list[str]:
    texts = []
    for rank, outcome in enumerate(outcomes):
        if rank != who:
            assert isinstance(outcome.error, WorkerError), outcome
            texts.append(str(outcome.error))
    return texts


@pytest.mark.parametrize("who", [0, 1])
def test_a_stopped_rank_is_named_within_the_time_limit(who):
    outcomes = try_ranks(stop_in_the_middle, 3, (who, signal.SIGSTOP), 60, LIMIT, 1)
    for text in failures(outcomes, who):
        assert f"rank {who} " in text
        assert "process is stopped" in text
        assert "time limit 2 s" in text


@pytest.mark.parametrize("who", [0, 2])
def test_a_killed_rank_is_named_at_once(who):
    outcomes = try_ranks(stop_in_the_middle, 3, (who, signal.SIGKILL), 40, 20)
    assert outcomes[who].exit_code == -signal.SIGKILL
    for text in failures(outcomes, who):
        assert f"rank {who} " in text
        assert "was killed, probably out of memory; its peak was " in text


def end_in_a_meeting(world: World, sign: int | None) -> None:
    """Rank 1 does not come, or late; rank 0 is told, and takes no rows of an earlier meeting."""
    shared = SharedExchange(world.exchange("rows"), [0] * world.size)
    parts = [torch.ones(3)] * world.size
    shared.all_to_all(parts)
    if world.rank == 1 and sign is None:
        time.sleep(2 * world.timeout)
        with contextlib.suppress(WorkerError):
            shared.all_to_all(parts)
        return
    if world.rank == 1:
        os.kill(os.getpid(), sign)
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        shared.all_to_all(parts)
    assert time.monotonic() - start < world.timeout + SLACK
    if sign is None:
        time.sleep(2 * world.timeout)
        with pytest.raises(WorkerError):
            shared.all_to_all(parts)
    raise caught.value


@pytest.mark.parametrize(
    ("sign", "limit", "says"),
    [
        (signal.SIGKILL, 20, "was killed, probably out of memory"),
        (signal.SIGSTOP, LIMIT, "process is stopped"),
        (None, LIMIT, "is alive but did not come: it has entered"),
    ],
)
def test_who_does_not_come_to_a_meeting_of_one_host_is_named(sign, limit, says):
    outcomes = try_ranks(end_in_a_meeting, 2, (sign,), 60, limit, 1)
    (text,) = failures(outcomes, 1)
    assert "rank 1 " in text
    assert says in text
    assert "rows: meeting number" in text


def raise_in_the_middle(world: World) -> None:
    step(world)
    if world.rank == 1:
        raise KeyError("the lost key")
    for _ in range(100):
        step(world)


def test_a_rank_that_raises_is_named_with_its_own_error():
    outcomes = try_ranks(raise_in_the_middle, 3, timeout=40, limit=20)
    assert isinstance(outcomes[1].error, KeyError)
    for text in failures(outcomes, 1):
        assert "rank 1 " in text
        assert "the lost key" in text
    with pytest.raises(KeyError, match="the lost key"):
        run_ranks(raise_in_the_middle, 3, timeout=40, limit=20)


def go_another_way(world: World) -> None:
    """Rank 1 waits for gradients while the others wait for features: a deadlock."""
    step(world)
    if world.rank == 1:
        world.gradients.all_reduce_sum(torch.ones(1))
    else:
        step(world)


def test_a_deadlock_names_the_rank_that_went_another_way():
    outcomes = try_ranks(go_another_way, 2, (), 60, LIMIT)
    assert "rank 1 " in str(outcomes[0].error)
    assert "in gradients all_reduce number 1" in str(outcomes[0].error)
    assert isinstance(outcomes[1].error, WorkerError)


def come_late(world: World) -> None:
    step(world)
    if world.rank == 1:
        time.sleep(2 * LIMIT)
    step(world)


def test_a_rank_that_computes_too_long_is_told_apart_from_one_that_is_dead():
    outcomes = try_ranks(come_late, 2, (), 60, LIMIT)
    assert "is alive but did not come: it has entered 1 of features" in str(outcomes[0].error)
    assert "gave up" in str(outcomes[1].error) or "has already ended" in str(outcomes[1].error)


def fail_twice(world: World) -> list[str]:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    for _ in range(2):
        with pytest.raises(WorkerError) as caught:
            step(world)
        texts.append(str(caught.value))
    return texts


def test_an_exchange_that_failed_goes_on_naming_the_rank():
    texts = try_ranks(fail_twice, 2, timeout=40, limit=20)[0].value
    assert all("rank 1 " in text and "killed" in text for text in texts)


def die_while_a_thread_fetches(world: World) -> str:
    """The sampling thread meets the dead rank, while the main thread computes."""
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    caught = []

    def fetch() -> None:
        try:
            world.sampling.all_to_all([torch.ones(1)] * world.size)
        except WorkerError as error:
            caught.append(str(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    return caught[0]


def test_a_failure_on_another_thread_names_the_rank():
    assert "rank 1 " in try_ranks(die_while_a_thread_fetches, 2, timeout=40, limit=20)[0].value


def stage_once(world: World, folder: str, mode: str) -> str:
    placement = world.placement(4, mode)

    def work() -> str:
        time.sleep(1.5 * LIMIT)
        with open(f"{folder}/host{placement.host}", "x") as file:
            file.write(str(world.rank))
        return f"host {placement.host} by {world.rank}"

    return world.once_per_host("staging", work, placement)


def test_one_rank_of_each_host_stages_however_long_it_takes(tmp_path):
    shared, apart = tmp_path / "shared", tmp_path / "apart"
    shared.mkdir()
    apart.mkdir()
    answers = run_ranks(stage_once, 3, (str(shared), "auto"), limit=LIMIT)
    assert answers == ["host 0 by 0"] * 3
    answers = run_ranks(stage_once, 2, (str(apart), "per-rank"), limit=LIMIT)
    assert answers == ["host 0 by 0", "host 1 by 1"]


def stage_badly(world: World) -> None:
    def work() -> str:
        raise OSError("no space left")

    world.once_per_host("staging", work, world.placement(1))


def test_staging_that_fails_is_an_error_on_every_rank():
    first, second = try_ranks(stage_badly, 2, timeout=40, limit=20)
    assert isinstance(first.error, OSError)
    assert "rank 0 " in str(second.error)
    assert "no space left" in str(second.error)


def stage_and_die(world: World) -> None:
    world.once_per_host("staging", lambda: os.kill(os.getpid(), signal.SIGKILL), world.placement(1))


def test_a_rank_that_dies_while_staging_is_named():
    assert "rank 0 " in str(try_ranks(stage_and_die, 2, timeout=40, limit=20)[1].error)


def threads_left(world: World) -> list[str]:
    step(world)
    world.close()
    return [t.name for t in threading.enumerate() if t.name.startswith("gnn-dist")]


def test_closing_a_world_ends_its_thread():
    assert run_ranks(threads_left, 2) == [[], []]


class SlowStore:
    """A store whose answers take as long as a test wants."""

    def __init__(self) -> None:
        self.records: dict[str, str] = {}
        self.asked = threading.Event()
        self.answer = threading.Event()

    def set(self, key: str, text: str) -> None:
        self.records[key] = text

    def multi_get(self, keys: list[str]) -> list[str]:
        self.asked.set()
        assert self.answer.wait(20)
        return ["{}" for _ in keys]


def test_the_last_words_of_a_rank_are_published_before_it_ends():
    store = SlowStore()
    watch = Watch(store, 1, 2, "host", 1.0)
    watch.start()
    assert store.asked.wait(20)  # it has published that it runs, and reads what others say
    watch.tell_failure(MemoryError("no memory"))
    threading.Timer(0.05, store.answer.set).start()
    watch.close()
    record = json.loads(store.records["watch/1"])
    assert (record["state"], record["why"]) == ("failed", "MemoryError: no memory")


def run_out_of_memory(world: World) -> None:
    """What the others send does not fit: an error of this rank, not of the network."""
    if world.rank == 1:
        empty = torch.empty
        torch.empty = lambda shape, **how: empty((1 << 60,)) if len(shape) > 1 else empty(shape)
    world.features.all_to_all([torch.ones(3, 2)] * world.size, receive=[3] * world.size)


def test_running_out_of_memory_is_told_as_that():
    first, second = try_ranks(run_out_of_memory, 2, timeout=40, limit=20)
    assert "allocate memory" in str(second.error)
    assert not isinstance(second.error, WorkerError)
    assert "rank 1 " in str(first.error)
    assert "allocate memory" in str(first.error)
