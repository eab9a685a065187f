"""Aggregation over the in-edges of each row of a CSC block: sums and means, with gradients.

A block is ``indptr int64[num_dst + 1]`` and ``indices int32/int64[E]`` (row of ``x`` of each
edge's source). Feature rows are C-contiguous; float64, float32, float16 (read as float32) and
bfloat16 (given as its bits, uint16, read as float32). Every output row is a sum in the order of
its edges, by one thread: the same bits for every number of threads. See ``vector`` for how rows
are processed, and ``transpose`` for how gradients become sums over the out-edges.
"""

from typing import Any

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import (
    add,
    address,
    at,
    divide,
    flat,
    fma,
    item,
    load,
    multiply,
    over_columns,
    over_columns_once,
    pointer,
    prefetch,
    splat,
    store,
    total,
    where_active,
    zeros1,
    zeros32,
)

_AHEAD = 12  # edges; a source's row is asked for this long before it is read
_PAIR = 128  # bytes: the processor fetches the other line of a pair by itself; asking costs time


def spmm(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    *,
    coef: np.ndarray | None = None,
    mean: bool = False,
    ahead: bool = True,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Row ``r`` of the result is the sum (or mean) of ``coef[e] * x[indices[e]]`` over the edges
    ``e`` of row ``r``; 0 where it has none.

    ``coef`` is float[E], or float[E, H] with H dividing the width of ``x``: column block ``h`` is
    weighted by ``coef[:, h]``. ``mean`` divides by the number of edges, not by the weights.
    ``ahead`` asks for source rows before they are needed. Returns [num_dst, F].
    """
    rows, width = indptr.size - 1, x.shape[1]
    dtype = _wide(x.dtype)
    if out is None:
        out = np.empty((rows, width), dtype)
    assert (out.shape, out.dtype) == ((rows, width), dtype)
    heads = 0 if coef is None else coef.size // max(indices.size, 1)
    assert heads == 0 or width % heads == 0
    if out.size:
        weights = _NO_COEF[dtype.type] if coef is None else _line(coef, dtype)
        args = (indptr, indices, flat(x), flat(out), width, heads, weights, mean, ahead)
        parallel.run_rows(_spmm, indptr, *args)
    return out


def self_mean(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    *,
    addresses: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """``[self | mean]``, [num_dst, 2F]: row ``r`` is ``x[r]`` beside the mean of its sources' rows.

    With ``addresses`` int64[num_src], the row of source ``s`` begins at that byte of memory, and
    ``x`` is any array of such rows: the first layer reads feature tables without a gathered copy.
    """
    rows, width = indptr.size - 1, x.shape[1]
    dtype = _wide(x.dtype)
    if out is None:
        out = np.empty((rows, 2 * width), dtype)
    assert (out.shape, out.dtype) == ((rows, 2 * width), dtype)
    if out.size:
        args = self_mean_args(indptr, indices, x, addresses)
        parallel.run_rows(self_mean_rows, indptr, *args, flat(out), 0)
    return out


def self_mean_args(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, addresses: np.ndarray | None
) -> tuple[Any, ...]:
    """What ``self_mean_rows(lo, hi, *args, out, first)`` takes between: rows ``lo .. hi - 1`` of
    ``self_mean`` are written to the flat ``out``, whose first row is row ``first``."""
    return indptr, indices, flat(x), x.shape[1], _NOWHERE if addresses is None else addresses


def self_mean_backward(
    transposed: tuple[np.ndarray, np.ndarray],
    inverse_degree: np.ndarray,
    grad: np.ndarray,
    *,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Gradient of ``self_mean`` with respect to ``x``, [num_src, F], from ``grad`` [num_dst, 2F].

    ``transposed`` is (indptr, destinations) by source, ``inverse_degree`` float[num_dst] is
    1 / in-degree.
    """
    indptr = transposed[0]
    width = grad.shape[1] // 2
    if out is None:
        out = np.empty((indptr.size - 1, width), grad.dtype)
    assert out.shape == (indptr.size - 1, width)
    if out.size:
        args = self_mean_backward_args(transposed, inverse_degree, grad)
        parallel.run_rows(self_mean_backward_rows, indptr, *args, flat(out), 0)
    return out


def self_mean_backward_args(
    transposed: tuple[np.ndarray, np.ndarray], inverse_degree: np.ndarray, grad: np.ndarray
) -> tuple[Any, ...]:
    """What ``self_mean_backward_rows(lo, hi, *args, out, first)`` takes between, as for
    ``self_mean_args``; and ``rectified_backward_rows``."""
    return *transposed, flat(grad), grad.shape[0], grad.shape[1] // 2, inverse_degree


def edge_dot(
    indptr: np.ndarray,
    indices: np.ndarray,
    grad: np.ndarray,
    x: np.ndarray,
    *,
    heads: int = 1,
    mean: bool = False,
) -> np.ndarray:
    """Gradient of ``spmm`` with respect to ``coef``: float[E, heads], the inner product of
    ``grad[row]`` and ``x[source]`` over each column block, divided by the degree for means."""
    width = x.shape[1]
    out = np.empty((indices.size, heads), grad.dtype)
    if not width:
        out.fill(0)
    elif out.size:
        args = (indptr, indices, flat(grad), flat(x), flat(out), width // heads, heads, mean)
        parallel.run_rows(_edge_dot, indptr, *args)
    return out


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _line(coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(coef, dtype).reshape(-1)


_NOWHERE = np.empty(0, np.int64)
_NO_COEF = {t: np.empty(0, t) for t in (np.float32, np.float64)}


@njit(cache=True, forceinline=True)
def _sum(acc, x, stride, offset, rows, lo, hi):
    """``acc`` plus the vectors at column ``offset`` of rows ``rows[lo:hi]`` of ``x``."""
    for e in range(lo, hi):
        acc = add(acc, load(acc, x, np.int64(item(rows, e)) * stride + offset))
    return acc


@njit(cache=True, forceinline=True)
def _ask(x, stride, line, row):
    """Prefetch row ``row``; ``line`` is the numbers in a pair of cache lines."""
    for c in range(0, stride, line):
        prefetch(x, row * stride + c)


@njit(cache=True, forceinline=True)
def _spmm_block(zero, c, args):
    x, stride, out, at, rows, lo, hi, coef, heads, head, mean = args
    acc = zero
    if heads:
        for e in range(lo, hi):
            value = load(acc, x, np.int64(item(rows, e)) * stride + c)
            acc = fma(splat(acc, item(coef, e * heads + head)), value, acc)
    else:
        acc = _sum(acc, x, stride, c, rows, lo, hi)
    if mean:
        acc = divide(acc, splat(acc, max(hi - lo, 1)))
    store(out, at + c, acc)


@njit(cache=True, nogil=True)
def _spmm(row_lo, row_hi, indptr, indices, x, out, stride, heads, coef, mean, ahead):
    """``heads`` 0 is one head without weights."""
    line = _PAIR // x.itemsize
    width = stride // max(heads, 1)
    last = indices.size
    px, po, pi, pc = pointer(x), pointer(out), pointer(indices), pointer(coef)
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        if ahead:
            for e in range(lo + _AHEAD, min(hi + _AHEAD, last)):
                _ask(px, stride, line, np.int64(item(pi, e)))
        for h in range(max(heads, 1)):
            args = (px, stride, po, r * stride, pi, lo, hi, pc, heads, h, mean)
            over_columns(_spmm_block, out, h * width, (h + 1) * width, args)


@njit(cache=True, forceinline=True)
def _self_mean_block(zero, c, args):
    x, width, out, place, own, rows, count = args
    mine, acc = load(zero, at(x, own), c), zero
    for e in range(count):
        acc = add(acc, load(acc, at(x, item(rows, e)), c))
    store(out, place + c, mine)
    store(out, place + width + c, divide(acc, splat(acc, max(count, 1))))


@njit(cache=True, nogil=True)
def self_mean_rows(row_lo, row_hi, indptr, indices, x, width, addresses, out, first):
    step, line = width * x.itemsize, _PAIR // x.itemsize
    base, scattered = address(x), addresses.size > 0
    most = 0
    for r in range(row_lo, row_hi):
        most = max(most, indptr[r + 1] - indptr[r])
    found = np.empty(most, np.int64)  # where the rows of one destination's sources begin
    px, po, pi, pt = pointer(x), pointer(out), pointer(indices), pointer(addresses)
    rows = pointer(found)
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        if scattered:  # hidden rows lie in the order in which they are first read: no need
            for e in range(lo + _AHEAD, min(hi + _AHEAD, indices.size)):
                _ask(at(px, item(pt, np.int64(item(pi, e)))), width, line, 0)
        for e in range(lo, hi):
            s = np.int64(item(pi, e))
            found[e - lo] = item(pt, s) if scattered else base + s * step
        own = addresses[r] if scattered else base + r * step
        args = (px, width, po, 2 * (r - first) * width, own, rows, hi - lo)
        over_columns(_self_mean_block, out, 0, width, args)


@njit(cache=True, forceinline=True)
def _pulled(zero, grad, own, width, c, rows, lo, hi, inverse):
    """Columns ``c`` and on of a source's gradient, from those of its destinations."""
    acc = zero
    if own >= 0:
        acc = load(zero, grad, own + c)
    for e in range(lo, hi):
        d = np.int64(item(rows, e))
        value = load(acc, grad, 2 * d * width + width + c)
        acc = fma(splat(acc, item(inverse, d)), value, acc)
    return acc


@njit(cache=True, forceinline=True)
def _self_mean_backward_block(zero, c, args):
    grad, own, width, rows, lo, hi, inverse, out, at = args
    store(out, at + c, _pulled(zero, grad, own, width, c, rows, lo, hi, inverse))


@njit(cache=True, nogil=True)
def self_mean_backward_rows(
    row_lo, row_hi, indptr, destinations, grad, num_dst, width, inverse, out, first
):
    pg, po, pd, pi = pointer(grad), pointer(out), pointer(destinations), pointer(inverse)
    for r in range(row_lo, row_hi):
        own = 2 * r * width if r < num_dst else -1
        args = (pg, own, width, pd, indptr[r], indptr[r + 1], pi, po, (r - first) * width)
        over_columns(_self_mean_backward_block, out, 0, width, args)


@njit(cache=True, forceinline=True)
def _rectified_block(zero, c, args):
    grad, own, width, rows, lo, hi, inverse, out, at, active, place, scale, totals = args
    value = _pulled(zero, grad, own, width, c, rows, lo, hi, inverse)
    value = where_active(active, place + c, multiply(value, splat(value, scale)))
    store(out, at + c, value)
    store(totals, c, add(load(zero, totals, c), value))


@njit(cache=True, nogil=True)
def rectified_backward_rows(
    row_lo,
    row_hi,
    indptr,
    destinations,
    grad,
    num_dst,
    width,
    inverse,
    active,
    scale,
    totals,
    out,
    first,
):
    """``self_mean_backward_rows`` through the ReLU and dropout that gave ``x``: multiplied by
    ``scale`` where ``active`` (see ``epilogue``) and 0 elsewhere; the rows are added to ``totals``
    [F], the gradient of the bias."""
    pg, po, pd, pi = pointer(grad), pointer(out), pointer(destinations), pointer(inverse)
    pa, pt = pointer(active), pointer(totals)
    for r in range(row_lo, row_hi):
        own = 2 * r * width if r < num_dst else -1
        edges = (pg, own, width, pd, indptr[r], indptr[r + 1], pi)
        args = (*edges, po, (r - first) * width, pa, r * width, scale, pt)
        over_columns_once(_rectified_block, out, 0, width, args)


@njit(cache=True, forceinline=True)
def _dot(zero, one, a, i, b, j, lanes, length):
    """Inner product of ``a[i : i + length]`` and ``b[j : j + length]``; ``zero`` has ``lanes``."""
    c, acc = 0, zero
    while c + lanes <= length:
        acc = fma(load(acc, a, i + c), load(acc, b, j + c), acc)
        c += lanes
    rest = one
    while c < length:
        rest = fma(load(rest, a, i + c), load(rest, b, j + c), rest)
        c += 1
    return total(acc) + total(rest)


@njit(cache=True, nogil=True)
def _edge_dot(row_lo, row_hi, indptr, indices, grad, x, out, width, heads, mean):
    stride = width * heads
    lanes = 32 // out.itemsize
    pg, px = pointer(grad), pointer(x)
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        for e in range(lo, hi):
            for h in range(heads):
                i, j = r * stride + h * width, np.int64(indices[e]) * stride + h * width
                value = _dot(zeros32(out), zeros1(out), pg, i, px, j, lanes, width)
                out[e * heads + h] = value / (hi - lo) if mean else value


def warmup() -> None:
    """Compile for the dtypes of a run (float32 features, float16 tables)."""
    indptr, indices, coef = np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32)
    x = np.ones((1, 1), np.float32)
    spmm(indptr, indices, x)
    self_mean(indptr, indices, x)
    self_mean(indptr, indices, x.astype(np.float16))
    grad = np.ones((1, 32), np.float32)
    self_mean_backward((indptr, indices), coef, grad)
    args = self_mean_backward_args((indptr, indices), coef, grad)
    out = np.zeros(16, np.float32)
    bits = np.zeros(2, np.uint8)
    rectified_backward_rows(0, 1, *args, bits, np.float32(1), out, out.copy(), 0)
    edge_dot(indptr, indices, x, x)
