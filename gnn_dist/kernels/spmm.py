"""Aggregation over the in-edges of each row of a CSC block: sums and means, with gradients.

A block is ``indptr int64[num_dst + 1]`` and ``indices int32/int64[E]`` (row of ``x`` of each
edge's source). Feature rows are C-contiguous; float64, float32, float16 (read as float32) and
bfloat16 (given as its bits, uint16, read as float32). Every output row is a sum in the order of
its edges, by one thread: the same bits for every number of threads. See ``vector`` for how rows
are processed, and ``transpose`` for how gradients become sums over the out-edges.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import (
    add,
    divide,
    flat,
    fma,
    load,
    prefetch,
    relu,
    splat,
    store,
    total,
    where_positive,
    zeros1,
    zeros16,
    zeros32,
    zeros64,
    zeros256,
)

_AHEAD = 10  # edges; the lines of a source's row are asked for this long before they are read
_LINE = 64


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
    heads = 1 if coef is None or coef.ndim == 1 else coef.shape[1]
    assert width % heads == 0
    if out.size:
        weights = _NO_COEF[dtype.type] if coef is None else _line(coef, dtype)
        args = (indptr, indices, flat(x), flat(out), width // heads, heads, weights, mean, ahead)
        parallel.run_rows(_spmm, indptr, *args)
    return out


def self_mean(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    *,
    index: np.ndarray | None = None,
    rectify: bool = False,
    columns: int | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """``[self | mean]``: row ``r`` is ``x[r]`` beside the mean of its sources' rows.

    With ``index`` int64[num_src], source ``s`` is row ``index[s]`` of the table ``x``: the first
    layer reads the feature table without a gathered copy. ``rectify`` takes max(x, 0) of every row
    that is read. The result is [num_dst, columns], ``columns`` at least 2F (the default); one more
    column is filled with 1 (so that a bias is a row of the weight matrix), those after it with 0.
    """
    rows, width = indptr.size - 1, x.shape[1]
    columns = 2 * width if columns is None else columns
    dtype = _wide(x.dtype)
    if out is None:
        out = np.empty((rows, columns), dtype)
    assert columns >= 2 * width
    assert (out.shape, out.dtype) == ((rows, columns), dtype)
    if out.size:
        table_rows = _NO_INDEX if index is None else index
        args = (indptr, indices, flat(x), flat(out), width, columns, table_rows, rectify)
        parallel.run_rows(_self_mean, indptr, *args)
    return out


def self_mean_backward(
    transposed: tuple[np.ndarray, np.ndarray],
    inverse_degree: np.ndarray,
    grad: np.ndarray,
    width: int,
    *,
    mask: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Gradient of ``self_mean`` with respect to ``x``: [num_src, width].

    ``transposed`` is (indptr, destinations) by source, ``inverse_degree`` float[num_dst] is
    1 / in-degree, ``grad`` [num_dst, >= 2 * width]. With ``mask`` [num_src, width] (what was
    rectified), rows are 0 where it is not positive.
    """
    indptr, destinations = transposed
    rows = indptr.size - 1
    if out is None:
        out = np.empty((rows, width), grad.dtype)
    assert out.shape == (rows, width)
    if out.size:
        masked = mask is not None
        args = (flat(grad), grad.shape[1], grad.shape[0], flat(out), width, inverse_degree)
        line = flat(mask) if mask is not None else flat(grad)
        parallel.run_rows(_self_mean_backward, indptr, indptr, destinations, *args, line, masked)
    return out


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


_NO_INDEX = np.empty(0, np.int64)
_NO_COEF = {t: np.empty(0, t) for t in (np.float32, np.float64)}


@njit(cache=True, nogil=True)
def _plain(acc, x, stride, offset, indices, lo, hi):
    for e in range(lo, hi):
        acc = add(acc, load(acc, x, np.int64(indices[e]) * stride + offset))
    return acc


@njit(cache=True, nogil=True)
def _weighted(acc, x, stride, offset, indices, lo, hi, coef, heads, head):
    for e in range(lo, hi):
        value = load(acc, x, np.int64(indices[e]) * stride + offset)
        acc = fma(splat(acc, coef[e * heads + head]), value, acc)
    return acc


@njit(cache=True, nogil=True)
def _ask(x, stride, width, indices, lo, hi):
    """Prefetch the rows of edges ``lo .. hi - 1``."""
    for e in range(lo, min(hi, indices.size)):
        row = np.int64(indices[e]) * stride
        for c in range(0, width, _LINE // x.itemsize):
            prefetch(x, row + c)


@njit(cache=True, nogil=True)
def _spmm_block(zero, x, stride, out, at, offset, indices, lo, hi, coef, heads, head, mean):
    if coef.size:
        acc = _weighted(zero, x, stride, offset, indices, lo, hi, coef, heads, head)
    else:
        acc = _plain(zero, x, stride, offset, indices, lo, hi)
    if mean:
        acc = divide(acc, splat(acc, max(hi - lo, 1)))
    store(out, at + offset, acc)


@njit(cache=True, nogil=True)
def _spmm(row_lo, row_hi, indptr, indices, x, out, width, heads, coef, mean, ahead):
    """Columns go in blocks of 256, 128, ... bytes; a last odd block overlaps the one before it."""
    stride = width * heads
    wide = 256 // out.itemsize
    for r in range(row_lo, row_hi):
        lo, hi, at = indptr[r], indptr[r + 1], r * stride
        if ahead:
            _ask(x, stride, stride, indices, lo + _AHEAD, hi + _AHEAD)
        for h in range(heads):
            c, end = h * width, (h + 1) * width
            tail = (x, stride, out, at)
            edges = (indices, lo, hi, coef, heads, h, mean)
            while c + wide <= end:
                _spmm_block(zeros256(out), *tail, c, *edges)
                c += wide
            if end - c > wide // 2 and width >= wide:
                _spmm_block(zeros256(out), *tail, end - wide, *edges)
                c = end
            while c + wide // 4 <= end:
                _spmm_block(zeros64(out), *tail, c, *edges)
                c += wide // 4
            if end - c > wide // 16 and width >= wide // 4:
                _spmm_block(zeros64(out), *tail, end - wide // 4, *edges)
                c = end
            while c + wide // 16 <= end:
                _spmm_block(zeros16(out), *tail, c, *edges)
                c += wide // 16
            if c < end and width >= wide // 16:
                _spmm_block(zeros16(out), *tail, end - wide // 16, *edges)
                c = end
            while c < end:
                _spmm_block(zeros1(out), *tail, c, *edges)
                c += 1


@njit(cache=True, nogil=True)
def _rectified(acc, x, stride, offset, indices, lo, hi):
    for e in range(lo, hi):
        acc = add(acc, relu(load(acc, x, np.int64(indices[e]) * stride + offset)))
    return acc


@njit(cache=True, nogil=True)
def _self_mean_block(zero, x, width, out, at, c, row, indices, lo, hi, rectify):
    own = load(zero, x, row + c)
    if rectify:
        own = relu(own)
        acc = _rectified(zero, x, width, c, indices, lo, hi)
    else:
        acc = _plain(zero, x, width, c, indices, lo, hi)
    store(out, at + c, own)
    store(out, at + width + c, divide(acc, splat(acc, max(hi - lo, 1))))


@njit(cache=True, nogil=True)
def _self_mean_row(x, width, out, at, row, indices, lo, hi, rectify):
    wide = 256 // out.itemsize
    c = 0
    tail = (row, indices, lo, hi, rectify)
    while c + wide <= width:
        _self_mean_block(zeros256(out), x, width, out, at, c, *tail)
        c += wide
    if width - c > wide // 2 and width >= wide:
        _self_mean_block(zeros256(out), x, width, out, at, width - wide, *tail)
        c = width
    while c + wide // 4 <= width:
        _self_mean_block(zeros64(out), x, width, out, at, c, *tail)
        c += wide // 4
    if width - c > wide // 16 and width >= wide // 4:
        _self_mean_block(zeros64(out), x, width, out, at, width - wide // 4, *tail)
        c = width
    while c + wide // 16 <= width:
        _self_mean_block(zeros16(out), x, width, out, at, c, *tail)
        c += wide // 16
    if c < width and width >= wide // 16:
        _self_mean_block(zeros16(out), x, width, out, at, width - wide // 16, *tail)
        c = width
    while c < width:
        _self_mean_block(zeros1(out), x, width, out, at, c, *tail)
        c += 1


@njit(cache=True, nogil=True)
def _pad(out, at, width, columns):
    if columns > 2 * width:
        out[at + 2 * width] = 1
        for c in range(2 * width + 1, columns):
            out[at + c] = 0


@njit(cache=True, nogil=True)
def _self_mean(row_lo, row_hi, indptr, indices, x, out, width, columns, index, rectify):
    most = 0
    for r in range(row_lo, row_hi):
        most = max(most, indptr[r + 1] - indptr[r])
    rows = np.empty(most, np.int64)  # of x, for the edges of one destination
    translate = index.size > 0
    for r in range(row_lo, row_hi):
        lo, hi, at = indptr[r], indptr[r + 1], r * columns
        for e in range(lo + _AHEAD, min(hi + _AHEAD, indices.size)):
            source = np.int64(indices[e])
            if translate:
                source = index[source]
            for c in range(0, width, _LINE // x.itemsize):
                prefetch(x, source * width + c)
        for e in range(lo, hi):
            rows[e - lo] = index[indices[e]] if translate else indices[e]
        own = index[r] if translate else r
        _self_mean_row(x, width, out, at, own * width, rows, 0, hi - lo, rectify)
        _pad(out, at, width, columns)


@njit(cache=True, nogil=True)
def _self_mean_backward_block(
    zero, grad, stride, own, out, at, width, c, destinations, lo, hi, inverse, mask, masked
):
    acc = zero
    if own >= 0:
        acc = load(zero, grad, own + c)
    for e in range(lo, hi):
        destination = np.int64(destinations[e])
        value = load(acc, grad, destination * stride + width + c)
        acc = fma(splat(acc, inverse[destination]), value, acc)
    if masked:
        acc = where_positive(load(acc, mask, at + c), acc)
    store(out, at + c, acc)


@njit(cache=True, nogil=True)
def _self_mean_backward(
    row_lo,
    row_hi,
    indptr,
    destinations,
    grad,
    stride,
    num_dst,
    out,
    width,
    inverse,
    mask,
    masked,
):
    wide = 256 // out.itemsize
    for r in range(row_lo, row_hi):
        own = r * stride if r < num_dst else -1
        head = (grad, stride, own, out, r * width, width)
        tail = (destinations, indptr[r], indptr[r + 1], inverse, mask, masked)
        c = 0
        while c + wide <= width:
            _self_mean_backward_block(zeros256(out), *head, c, *tail)
            c += wide
        if width - c > wide // 2 and width >= wide:
            _self_mean_backward_block(zeros256(out), *head, width - wide, *tail)
            c = width
        while c + wide // 4 <= width:
            _self_mean_backward_block(zeros64(out), *head, c, *tail)
            c += wide // 4
        if width - c > wide // 16 and width >= wide // 4:
            _self_mean_backward_block(zeros64(out), *head, width - wide // 4, *tail)
            c = width
        while c + wide // 16 <= width:
            _self_mean_backward_block(zeros16(out), *head, c, *tail)
            c += wide // 16
        if c < width and width >= wide // 16:
            _self_mean_backward_block(zeros16(out), *head, width - wide // 16, *tail)
            c = width
        while c < width:
            _self_mean_backward_block(zeros1(out), *head, c, *tail)
            c += 1


@njit(cache=True, nogil=True)
def _dot(acc, a, i, b, j, length):
    """Inner product of ``a[i : i + length]`` and ``b[j : j + length]``, and the rest of it."""
    lanes = 32 // a.itemsize
    c = 0
    while c + lanes <= length:
        acc = fma(load(acc, a, i + c), load(acc, b, j + c), acc)
        c += lanes
    value = total(acc)
    one = zeros1(a)
    while c < length:
        one = fma(load(one, a, i + c), load(one, b, j + c), one)
        c += 1
    return value + total(one)


@njit(cache=True, nogil=True)
def _edge_dot(row_lo, row_hi, indptr, indices, grad, x, out, width, heads, mean):
    stride = width * heads
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        for e in range(lo, hi):
            for h in range(heads):
                source = np.int64(indices[e]) * stride + h * width
                value = _dot(zeros32(out), grad, r * stride + h * width, x, source, width)
                out[e * heads + h] = value / (hi - lo) if mean else value


def warmup() -> None:
    """Compile for the dtypes of a run (float32 features, float16 tables)."""
    indptr, indices, coef = np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32)
    x = np.ones((1, 1), np.float32)
    index = np.zeros(1, np.int64)
    spmm(indptr, indices, x)
    self_mean(indptr, indices, x, index=index)
    self_mean(indptr, indices, x.astype(np.float16), index=index)
    self_mean_backward((indptr, indices), coef, np.ones((1, 2), np.float32), 1)
    edge_dot(indptr, indices, x, x)
