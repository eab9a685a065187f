import threading
import time

import pytest

from gnn_dist.loading import Prefetcher


def slow_square(x: int) -> int:
    time.sleep(0.002 * (x % 3))
    return x * x


@pytest.mark.parametrize("depth", [0, 1, 8])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order(depth, threads):
    work = Prefetcher(slow_square, lambda x: x + 1, depth=depth, threads=threads)
    assert list(work(range(20))) == [x * x + 1 for x in range(20)]


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize("stage", [0, 1])
def test_an_error_arrives_as_itself_in_the_place_of_its_item(depth, stage):
    def fail(x):
        if x == 3:
            raise KeyError("the third")
        return x

    stages = [fail, lambda x: x] if stage == 0 else [lambda x: x, fail]
    results = Prefetcher(*stages, depth=depth)(range(9))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="the third"):
        next(results)


def test_no_more_than_depth_items_are_begun_ahead():
    begun = []
    results = Prefetcher(lambda x: begun.append(x) or x, lambda x: x, depth=3)(range(50))
    next(results)
    time.sleep(0.1)
    assert len(begun) <= 4


def test_waiting_results_are_bounded_in_bytes_but_one_always_passes():
    begun = []
    work = Prefetcher(
        lambda x: begun.append(x) or x, lambda x: x, depth=8, max_bytes=10, size=lambda x: 100
    )
    results = work(range(20))
    assert next(results) == 0
    time.sleep(0.1)
    assert len(begun) <= 2
    assert list(results) == list(range(1, 20))


def test_small_results_use_the_whole_depth():
    begun = []
    work = Prefetcher(
        lambda x: begun.append(x) or x, lambda x: x, depth=6, max_bytes=1000, size=lambda x: 100
    )
    results = work(range(20))
    assert next(results) == 0
    time.sleep(0.1)
    assert len(begun) >= 6


def test_no_thread_is_left_when_the_consumer_goes_away():
    before = threading.active_count()
    results = Prefetcher(slow_square, slow_square, depth=8)(range(1000))
    next(results)
    results.close()
    assert threading.active_count() == before


def test_stages_run_beside_the_consumer():
    caller = threading.get_ident()
    seen = set()
    work = Prefetcher(
        lambda x: seen.add(("first", threading.get_ident())) or x,
        lambda x: seen.add(("second", threading.get_ident())) or x,
        depth=2,
    )
    list(work(range(5)))
    assert all(thread != caller for _, thread in seen)
    assert len({thread for stage, thread in seen if stage == "second"}) == 1
