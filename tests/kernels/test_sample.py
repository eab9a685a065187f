from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import draws

from gnn_dist.kernels import sample

KEY = 0xC0FFEE1234567890
SURE = 1e-6  # a test of a true statement fails with this probability; seeds are fixed besides


def draw(lengths, fanout, key=KEY, ids=None, rows=None, replace=False, dtype=np.int32):
    """Positions within their rows, one list a row, of a matrix whose rows have these lengths."""
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    indices = (np.arange(indptr[-1]) * 7 + 3).astype(dtype)
    rows = np.arange(len(lengths)) if rows is None else np.asarray(rows, np.int64)
    ids = rows if ids is None else np.asarray(ids, np.int64)
    starts, counts, out = sample.extents(indptr, rows, fanout, replace)
    sources = np.full(out[-1], -1, dtype)
    positions = np.full(out[-1], -1, np.int64)
    if fanout == sample.ALL:
        sample.copy_rows(indices, starts, counts, out, sources, positions)
    else:
        arguments = (np.uint64(key), ids, starts, counts, out, fanout, replace)
        sample.fill(indices, *arguments, sources, positions)
        alone = np.full_like(sources, -1)
        sample.fill(indices, *arguments, alone, positions[:0])
        np.testing.assert_array_equal(alone, sources)
    np.testing.assert_array_equal(sources, indices[positions])
    return [
        (positions[a:b] - start).tolist()
        for a, b, start in zip(out[:-1], out[1:], starts, strict=True)
    ]


def many(length, fanout, trials, replace=False):
    """Draws of one row under ``trials`` different node ids."""
    return draw([length], fanout, rows=np.zeros(trials), ids=np.arange(trials), replace=replace)


def assert_frequencies(counts, probabilities, trials):
    """Chi-square goodness of fit; what has probability 0 must never be seen."""
    assert not set(counts) - {x for x, p in probabilities.items() if p > 0}
    seen = [counts.get(x, 0) for x, p in probabilities.items() if p > 0]
    expected = [p * trials for p in probabilities.values() if p > 0]
    assert min(expected) > 5
    assert stats.chisquare(seen, expected).pvalue > SURE


lengths_of_rows = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 70), st.sampled_from([63, 64, 65, 128, 700])),
    min_size=1,
    max_size=12,
)


@given(lengths_of_rows, st.sampled_from([-1, 1, 2, 3, 5, 10, 31, 32, 33, 64, 65, 200]),
       st.booleans(), st.integers(0, 2**64 - 1), st.sampled_from([np.int32, np.int64]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_rows_are_drawn_as_the_documents_say(lengths, fanout, replace, key, dtype):
    ids = [11 * r + 5 for r in range(len(lengths))]
    drawn = draw(lengths, fanout, key, ids, replace=replace, dtype=dtype)
    expected = [draws.row(key, v, n, fanout, replace) for v, n in zip(ids, lengths, strict=True)]
    assert drawn == expected


@given(lengths_of_rows, st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_no_edge_is_drawn_twice_without_replacement(lengths, fanout):
    for length, row in zip(lengths, draw(lengths, fanout), strict=True):
        assert len(row) == min(length, fanout)
        assert row == sorted(set(row))
        assert set(row) <= set(range(length))


@given(lengths_of_rows, st.integers(1, 40), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_row_depends_on_its_id_alone(lengths, fanout, replace, random):
    everything = draw(lengths, fanout, replace=replace)
    rows = [random.randrange(len(lengths)) for _ in range(2 * len(lengths))]
    assert draw(lengths, fanout, rows=rows, replace=replace) == [everything[r] for r in rows]


def test_every_subset_of_a_short_row_is_as_likely():
    trials = 30_000
    counts = Counter(tuple(row) for row in many(6, 3, trials))
    subsets = list(combinations(range(6), 3))
    assert_frequencies(counts, dict.fromkeys(subsets, 1 / len(subsets)), trials)


def test_every_pair_of_a_long_row_is_as_likely():
    trials = 60_000
    counts = Counter(tuple(row) for row in many(65, 2, trials))
    pairs = list(combinations(range(65), 2))
    assert_frequencies(counts, dict.fromkeys(pairs, 1 / len(pairs)), trials)


@pytest.mark.parametrize(("length", "fanout"), [(64, 5), (64, 63), (65, 5), (100, 40), (5000, 40)])
def test_every_edge_is_as_likely(length, fanout):
    # one edge of every draw, so that the counts are independent (a multinomial)
    trials = 20 * length
    rows = many(length, fanout, trials)
    pick = np.random.default_rng(0).integers(0, fanout, trials)
    counts = Counter(row[k] for row, k in zip(rows, pick, strict=True))
    assert_frequencies(counts, dict.fromkeys(range(length), 1 / length), trials)


@pytest.mark.parametrize(("length", "fanout"), [(7, 3), (64, 2), (65, 2), (300, 40)])
def test_each_draw_with_replacement_is_uniform(length, fanout):
    trials = 20_000
    rows = many(length, fanout, trials, replace=True)
    assert {len(row) for row in rows} == {fanout}
    counts = Counter(j for row in rows for j in row)
    assert_frequencies(counts, dict.fromkeys(range(length), 1 / length), trials * fanout)


def test_draws_with_replacement_are_independent():
    trials = 20_000
    counts = Counter(tuple(row) for row in many(4, 2, trials, replace=True))
    expected = {(a, b): (2 if a < b else 1) / 16 for a in range(4) for b in range(a, 4)}
    assert_frequencies(counts, expected, trials)


def test_keys_are_independent():
    first, second = draw([40] * 2000, 1, key=1), draw([40] * 2000, 1, key=2)
    same = sum(a == b for a, b in zip(first, second, strict=True))
    assert stats.binomtest(same, 2000, 1 / 40).pvalue > SURE


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_all_neighbours_are_the_rows_of_the_matrix(dtype):
    matrix = sp.random(50, 50, 0.1, "lil", random_state=1)
    matrix[7] = 0
    matrix = matrix.tocsr()
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(dtype)
    rows = np.array([7, 3, 49, 3, 0])
    starts, counts, out = sample.extents(indptr, rows, sample.ALL, False)
    sources, positions = np.empty(out[-1], dtype), np.empty(out[-1], np.int64)
    sample.copy_rows(indices, starts, counts, out, sources, positions)
    expected = matrix[rows]
    np.testing.assert_array_equal(out, expected.indptr)
    np.testing.assert_array_equal(sources, expected.indices)
    np.testing.assert_array_equal(matrix.data[positions], expected.data)


@pytest.mark.parametrize("fanout", [40, 1000, 60_000, 99_999, 100_000, 200_000])
@pytest.mark.parametrize("replace", [False, True])
def test_a_huge_row_and_a_huge_fanout(fanout, replace):
    (row,) = draw([100_000], fanout, replace=replace)
    assert len(row) == (fanout if replace else min(fanout, 100_000))
    assert row == sorted(row)
    assert min(row) >= 0
    assert max(row) < 100_000
    if not replace:
        assert len(set(row)) == len(row)
    # means of uniform draws: within 6 standard errors
    assert abs(np.mean(row) - 49_999.5) < 6 * 28_868 / len(row) ** 0.5


def test_a_huge_row_leaves_nothing_behind_for_the_next():
    lengths = [70_000, 66, 5000, 100]
    together = draw(lengths, 40)
    assert together == [draw(lengths, 40, rows=[r])[0] for r in range(4)]


def test_read_only_arrays_and_memory_maps(tmp_path):
    indptr = np.array([0, 3, 3, 90], np.int64)
    indices = np.arange(90, dtype=np.int32)
    np.save(tmp_path / "indptr.npy", indptr)
    np.save(tmp_path / "indices.npy", indices)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
    results = []
    for pointers, sources in ((indptr, indices), mapped):
        rows = np.array([2, 1, 0])
        frontier = sample.extents(pointers, rows, 2, False)
        out = np.empty(frontier[-1][-1], np.int32)
        sample.fill(sources, np.uint64(5), rows, *frontier, 2, False, out, np.empty(0, np.int64))
        results.append(out)
    np.testing.assert_array_equal(*results)


@given(st.lists(st.integers(-50, 50), max_size=200), st.integers(0, 5))
def test_sort_range_sorts_that_range_alone(values, first):
    out = np.array([99] * first + values + [-99], np.int64)
    sample.sort_range(out, first, len(values))
    assert out.tolist() == [99] * first + sorted(values) + [-99]
