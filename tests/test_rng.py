import numba
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gnn_dist import rng

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """SplitMix64's finaliser, as published."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_draws_are_splitmix64():
    # The first outputs of SplitMix64 from seed 1234567 (Vigna's reference program).
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    bits = [int(_draw(np.uint64(1234567), k)) for k in range(3)]
    assert bits == published


@numba.njit
def _draw(state, counter):
    return rng.draw(state, counter)


@numba.njit
def _unit_and_below(bits, n):
    return rng.unit(bits), rng.below(bits, n)


@given(st.integers(0, MASK), st.integers(0, 1 << 40), st.integers(0, 100))
def test_kernels_python_and_torch_draw_the_same_bits(key, node, counter):
    golden = 0x9E3779B97F4A7C15
    state = mix(key ^ mix((node + golden) & MASK))
    expected = mix((state + golden * (counter + 1)) & MASK)
    assert int(rng.node_draws(key, np.array([node]), counter)[0]) == expected
    found = rng.draw_torch(rng.node_state_torch(key, torch.tensor([node])), counter)
    assert int(found[0]) & MASK == expected
    tensor_counter = rng.draw_torch(
        rng.node_state_torch(key, torch.tensor([node])), torch.tensor([counter])
    )
    assert int(tensor_counter[0]) & MASK == expected
    unit = float(rng.unit_torch(found)[0])
    assert unit == (expected >> 11) * 2.0**-53
    assert _unit_and_below(np.uint64(expected), 1000) == (unit, int(unit * 1000))


def test_keys_of_different_words_and_orders_differ():
    words = [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (2,), (-1,), ()]
    assert len({rng.fold(*w) for w in words}) == len(words)


def test_neighbouring_keys_nodes_and_counters_are_independent_and_uniform():
    nodes = np.arange(20000)
    draws = np.stack(
        [rng.node_draws(rng.fold(7, epoch), nodes, k) for epoch in range(2) for k in range(2)]
    )
    unit = (draws >> np.uint64(11)) * 2.0**-53
    for row in unit:
        assert stats.kstest(row, "uniform").pvalue > 1e-3
    correlation = np.corrcoef(np.concatenate([unit, np.roll(unit, 1, axis=1)]))
    off = correlation[~np.eye(len(correlation), dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(nodes.size)


@given(st.sets(st.integers(0, 10**9), max_size=50), st.integers(0, 9))
def test_a_permutation_depends_on_the_set_of_ids_alone(ids, key):
    ascending = np.array(sorted(ids), np.int64)
    shuffled = np.random.default_rng(0).permutation(ascending)
    one = ascending[rng.permutation(key, ascending)]
    other = shuffled[rng.permutation(key, shuffled)]
    assert one.tolist() == other.tolist()
    assert sorted(one) == sorted(ids)


def test_every_order_is_equally_likely():
    counts: dict[tuple, int] = {}
    for key in range(2400):
        order = tuple(rng.permutation(rng.fold(key), np.array([10, 20, 30])).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
