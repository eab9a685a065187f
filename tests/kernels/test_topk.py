"""Selection against a sort, packed sums against dense ones and scipy, the grid against integers."""

import numpy as np
import pytest
import scipy.sparse as sp

from gnn_dist.kernels import grid, group_sparse, topk
from gnn_dist.kernels.lanes import EXPANSIONS

ONE = np.float32(1)


def _select(y, k, *, drop=0, key=1, ids=None, dtype=np.float32):
    n, d = y.shape
    values = np.zeros((n, k), dtype)
    mask = np.zeros((n, topk.mask_words(d)), np.uint32)
    topk.select(
        0, n, y.astype(dtype), 0, dtype(1e-5), np.ones(d, dtype), np.zeros(d, dtype), k,
        np.uint64(key), np.arange(n) if ids is None else ids, drop,
        dtype(1 / (1 - drop / 65536)), False, np.zeros((n, 2), dtype), values, mask,
    )  # fmt: skip
    out = np.full(n * d, 7, dtype)
    topk.unpack(0, n, values, mask, out, d, 0, d)
    return values, mask, out.reshape(n, d)


def _largest(y, k):
    """The k largest of each row, of equal ones the lowest columns."""
    out = np.zeros_like(y)
    for row, into in zip(y, out, strict=True):
        kept = sorted(range(row.size), key=lambda c: (-row[c], c))[:k]
        into[kept] = row[kept]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 3, 8, 20, 32, 33, 64, 70, 96])
def test_exactly_the_k_largest_are_kept_at_every_width(d, dtype):
    rng = np.random.default_rng(d)
    y = rng.standard_normal((40, d)).astype(dtype)
    y[10:20] = np.round(y[10:20])  # ties
    y[20] = 3
    y[21] = 0
    y[22, ::2] = np.finfo(dtype).max
    y[23] *= 1e-30
    y[24] = 1 + rng.integers(0, 4, d) * np.finfo(dtype).eps  # neighbours among the floats
    for k in sorted({1, max(1, d // 4), d - 1 or 1, d}):
        values, mask, full = _select(y, k, dtype=dtype)
        np.testing.assert_array_equal(full, _largest(y, k))
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little").reshape(40, -1)
        np.testing.assert_array_equal(bits.sum(1), k)
        assert values.shape == (40, k)


def test_what_is_not_a_number_is_kept():
    y = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    y[0, 5] = np.nan
    y[1] = np.nan
    y[2, 3:20] = np.nan
    _, _, full = _select(y, 8)
    assert np.isnan(full[:3]).any(1).all()
    assert not np.isnan(full[3]).any()


def test_dropout_drops_at_its_rate_by_node_and_column():
    y = np.ones((4000, 32), np.float32)
    _, mask, full = _select(y, 32, drop=round(0.25 * 65536))
    assert abs((full == 0).mean() - 0.25) < 0.01
    np.testing.assert_allclose(full[full != 0], 4 / 3, rtol=1e-6)
    columns = (full == 0).mean(0)
    assert columns.min() > 0.21
    assert columns.max() < 0.29
    _, turned, _ = _select(y, 32, drop=round(0.25 * 65536), ids=np.arange(4000)[::-1].copy())
    np.testing.assert_array_equal(mask, turned[::-1])


def _graph(n, e, seed=0):
    rng = np.random.default_rng(seed)
    dst = np.sort(rng.integers(0, n - 1, e))
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=n), out=indptr[1:])
    weight = rng.standard_normal(e)
    return indptr, rng.integers(0, n, e).astype(np.int32), weight, rng.standard_normal(n)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 5, 8, 24, 32, 40, 64, 96, 130, 160])
def test_sums_equal_scipy_at_every_width(d, dtype):
    n = 50
    indptr, indices, weight, own = _graph(n, 300)
    own[::3] = 0
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, d + 3)).astype(dtype)
    start = rng.standard_normal((n, d)).astype(dtype)
    matrix = sp.csr_matrix((weight, indices, indptr), (n, n)) + sp.diags(own)
    for begin in (False, True):
        out = np.full((n, d + 2), 5, dtype)
        group_sparse.aggregate(
            0, n, indptr, indices, weight.astype(dtype), own.astype(dtype),
            x.reshape(-1), d + 3, 2, start.reshape(-1), d, 0, begin, out.reshape(-1), d + 2, 1, d,
        )  # fmt: skip
        wanted = matrix @ x[:, 2 : d + 2] + (start if begin else 0)
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(out[:, 1 : d + 1], wanted, rtol=tolerance, atol=tolerance)
        assert (out[:, 0] == 5).all()
        assert (out[:, d + 1] == 5).all()


@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_packed_rows_give_the_bits_of_dense_rows(d):
    n, k = 60, d // 4
    indptr, indices, weight, own = _graph(n, 500)
    own[::2] = 0
    weight, own = weight.astype(np.float32), own.astype(np.float32)
    y = np.random.default_rng(2).standard_normal((n, d)).astype(np.float32)
    values, mask, full = _select(y, k, drop=9000)
    padded = np.append(values.reshape(-1), np.full(group_sparse.PADDING, 9, np.float32))
    dense, packed, slow = (np.zeros(n * d, np.float32) for _ in range(3))
    rows = (0, n, indptr, indices, weight, own)
    flat = full.reshape(-1)
    group_sparse.aggregate(*rows, flat, d, 0, flat, d, 0, False, dense, d, 0, d)
    group_sparse.aggregate_packed(*rows, padded, mask, packed, d, 0, d, EXPANSIONS)
    group_sparse.aggregate_packed_any(*rows, padded, mask, slow, d, 0, d)
    np.testing.assert_array_equal(dense, packed)
    np.testing.assert_allclose(slow, dense, rtol=1e-4, atol=1e-5)


def test_the_grid_adds_and_takes_back_exactly_and_rounds_half_to_even():
    rng = np.random.default_rng(0)
    scale, back = np.float32(65536), np.float32(1 / 65536)
    x = (rng.integers(-(2**22), 2**22, (30, 9)) / 65536).astype(np.float32)
    before = x.copy()
    f = rng.standard_normal((30, 9)).astype(np.float32) * 30
    bias = rng.standard_normal(9).astype(np.float32)
    outside = np.zeros(30, np.int32)
    limit = np.float32(grid.bound(np.float32, 16))
    grid.add(0, 30, x, f, bias, scale, back, ONE, limit, outside)
    exact = np.round((f + bias).astype(np.float64) * 65536) + before.astype(np.float64) * 65536
    np.testing.assert_array_equal(x.astype(np.float64) * 65536, exact)
    grid.add(0, 30, x, f, bias, scale, back, -ONE, limit, outside)
    np.testing.assert_array_equal(x, before)
    assert not outside.any()
    x[4, 2] = limit - 1
    f[4, 2], bias[2] = 1, 0
    x[6, 1] = np.nan
    grid.add(0, 30, x, f, bias, scale, back, ONE, limit, outside)
    assert np.flatnonzero(outside).tolist() == [4, 6]
