"""Aggregation kernels against scipy, for every width and dtype."""

import re

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gnn_dist.kernels import epilogue, parallel, spmm
from gnn_dist.kernels.maximum import spmm_max
from gnn_dist.kernels.transpose import transpose

DTYPES = {"float32": 2e-5, "float64": 1e-12, "float16": 2e-5}
WIDTHS = [*range(1, 71), 100, 128, 129, 255, 256]


def csc(num_dst: int = 13, num_src: int = 17, edges: int = 60, seed: int = 0):
    """With empty rows, parallel edges and self-loops; the matrix counts parallel edges."""
    rng = np.random.default_rng(seed)
    dst = np.sort(rng.integers(0, num_dst - 2, edges))
    indptr = np.searchsorted(dst, np.arange(num_dst + 1)).astype(np.int64)
    indices = rng.integers(0, num_src, edges).astype(np.int32)
    matrix = sp.csr_matrix((np.ones(edges), indices, indptr), (num_dst, num_src))
    return indptr, indices, matrix


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_equals_scipy(dtype: str) -> None:
    rng = np.random.default_rng(1)
    indptr, indices, matrix = csc()
    degree = np.maximum(np.diff(indptr), 1)[:, None]
    coef = rng.standard_normal(indices.size)
    weighted = sp.csr_matrix((coef, indices, indptr), matrix.shape)
    index = rng.integers(0, 40, matrix.shape[1])
    close = {"rtol": DTYPES[dtype], "atol": 10 * DTYPES[dtype]}
    for width in WIDTHS:
        x = rng.standard_normal((17, width)).astype(dtype)
        exact = x.astype(np.float64)
        total = matrix @ exact
        np.testing.assert_allclose(spmm.spmm(indptr, indices, x), total, **close)
        np.testing.assert_allclose(
            spmm.spmm(indptr, indices, x, coef=coef, mean=True), weighted @ exact / degree, **close
        )
        np.testing.assert_allclose(
            spmm.self_mean(indptr, indices, x), np.hstack((exact[:13], total / degree)), **close
        )
        table = rng.standard_normal((40, width)).astype(dtype)
        exact = table.astype(np.float64)[index]
        np.testing.assert_allclose(
            spmm.self_mean(
                indptr, indices, table, addresses=table.ctypes.data + index * table.strides[0]
            ),
            np.hstack((exact[:13], matrix @ exact / degree)),
            **close,
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_width_of_the_gradients_equals_scipy(dtype: str) -> None:
    rng = np.random.default_rng(2)
    indptr, indices, matrix = csc()
    by_source = transpose(indptr, indices, 17)[:2]
    inverse = (1 / np.maximum(np.diff(indptr), 1)).astype(dtype)
    close = {"rtol": DTYPES[dtype], "atol": 20 * DTYPES[dtype]}
    rows = np.repeat(np.arange(13), np.diff(indptr))
    for width in WIDTHS:
        grad = rng.standard_normal((13, 2 * width)).astype(dtype)
        x = rng.standard_normal((17, width)).astype(dtype)
        exact = matrix.T @ (grad[:, width:] * inverse[:, None].astype(np.float64))
        exact[:13] += grad[:, :width]
        ours = spmm.self_mean_backward(by_source, inverse, grad)
        np.testing.assert_allclose(ours, exact, **close)
        args = spmm.self_mean_backward_args(by_source, inverse, grad)
        expected = (1.25 * exact * (x > 0))[7:12]
        kept = [x.reshape(-1)]
        if epilogue.packs(width, x.dtype):
            kept.append(np.zeros(x.size // 8, np.uint8))
            epilogue.mark_active(0, 17, x.reshape(-1), width, kept[1])
        for active in kept:
            rest = (active, x.dtype.type(1.25), totals := np.zeros(width, dtype))
            ours = np.empty((5, width), dtype)
            spmm.rectified_backward_rows(7, 12, *args, *rest, ours.reshape(-1), 7)
            np.testing.assert_allclose(ours, expected, **close)
            np.testing.assert_allclose(totals, expected.sum(0), **close)
        dots = (grad[rows, :width].astype(np.float64) * x[indices]).sum(1, keepdims=True)
        ours = spmm.edge_dot(indptr, indices, np.ascontiguousarray(grad[:, :width]), x)
        np.testing.assert_allclose(ours, dots, **close)


def test_bfloat16_is_read_from_its_bits() -> None:
    indptr, indices, matrix = csc()
    for width in (1, 5, 33, 70):
        x = torch.randn(17, width).bfloat16()
        ours = spmm.spmm(indptr, indices, x.view(torch.uint16).numpy())
        np.testing.assert_allclose(ours, matrix @ x.double().numpy(), rtol=1e-5, atol=1e-5)


def test_the_first_of_equal_maxima_is_named_and_nan_wins() -> None:
    indptr = np.array([0, 3, 3, 5])
    indices = np.array([1, 0, 2, 2, 1], np.int32)
    x = np.array([[5.0, 1.0], [5.0, np.nan], [2.0, 7.0]])
    values, edge = spmm_max(indptr, indices, x)
    np.testing.assert_array_equal(values, [[5, np.nan], [0, 0], [5, np.nan]])
    np.testing.assert_array_equal(edge, [[0, 0], [-1, -1], [4, 4]])


@pytest.mark.parametrize(("num_dst", "num_src", "edges"), [(3, 3, 0), (13, 17, 60), (3, 1, 9)])
def test_transposition_equals_a_stable_sort(num_dst: int, num_src: int, edges: int) -> None:
    indptr, indices, _ = csc(num_dst, num_src, edges)
    by_source, destinations, position = transpose(indptr, indices, num_src)
    order = np.argsort(indices, kind="stable")
    rows = np.repeat(np.arange(num_dst), np.diff(indptr))
    np.testing.assert_array_equal(position, order)
    np.testing.assert_array_equal(destinations, rows[order])
    np.testing.assert_array_equal(
        by_source, np.searchsorted(indices[order], np.arange(num_src + 1))
    )


def test_hot_loops_are_vector_code() -> None:
    """A sum holds its rows in wide registers: one addition is for four numbers or more."""
    kernel = numba.njit(
        spmm.self_mean_backward_rows.py_func
    )  # not from the cache: it has no assembly
    grad, x = np.ones(2, np.float32), np.ones(1, np.float32)
    indptr, row = np.array([0, 1]), np.zeros(1, np.int32)
    kernel(0, 1, indptr, row, grad, 1, 1, x, x, 0)
    assembly = next(iter(kernel.inspect_asm().values()))
    if "xmm" not in assembly:
        pytest.skip("not an x86 processor")
    packed = len(re.findall(r"v?(?:fmadd\w*|add)ps\b", assembly))
    single = len(re.findall(r"v?(?:fmadd\w*|add)ss\b", assembly))
    assert packed > 4 * single


def test_rows_are_cut_evenly_by_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    indptr = np.concatenate(([0], np.cumsum([40_000, *[1] * 5_000, 30_000])))
    monkeypatch.setattr(parallel, "num_threads", lambda: 2)
    parallel.run_rows(lambda lo, hi: seen.append((lo, hi)), indptr)
    seen.sort()
    assert [lo for lo, _ in seen[1:]] == [hi for _, hi in seen[:-1]]
    assert (seen[0][0], seen[-1][1]) == (0, 5_002)
    assert seen[0] == (0, 1)  # the heavy row is alone


def test_an_error_in_any_range_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "num_threads", lambda: 3)

    def fail(lo: int, hi: int) -> None:
        if lo:
            raise ValueError(f"range {lo}")

    with pytest.raises(ValueError, match="range"):
        parallel.run(fail, 100, work=1 << 20)
