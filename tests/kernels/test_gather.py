"""Row gather against numpy's fancy indexing."""

import numpy as np
import pytest

from gnn_dist.kernels.gather import gather


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7,), (16,), (100,), (2, 5), (0,)])
def test_rows_equal_fancy_indexing(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 2, (30, *shape)).astype(dtype)
    for ids in (np.int32, np.int64):
        index = rng.integers(0, 30, 50).astype(ids)
        rows = gather(table, index)
        assert rows.dtype == table.dtype
        np.testing.assert_array_equal(rows, table[index])


def test_float16_is_widened_for_every_width() -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 30, 50)
    for width in [*range(1, 71), 100, 128]:
        table = rng.standard_normal((30, width)).astype(np.float16)
        rows = gather(table, index)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, table[index].astype(np.float32))


def test_a_buffer_is_filled_and_given_back() -> None:
    table = np.arange(12.0).reshape(4, 3)
    out = np.empty((2, 3))
    assert gather(table, np.array([3, 1]), out) is out
    np.testing.assert_array_equal(out, table[[3, 1]])


def test_large_gathers_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1000, 33)).astype(np.float32)
    index = rng.integers(0, 1000, 40_000)
    for threads in (1, 3):
        monkeypatch.setattr("gnn_dist.kernels.parallel.num_threads", lambda t=threads: t)
        np.testing.assert_array_equal(gather(table, index), table[index])
