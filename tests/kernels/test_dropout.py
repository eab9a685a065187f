"""Keyed dropout against its definition, entry by entry."""

import numpy as np
import pytest

from gnn_dist import rng
from gnn_dist.kernels.dropout import keyed_dropout, threshold


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9, 23, 64, 85])
@pytest.mark.parametrize("p", [0.25, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_entry_follows_its_bits(width: int, p: float, dtype: str) -> None:
    ids = np.array([7, 0, 123456789])
    x = np.random.default_rng(0).standard_normal((3, width)).astype(dtype)
    out = keyed_dropout(x, ids, 99, p)
    for row, node in enumerate(ids):
        for column in range(width):
            bits = int(rng.node_draws(99, np.array([node]), column // 4)[0])
            lane = (bits >> 16 * (column % 4)) & 0xFFFF
            expected = x[row, column] / (1 - p) if lane >= p * 65536 else 0
            assert out[row, column] == pytest.approx(expected, rel=1e-6)


def test_probabilities_are_realised_in_steps_of_a_65536th() -> None:
    assert [threshold(p) for p in (0.0, 0.5, 1 - 1e-9, 0.1)] == [0, 32768, 65535, 6554]


def test_in_place() -> None:
    x = np.ones((5, 6), np.float32)
    expected = keyed_dropout(x, np.arange(5), 1, 0.5)
    assert keyed_dropout(x, np.arange(5), 1, 0.5, out=x) is x
    np.testing.assert_array_equal(x, expected)
