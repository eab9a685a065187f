"""Columns rectified and standardised over all rows, forward and backward.

    y = max(x + bias, 0),    out = scale · (y - mean(y)) / sqrt(var(y) + eps) + shift

Columns are independent of one another. Some of them at a time are read three times, for mean,
variance and result, with their sums in registers; the second and third time they lie in a cache.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.vector import (
    add,
    divide,
    fma,
    load,
    multiply,
    over_columns,
    relu,
    root,
    splat,
    store,
    where_positive,
)

_RUN = 256  # rows summed before their sum joins the whole: what keeps rounding small


@njit(cache=True, forceinline=True)
def _forward_block(zero, c, args):
    x, bias, scale, shift, eps, out, mean, inverse, rows, stride = args
    b, share, minus = load(zero, bias, c), splat(zero, 1.0 / rows), splat(zero, -1.0)
    total = zero
    for first in range(0, rows, _RUN):
        part = zero
        for n in range(first, min(rows, first + _RUN)):
            part = add(part, relu(add(load(zero, x, n * stride + c), b)))
        total = add(total, part)
    middle = multiply(total, share)
    total = zero
    for first in range(0, rows, _RUN):
        part = zero
        for n in range(first, min(rows, first + _RUN)):
            apart = fma(minus, middle, relu(add(load(zero, x, n * stride + c), b)))
            part = fma(apart, apart, part)
        total = add(total, part)
    over = divide(splat(zero, 1.0), root(fma(total, share, splat(zero, eps))))
    store(mean, c, middle)
    store(inverse, c, over)
    factor, plus = multiply(over, load(zero, scale, c)), load(zero, shift, c)
    for n in range(rows):
        apart = fma(minus, middle, relu(add(load(zero, x, n * stride + c), b)))
        store(out, n * stride + c, fma(apart, factor, plus))


@njit(cache=True, forceinline=True)
def _backward_block(zero, c, args):
    x, bias, scale, mean, inverse, grad, d_x, d_bias, d_scale, d_shift, rows, stride = args
    b, middle, over = load(zero, bias, c), load(zero, mean, c), load(zero, inverse, c)
    share, minus = splat(zero, 1.0 / rows), splat(zero, -1.0)
    total, along = zero, zero
    for first in range(0, rows, _RUN):
        part, beside = zero, zero
        for n in range(first, min(rows, first + _RUN)):
            g = load(zero, grad, n * stride + c)
            apart = fma(minus, middle, relu(add(load(zero, x, n * stride + c), b)))
            part = add(part, g)
            beside = fma(g, apart, beside)
        total, along = add(total, part), add(along, beside)
    along = multiply(along, over)
    store(d_shift, c, total)
    store(d_scale, c, along)
    factor = multiply(over, load(zero, scale, c))
    level = multiply(minus, multiply(total, share))
    slope = multiply(minus, multiply(multiply(along, over), share))
    total = zero
    for first in range(0, rows, _RUN):
        part = zero
        for n in range(first, min(rows, first + _RUN)):
            y = relu(add(load(zero, x, n * stride + c), b))
            g = add(load(zero, grad, n * stride + c), level)
            g = multiply(factor, fma(fma(minus, middle, y), slope, g))
            g = where_positive(y, g)
            store(d_x, n * stride + c, g)
            part = add(part, g)
        total = add(total, part)
    store(d_bias, c, total)


@njit(cache=True, nogil=True)
def forward(lo, hi, width, x, bias, scale, shift, eps, out, mean, inverse):
    """Columns ``lo · width .. hi · width - 1`` of x.

    Args:
        x, out: float[N, C], contiguous.
        bias, scale, shift: float[C].
        mean, inverse: float[C], receive the mean of y and the inverse of its deviation.
    """
    rows, stride = x.shape
    args = (
        x.reshape(-1), bias, scale, shift, eps, out.reshape(-1), mean, inverse, rows, stride,
    )  # fmt: skip
    over_columns(_forward_block, x, lo * width, hi * width, args)


@njit(cache=True, nogil=True)
def backward(
    lo, hi, width, x, bias, scale, mean, inverse, grad, d_x, d_bias, d_scale, d_shift
):  # fmt: skip
    """Gradients of the same columns from ``grad`` float[N, C] of ``out``."""
    rows, stride = x.shape
    args = (
        x.reshape(-1), bias, scale, mean, inverse, grad.reshape(-1), d_x.reshape(-1), d_bias,
        d_scale, d_shift, rows, stride,
    )  # fmt: skip
    over_columns(_backward_block, x, lo * width, hi * width, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    for dtype in (np.float32, np.float64):
        x, out, row = np.ones((2, 1), dtype), np.empty((2, 1), dtype), np.ones(1, dtype)
        forward(0, 1, 1, x, row, row, row, dtype(1), out, row.copy(), row.copy())
        backward(0, 1, 1, x, row, row, row, row, x, out, *(row.copy() for _ in range(3)))
