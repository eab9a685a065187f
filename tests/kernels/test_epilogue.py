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
            epilogue.add_bias(2, 5, x.reshape(-1), bias, rectify)
            np.testing.assert_array_equal(x, expected)


def test_nan_passes_a_relu() -> None:
    x = np.full(9, np.nan, np.float32)
    epilogue.add_bias(0, 1, x, np.zeros(9, np.float32), True)
    assert np.isnan(x).all()


def test_masked_rows_and_column_totals() -> None:
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        grad, active = rng.standard_normal((2, 6, width))
        out = np.empty((3, width))
        epilogue.masked(2, 5, grad.reshape(-1), active.reshape(-1), 2.0, width, out.reshape(-1), 2)
        np.testing.assert_array_equal(out, (2 * grad * (active > 0))[2:5])
        total = np.empty(width)
        epilogue.column_total(grad.reshape(-1), 4, total)
        np.testing.assert_allclose(total, grad[:4].sum(0), rtol=1e-12)
