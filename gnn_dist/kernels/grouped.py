"""Aggregation over a group of snapshots: features side by side, one pass over what they share.

A group of S snapshots is a list of *segments*. Segment ``g`` holds the edges that all of the
snapshots ``first[g] .. last[g] - 1`` have (and that no other segment gives to one of them), as CSC
rows ``indptr[g]`` into ``indices``. Rows of features stand side by side, ``x[N, S, F]``, so that an
edge of a segment adds ``(last - first) * F`` contiguous numbers.

Weights are none (binary pattern), one value an edge, or one value an edge and snapshot.
"""

import numba
import numpy as np

from gnn_dist.kernels.vector import add, fma, load, splat, store, zeros1, zeros32, zeros256


@numba.njit(inline="always")
def _start(i, x, loop, out, groups, width):
    for s in range(groups):
        factor = loop[i, s]
        at = (i * groups + s) * width
        for f in range(width):
            out[at + f] = factor * x[at + f]


@numba.njit(inline="always")
def _finish(i, scale, out, groups, width):
    for s in range(groups):
        factor = scale[i, s]
        at = (i * groups + s) * width
        for f in range(width):
            out[at + f] *= factor


# The columns of a row are taken in blocks of 256, 32 and then a few bytes; within a block, all
# edges are added into registers before the block is stored.


@numba.njit(inline="always")
def _sum_block(like, lanes, out, at, x, column, stride, indices, lo, hi, done, count):
    while done + lanes <= count:
        acc = load(like, out, at + done)
        for e in range(lo, hi):
            acc = add(acc, load(like, x, np.int64(indices[e]) * stride + column + done))
        store(out, at + done, acc)
        done += lanes
    return done


@numba.njit(inline="always")
def _fma_block(like, lanes, out, at, x, column, stride, indices, weight, lo, hi, done, count):
    while done + lanes <= count:
        acc = load(like, out, at + done)
        for e in range(lo, hi):
            value = load(like, x, np.int64(indices[e]) * stride + column + done)
            acc = fma(value, splat(like, weight[e]), acc)
        store(out, at + done, acc)
        done += lanes
    return done


@numba.njit(cache=True, nogil=True)
def _binary(lo, hi, indptr, indices, first, last, x, loop, scale, out, groups, width):
    stride = groups * width
    wide = 256 // x.itemsize
    narrow = 32 // x.itemsize
    for i in range(lo, hi):
        _start(i, x, loop, out, groups, width)
        for g in range(first.size):
            a, b = indptr[g, i], indptr[g, i + 1]
            if a == b:
                continue
            c = first[g] * width
            n = (last[g] - first[g]) * width
            o = i * stride + c
            done = _sum_block(zeros256(x), wide, out, o, x, c, stride, indices, a, b, 0, n)
            done = _sum_block(zeros32(x), narrow, out, o, x, c, stride, indices, a, b, done, n)
            _sum_block(zeros1(x), 1, out, o, x, c, stride, indices, a, b, done, n)
        _finish(i, scale, out, groups, width)


@numba.njit(cache=True, nogil=True)
def _shared(lo, hi, indptr, indices, weight, first, last, x, loop, scale, out, groups, width):
    stride = groups * width
    wide = 256 // x.itemsize
    narrow = 32 // x.itemsize
    for i in range(lo, hi):
        _start(i, x, loop, out, groups, width)
        for g in range(first.size):
            a, b = indptr[g, i], indptr[g, i + 1]
            if a == b:
                continue
            c = first[g] * width
            n = (last[g] - first[g]) * width
            o = i * stride + c
            done = _fma_block(zeros256(x), wide, out, o, x, c, stride, indices, weight, a, b, 0, n)
            done = _fma_block(
                zeros32(x), narrow, out, o, x, c, stride, indices, weight, a, b, done, n
            )
            _fma_block(zeros1(x), 1, out, o, x, c, stride, indices, weight, a, b, done, n)
        _finish(i, scale, out, groups, width)


@numba.njit(inline="always")
def _valued_block(
    like, lanes, out, at, x, column, stride, indices, weight, position, k, lo, hi, done, count
):
    while done + lanes <= count:
        acc = load(like, out, at + done)
        for e in range(lo, hi):
            value = load(like, x, np.int64(indices[e]) * stride + column + done)
            acc = fma(value, splat(like, weight[position[e] + k]), acc)
        store(out, at + done, acc)
        done += lanes
    return done


@numba.njit(cache=True, nogil=True)
def _valued(
    lo, hi, indptr, indices, weight, position, first, last, x, loop, scale, out, groups, width
):
    stride = groups * width
    narrow = 32 // x.itemsize
    for i in range(lo, hi):
        _start(i, x, loop, out, groups, width)
        for g in range(first.size):
            a, b = indptr[g, i], indptr[g, i + 1]
            if a == b:
                continue
            for k in range(last[g] - first[g]):
                c = (first[g] + k) * width
                o = i * stride + c
                done = _valued_block(
                    zeros32(x), narrow, out, o, x, c, stride, indices, weight, position, k, a, b,
                    0, width,
                )  # fmt: skip
                _valued_block(
                    zeros1(x), 1, out, o, x, c, stride, indices, weight, position, k, a, b,
                    done, width,
                )  # fmt: skip
        _finish(i, scale, out, groups, width)


def aggregate_rows(
    lo: int,
    hi: int,
    indptr: np.ndarray,
    indices: np.ndarray,
    weight: np.ndarray | None,
    position: np.ndarray | None,
    first: np.ndarray,
    last: np.ndarray,
    x: np.ndarray,
    loop: np.ndarray,
    scale: np.ndarray,
    out: np.ndarray,
) -> None:
    """``out[i, s] = scale[i, s] · (loop[i, s] · x[i, s] + Σ_e w_e[s] · x[source(e), s])``.

    For the rows ``lo .. hi - 1``, in one pass over the edges of every segment.

    Args:
        indptr: int64[G, rows + 1], positions in ``indices``, by segment.
        indices: int32/int64[E], rows of ``x``.
        weight: None; float[E]; or, with ``position``, a flat list of values.
        position: None, or int64[E]: where the values of an edge begin in ``weight``, one a
            snapshot of its segment.
        first, last: int64[G] snapshots of each segment.
        x: float[rows of x, S, F], contiguous. Row ``i`` of ``out`` is also row ``i`` of ``x``.
        loop, scale: float[rows, S].
        out: float[rows, S, F], contiguous, of the dtype of ``x``.
    """
    groups, width = x.shape[1], x.shape[2]
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    if weight is None:
        _binary(lo, hi, indptr, indices, first, last, flat_x, loop, scale, flat_out, groups, width)
    elif position is None:
        _shared(
            lo, hi, indptr, indices, weight, first, last, flat_x, loop, scale, flat_out, groups,
            width,
        )  # fmt: skip
    else:
        _valued(
            lo, hi, indptr, indices, weight, position, first, last, flat_x, loop, scale, flat_out,
            groups, width,
        )  # fmt: skip


def warmup() -> None:
    """Compile the kernels for the dtypes of a real run."""
    indptr = np.array([[0, 1]], np.int64)
    ends = np.array([0], np.int64), np.array([1], np.int64)
    for dtype in (np.float32, np.float64):
        one = np.ones((1, 1), dtype)
        x, out = np.ones((1, 1, 4), dtype), np.empty((1, 1, 4), dtype)
        where = np.zeros(1, np.int64)
        for weight, position in ((None, None), (one[0], None), (one[0], where)):
            aggregate_rows(
                0, 1, indptr, np.zeros(1, np.int32), weight, position, *ends, x, one, one, out
            )
