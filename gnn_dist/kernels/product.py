"""Products of small matrices inside kernels: operands stay where they are.

A library packs its operands first and wants them contiguous. For a few hundred rows by 32 to 256
columns that costs more than it gains: six rows by a vector of columns, summed in registers, are
faster, read rows that stand apart or transposed, and add to what is there.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.vector import (
    fma,
    item,
    lanes32,
    load,
    splat,
    store,
    zeros1,
    zeros32,
    zeros64,
)


@njit(cache=True, forceinline=True)
def _six(like, a, at, row, step, b, bt, b_row, c, ct, c_row, k, fresh):
    """Six rows by one vector of columns."""
    r0 = r1 = r2 = r3 = r4 = r5 = like
    if not fresh:
        r0, r1, r2 = load(like, c, ct), load(like, c, ct + c_row), load(like, c, ct + 2 * c_row)
        r3, r4 = load(like, c, ct + 3 * c_row), load(like, c, ct + 4 * c_row)
        r5 = load(like, c, ct + 5 * c_row)
    for q in range(k):
        y, x = load(like, b, bt + q * b_row), at + q * step
        r0 = fma(splat(like, item(a, x)), y, r0)
        r1 = fma(splat(like, item(a, x + row)), y, r1)
        r2 = fma(splat(like, item(a, x + 2 * row)), y, r2)
        r3 = fma(splat(like, item(a, x + 3 * row)), y, r3)
        r4 = fma(splat(like, item(a, x + 4 * row)), y, r4)
        r5 = fma(splat(like, item(a, x + 5 * row)), y, r5)
    store(c, ct, r0)
    store(c, ct + c_row, r1)
    store(c, ct + 2 * c_row, r2)
    store(c, ct + 3 * c_row, r3)
    store(c, ct + 4 * c_row, r4)
    store(c, ct + 5 * c_row, r5)


@njit(cache=True, forceinline=True)
def _one(like, a, at, step, b, bt, b_row, c, ct, k, fresh):
    r0 = like
    if not fresh:
        r0 = load(like, c, ct)
    for q in range(k):
        r0 = fma(splat(like, item(a, at + q * step)), load(like, b, bt + q * b_row), r0)
    store(c, ct, r0)


@njit(cache=True, forceinline=True)
def _columns(like, lanes, m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh, done):
    while done + lanes <= n:
        i = 0
        while i + 6 <= m:
            _six(
                like, a, at + i * row, row, step, b, bt + done, b_row, c, ct + i * c_row + done,
                c_row, k, fresh,
            )  # fmt: skip
            i += 6
        while i < m:
            _one(
                like, a, at + i * row, step, b, bt + done, b_row, c, ct + i * c_row + done, k, fresh
            )
            i += 1
        done += lanes
    return done


@njit(inline="always")
def product(m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh):
    """``c = a b`` or, unless ``fresh``, ``c += a b``: [m, k] times [k, n], through pointers.

    Entry (i, q) of ``a`` is ``a[at + i · row + q · step]``; rows of ``b`` and ``c`` begin at ``bt``
    and ``ct`` and are ``b_row`` and ``c_row`` apart. Sums run over ``q`` in order.
    """
    # Compiled for each constant row, step and fresh, which make it faster, but not for each place.
    at, bt, ct = np.int64(at), np.int64(bt), np.int64(ct)
    _product(m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh)


@njit(cache=True)
def _product(m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh):
    lanes = lanes32(b)
    done = _columns(
        zeros64(b), 2 * lanes, m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh, 0
    )
    done = _columns(
        zeros32(b), lanes, m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh, done
    )
    _columns(zeros1(b), 1, m, n, k, a, at, row, step, b, bt, b_row, c, ct, c_row, fresh, done)
