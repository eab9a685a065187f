import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.features.pool import RowPool, find, minus, next_use, union
from gnn_dist.kernels import cache as kernels

id_sets = st.sets(st.integers(0, 60), max_size=40)


def array(ids) -> np.ndarray:
    return np.array(sorted(ids), np.int64)


@settings(max_examples=100, deadline=None)
@given(a=id_sets, b=id_sets, more=st.lists(id_sets, max_size=4))
def test_sorted_sets_are_sets(a, b, more):
    assert minus(array(a), array(b)).tolist() == sorted(a - b)
    assert union(*map(array, [a, b, *more])).tolist() == sorted(a.union(b, *more))
    place = find(array(a), array(b))
    for value, at in zip(sorted(a), place, strict=True):
        assert (at >= 0) == (value in b)
        assert at < 0 or sorted(b)[at] == value
    use = next_use(array(a), [array(x) for x in more])
    for value, first in zip(sorted(a), use, strict=True):
        assert first == next((i for i, x in enumerate(more) if value in x), len(more))


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(0, 40) | st.integers(0, 1 << 45), max_size=80),
    low=st.sampled_from([0, 1 << 40]),
)
def test_distinct_ids_are_those_of_numpy(ids, low):
    given_ids = np.array(ids, np.int64) + low
    found, place = kernels.distinct(given_ids)
    expected, inverse = np.unique(given_ids, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(place, inverse)


def test_a_few_ids_are_found_among_many():
    among = np.arange(0, 3000, 3)
    assert find(np.array([0, 1, 2997, 3000]), among).tolist() == [0, -1, 999, -1]


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(id_sets, id_sets), max_size=6))
def test_the_pool_holds_what_it_is_told_with_the_right_rows(steps):
    pool = RowPool(np.dtype(np.float32), (3,))
    held: set[int] = set()
    most = 0
    for come, keep in steps:
        keep = keep & (held | come)
        new = array(come)
        pool.hold(array(keep), new, np.repeat(new[:, None], 3, 1).astype(np.float32))
        held = keep
        most = max(most, len(held))
        assert pool.ids.tolist() == sorted(held)
        assert len(pool) == len(held)
        slots = pool.find(np.arange(61))
        assert (slots >= 0).tolist() == [v in held for v in range(61)]
        for value in held:
            assert (pool.table[slots[value]] == value).all()
        assert len(pool.table) == most


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.int16, np.bool_]),
    shape=st.sampled_from([(), (1,), (7,), (8,), (35,), (100,), (2, 3), (0,)]),
    index=st.lists(st.integers(0, 19), max_size=30),
)
def test_rows_are_placed_as_numpy_places_them(dtype, shape, index):
    rng = np.random.default_rng(0)
    table = (rng.standard_normal((20, *shape)) * 5).astype(dtype)
    index = np.array(index, np.int64)
    position = rng.permutation(40)[: index.size]
    out = np.zeros((40, *shape), np.float32 if dtype == np.float16 else dtype)
    expected = out.copy()
    expected[position] = table[index]
    kernels.place(table, index, out, position)
    np.testing.assert_array_equal(out, expected)
