"""Bias, ReLU and their gradients on ranges of rows, for every width."""

import numpy as np

from gnn_dist.kernels import epilogue

WIDTHS = [*range(1, 71), 100, 256]


def test_bias_is_added_once_to_every_column_of_the_rows_alone() -> None:
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        for rectify in (False, True):
            x, bias = rng.standard_normal((6, width)), rng.standard_normal(width)
            expected = x.copy()
            expected[2:5] += bias
            if rectify:
                expected[2:5] = np.maximum(expected[2:5], 0)
            packs = epilogue.packs(width, x.dtype)
            bits = np.zeros(x.size // 8 if packs else 0, np.uint8)
            epilogue.add_bias(2, 5, x.reshape(-1), bias, rectify, bits)
            np.testing.assert_array_equal(x, expected)
            if packs:
                marked = np.unpackbits(bits, bitorder="little").reshape(x.shape)
                np.testing.assert_array_equal(marked[2:5], x[2:5] > 0)
                assert not marked[:2].any()


def test_nan_passes_a_relu() -> None:
    x = np.full(9, np.nan, np.float32)
    epilogue.add_bias(0, 1, x, np.zeros(9, np.float32), True, np.zeros(0, np.uint8))
    assert np.isnan(x).all()


def test_masked_rows_and_their_total() -> None:
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        grad, x = rng.standard_normal((2, 6, width))
        expected = (2 * grad * (x > 0))[2:5]
        kept = [x.reshape(-1)]
        if epilogue.packs(width, x.dtype):
            kept.append(np.zeros(x.size // 8, np.uint8))
            epilogue.mark_active(0, 6, x.reshape(-1), width, kept[1])
        for active in kept:
            out, totals = np.empty((3, width)), np.ones(width)
            epilogue.masked(2, 5, grad.reshape(-1), active, 2.0, totals, out.reshape(-1), 2)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_allclose(totals, 1 + expected.sum(0), rtol=1e-12, atol=1e-12)
