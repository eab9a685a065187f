import numpy as np
import pytest

from gnn_dist.errors import InputError
from gnn_dist.sampling import Relabeller


def test_numbering_is_right_after_the_epochs_ran_out():
    numbering = Relabeller(4)
    numbering._epochs = 3  # as if local ids left two bits for the epoch
    for turn in range(10):
        start = np.array([turn % 4])
        numbering.start(start)
        assert numbering.add(np.array([(turn + 1) % 4, turn % 4])).tolist() == [1, 0]
        assert numbering.nodes.tolist() == [turn % 4, (turn + 1) % 4]


def test_the_list_of_nodes_grows_and_keeps_what_it_has():
    numbering = Relabeller(300_000)
    order = np.random.default_rng(0).permutation(300_000)
    numbering.start(order[:10])
    for low in range(10, 300_000, 50_000):
        numbering.add(order[low : low + 50_000])
    np.testing.assert_array_equal(numbering.nodes, order)
    numbering.add(order)  # nothing new: no room is needed
    assert numbering.count == 300_000


def test_local_ids_are_int32_for_either_width_of_ids():
    for dtype in (np.int32, np.int64):
        numbering = Relabeller(9)
        numbering.start(np.array([8]))
        local = numbering.add(np.array([7, 8, 7], dtype))
        assert local.dtype == np.int32
        assert local.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 4, 4], r"seeds: node 4 is given twice \(again at entry 2\); give each node once"),
        ([1, 9], r"seeds: entry 1 is 9, a node that does not exist; ids run from 0 to 8"),
        ([-1], r"seeds: entry 0 is -1, a node that does not exist"),
    ],
)
def test_ids_that_cannot_be_numbered(ids, message):
    numbering = Relabeller(9)
    with pytest.raises(InputError, match=message):
        numbering.start(np.array(ids))
    numbering.start(np.array([4]))  # and the next batch is not disturbed
    assert numbering.add(np.array([1, 4])).tolist() == [1, 0]
