from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import draws

from gnn_dist.kernels import sample_weighted as kernels

SURE = 1e-6


def draw(rows_of_weights, fanout, key=3, ids=None, replace=False, dtype=np.float64):
    """Positions within their rows, one list a row."""
    indptr = np.cumsum([0, *map(len, rows_of_weights)]).astype(np.int64)
    weights = np.array([w for row in rows_of_weights for w in row], dtype)
    rows = np.arange(len(rows_of_weights))
    ids = rows if ids is None else np.asarray(ids, np.int64)
    starts, lengths, out, bad = kernels.weighted_extents(indptr, weights, rows, fanout, replace)
    assert bad == -1
    positions = np.full(out[-1], -1, np.int64)
    kernels.weighted_positions(
        weights, np.uint64(key), ids, starts, lengths, out, replace, positions
    )
    return [
        (positions[a:b] - start).tolist()
        for a, b, start in zip(out[:-1], out[1:], starts, strict=True)
    ]


def many(weights, fanout, trials, replace=False):
    return draw([weights] * trials, fanout, replace=replace)


weight = st.one_of(st.just(0.0), st.sampled_from([1e-3, 0.5, 1.0, 7.25, 1e6]))
rows_of_weights = st.lists(st.lists(weight, max_size=40), min_size=1, max_size=6)


@given(rows_of_weights, st.sampled_from([1, 2, 5, 33]), st.booleans(), st.integers(0, 2**64 - 1),
       st.sampled_from([np.float32, np.float64]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_rows_are_drawn_as_the_documents_say(rows, fanout, replace, key, dtype):
    rows = [np.array(row, dtype).astype(float).tolist() for row in rows]
    ids = [5 * r + 1 for r in range(len(rows))]
    drawn = draw(rows, fanout, key, ids, replace, dtype)
    assert drawn == [
        draws.weighted_row(key, v, row, fanout, replace) for v, row in zip(ids, rows, strict=True)
    ]


@given(rows_of_weights, st.integers(1, 50), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_edge_of_weight_zero_is_never_drawn(rows, fanout, replace):
    for weights, drawn in zip(rows, draw(rows, fanout, replace=replace), strict=True):
        possible = [j for j, w in enumerate(weights) if w > 0]
        assert set(drawn) <= set(possible)
        assert drawn == sorted(drawn)
        if replace:
            assert len(drawn) == (fanout if possible else 0)
        else:
            assert len(set(drawn)) == len(drawn) == min(fanout, len(possible))


@pytest.mark.parametrize("fanout", [1, 2, 3])
def test_subsets_have_their_exact_probability(fanout):
    weights, trials = [1.0, 0.0, 4.0, 2.5, 0.5], 40_000
    counts = Counter(tuple(row) for row in many(weights, fanout, trials))
    expected = {
        subset: draws.subset_probability(weights, subset)
        for subset in combinations([0, 2, 3, 4], fanout)
    }
    assert sum(expected.values()) == pytest.approx(1)
    assert set(counts) <= set(expected)
    seen = [counts[s] for s in expected]
    assert stats.chisquare(seen, [p * trials for p in expected.values()]).pvalue > SURE


def test_draws_with_replacement_have_their_exact_probability():
    weights, trials = np.array([1.0, 0.0, 4.0, 2.5, 0.5]), 20_000
    counts = Counter(tuple(row) for row in many(weights.tolist(), 2, trials, replace=True))
    p = weights / weights.sum()
    expected = {(a, b): p[a] * p[b] * (2 if a < b else 1) for a in range(5) for b in range(a, 5)}
    assert set(counts) <= {pair for pair, q in expected.items() if q > 0}
    seen = [counts[pair] for pair, q in expected.items() if q > 0]
    wanted = [q * trials for q in expected.values() if q > 0]
    assert stats.chisquare(seen, wanted).pvalue > SURE


def test_equal_weights_draw_uniformly_from_a_long_row():
    trials, length = 4000, 200
    rows = many([0.25] * length, 1, trials)
    counts = Counter(row[0] for row in rows)
    seen = [counts[j] for j in range(length)]
    assert stats.chisquare(seen).pvalue > SURE


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_negative_weight_is_reported(bad, dtype):
    weights = np.array([1, 1, bad, 1], dtype)
    indptr, rows = np.array([0, 1, 4], np.int64), np.arange(2)
    assert kernels.weighted_extents(indptr, weights, rows, 2, False)[3] == 2
    assert kernels.weighted_extents(indptr, weights, rows[:1], 2, False)[3] == -1
