"""Small products against NumPy: rests of rows and columns, rows apart, transposed, added to."""

import numba
import numpy as np
import pytest

from gnn_dist.kernels.product import product
from gnn_dist.kernels.vector import pointer


@numba.njit
def _run(m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh):
    product(m, n, k, pointer(a), at, row, step, pointer(b), bt, b_row, pointer(c), ct, c_row, fresh)


@pytest.mark.parametrize("m", [1, 6, 13])
@pytest.mark.parametrize("n", [1, 8, 16, 45])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_equal_numpys_and_touch_nothing_else(m, n, fresh, transposed, dtype) -> None:
    rng = np.random.default_rng(0)
    k = 7
    a, b, c = (
        rng.standard_normal(s).astype(dtype) for s in ((k, m + 2) if transposed else (m, k + 2),
                                                       (k, n + 3), (m, n + 4))
    )  # fmt: skip
    left = a[:, 1 : m + 1].T if transposed else a[:, 1 : k + 1]
    wanted = c.copy()
    wanted[:, 2 : n + 2] = left @ b[:, 1 : n + 1] + (0 if fresh else c[:, 2 : n + 2])
    row, step = (1, m + 2) if transposed else (k + 2, 1)
    _run(m, n, k, a, 1, row, step, b, 1, n + 3, c, 2, n + 4, fresh)
    np.testing.assert_allclose(c, wanted, rtol=1e-4 if dtype is np.float32 else 1e-12, atol=1e-5)
