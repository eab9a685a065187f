"""Windows and their batches."""

import numpy as np
import pytest

from gnn_dist.dynamic import WindowBatch, Windows, segments
from gnn_dist.errors import InputError


def test_windows_of_a_step_share_their_snapshots() -> None:
    batch = WindowBatch(0, 0, (4, 5, 6), 3)
    assert batch.snapshots == (4, 5, 6, 7, 8)
    np.testing.assert_array_equal(batch.slots, [[0, 1, 2], [1, 2, 3], [2, 3, 4]])
    assert batch.targets == (6, 7, 8)
    apart = WindowBatch(0, 0, (0, 5), 2)
    assert apart.snapshots == (0, 1, 5, 6)
    np.testing.assert_array_equal(apart.slots, [[0, 2], [1, 3]])
    assert apart.only([1]).starts == (5,)


def test_every_window_is_in_one_batch_of_every_epoch() -> None:
    windows = Windows(30, 8)
    orders = []
    for epoch in range(3):
        batches = list(windows.batches(np.arange(len(windows)), 5, epoch=epoch, seed=1))
        assert sorted(s for b in batches for s in b.starts) == list(range(23))
        orders.append([b.index for b in batches])
    assert orders[0] != orders[1] or orders[1] != orders[2]
    again = windows.batches(np.arange(len(windows)), 5, epoch=1, seed=1)
    assert [b.index for b in again] == orders[1]


def test_a_window_belongs_to_the_split_of_its_last_snapshot() -> None:
    windows = Windows(20, 4)
    split = windows.split(0.5, 0.25)
    last = windows.starts + 3
    assert (last[split["train"]] < 10).all()
    assert ((last[split["val"]] >= 10) & (last[split["val"]] < 15)).all()
    assert (last[split["test"]] >= 15).all()
    assert sum(len(part) for part in split.values()) == len(windows)


def test_segments_cover_the_sequence_once() -> None:
    found = list(segments(10, 4))
    assert [(b.starts, b.length) for b in found] == [((0,), 4), ((4,), 4), ((8,), 2)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Windows(5, 6), "does not fit into 5 snapshots"),
        (lambda: Windows(5, 0), "length 0"),
        (lambda: Windows(5, 2).split(0.0), "fractions"),
        (lambda: Windows(10, 5).split(0.3), "hold no window of 5"),
        (lambda: list(Windows(5, 2).batches(np.arange(4), 0)), "at least 1"),
    ],
)
def test_bad_windows_are_named(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
