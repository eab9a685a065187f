"""Weighted sums of neighbours' rows, dense or kept as values and a bit mask.

All arrays of rows are one-dimensional here, with a stride and an offset, so that a sum can read
and write columns of a wider buffer. Sums over CSR rows only, in the order of the edges: the bits
do not depend on who computes them, and packed rows give the bits of dense ones.
"""

import numba
import numpy as np

from gnn_dist.kernels import vector
from gnn_dist.kernels.lanes import EXPANSIONS, expand8, lowest_bit, popcount, zeros128
from gnn_dist.kernels.vector import fma, load, prefetch, splat, store, zeros32

PADDING = 8  # spare elements at the end of packed values: eight are read at a time
_AHEAD = 8  # edges by which a neighbour's row is asked for before it is read


def _dense_block(zeros, lines):
    @numba.njit(nogil=True)
    def block(
        lo, hi, indptr, indices, weight, own, x, xs, xo, start, ss, so, begin, out, outs, outo
    ):
        last = indices.size - 1
        for i in range(lo, hi):
            acc = zeros(out)
            if begin:
                acc = load(acc, start, i * ss + so)
            if own[i] != 0:
                acc = fma(splat(acc, own[i]), load(acc, x, i * xs + xo), acc)
            for e in range(indptr[i], indptr[i + 1]):
                ahead = np.int64(indices[min(e + _AHEAD, last)]) * xs + xo
                for line in range(lines):
                    prefetch(x, ahead + 16 * line)
                acc = fma(splat(acc, weight[e]), load(acc, x, np.int64(indices[e]) * xs + xo), acc)
            store(out, i * outs + outo, acc)

    return block


_dense256 = _dense_block(vector.zeros256, 4)
_dense128 = _dense_block(zeros128, 2)
_dense32 = _dense_block(vector.zeros32, 1)


@numba.njit(cache=True, nogil=True)
def aggregate(
    lo, hi, indptr, indices, weight, own, x, xs, xo, start, ss, so, begin, out, outs, outo, d
):
    """Rows ``lo .. hi - 1`` of ``out[i] = start[i] + own[i] x[i] + sum_e weight[e] x[indices[e]]``.

    indptr: int64[N + 1]; indices: int32[E]; weight: float[E]; own: float[N].
    x with row stride ``xs`` and column offset ``xo``, likewise ``start`` (read where ``begin``,
    may be ``out`` itself) and ``out``; ``d`` columns.
    """
    per = 4 if out.itemsize == 8 else 8  # elements in 32 bytes
    c = 0
    while d - c >= 8 * per:
        _dense256(
            lo, hi, indptr, indices, weight, own,
            x, xs, xo + c, start, ss, so + c, begin, out, outs, outo + c,
        )  # fmt: skip
        c += 8 * per
    while d - c >= 4 * per:
        _dense128(
            lo, hi, indptr, indices, weight, own,
            x, xs, xo + c, start, ss, so + c, begin, out, outs, outo + c,
        )  # fmt: skip
        c += 4 * per
    while d - c >= per:
        _dense32(
            lo, hi, indptr, indices, weight, own,
            x, xs, xo + c, start, ss, so + c, begin, out, outs, outo + c,
        )  # fmt: skip
        c += per
    if c < d:
        for i in range(lo, hi):
            for j in range(c, d):
                acc = own[i] * x[i * xs + xo + j]
                if begin:
                    acc += start[i * ss + so + j]
                for e in range(indptr[i], indptr[i + 1]):
                    acc += weight[e] * x[np.int64(indices[e]) * xs + xo + j]
                out[i * outs + outo + j] = acc


@numba.njit(nogil=True, inline="always")
def _add_word(word, values, at, w, a0, a1, a2, a3, table):
    """The four vectors of 32 columns plus ``w`` times the packed values from ``at``."""
    m0 = word & np.uint32(0xFF)
    m1 = (word >> np.uint32(8)) & np.uint32(0xFF)
    m2 = (word >> np.uint32(16)) & np.uint32(0xFF)
    m3 = word >> np.uint32(24)
    p1 = at + popcount(m0)
    p2 = at + popcount(word & np.uint32(0xFFFF))
    p3 = at + popcount(word & np.uint32(0xFFFFFF))
    scale = splat(a0, w)
    a0 = fma(scale, expand8(values, at, m0, table), a0)
    a1 = fma(scale, expand8(values, p1, m1, table), a1)
    a2 = fma(scale, expand8(values, p2, m2, table), a2)
    a3 = fma(scale, expand8(values, p3, m3, table), a3)
    return a0, a1, a2, a3


@numba.njit(cache=True, nogil=True)
def _packed32(lo, hi, indptr, indices, weight, own, values, k, mask, word, out, outs, outo, table):
    """Columns ``32 * word .. 32 * word + 31``; ``mask`` uint32[N, words]."""
    last = indices.size - 1
    words = mask.shape[1]
    flat = mask.reshape(-1)
    for i in range(lo, hi):
        a0 = zeros32(out)
        a1, a2, a3 = a0, a0, a0
        if own[i] != 0:
            at = i * k
            for b in range(word):
                at += popcount(flat[i * words + b])
            bits = flat[i * words + word]
            a0, a1, a2, a3 = _add_word(bits, values, at, own[i], a0, a1, a2, a3, table)
        for e in range(indptr[i], indptr[i + 1]):
            ahead = np.int64(indices[min(e + _AHEAD, last)])
            prefetch(values, ahead * k)
            prefetch(flat, ahead * words)
            j = np.int64(indices[e])
            at = j * k
            for b in range(word):
                at += popcount(flat[j * words + b])
            bits = flat[j * words + word]
            a0, a1, a2, a3 = _add_word(bits, values, at, weight[e], a0, a1, a2, a3, table)
        o = i * outs + outo + 32 * word
        store(out, o, a0)
        store(out, o + 8, a1)
        store(out, o + 16, a2)
        store(out, o + 24, a3)


@numba.njit(cache=True, nogil=True)
def _packed64(lo, hi, indptr, indices, weight, own, values, k, mask, word, out, outs, outo, table):
    """Columns ``32 * word .. 32 * word + 63`` in one pass over the edges."""
    last = indices.size - 1
    words = mask.shape[1]
    flat = mask.reshape(-1)
    for i in range(lo, hi):
        a0 = zeros32(out)
        a1, a2, a3, b0, b1, b2, b3 = a0, a0, a0, a0, a0, a0, a0
        if own[i] != 0:
            at = i * k
            for b in range(word):
                at += popcount(flat[i * words + b])
            bits = flat[i * words + word]
            a0, a1, a2, a3 = _add_word(bits, values, at, own[i], a0, a1, a2, a3, table)
            at += popcount(bits)
            bits = flat[i * words + word + 1]
            b0, b1, b2, b3 = _add_word(bits, values, at, own[i], b0, b1, b2, b3, table)
        for e in range(indptr[i], indptr[i + 1]):
            ahead = np.int64(indices[min(e + _AHEAD, last)])
            prefetch(values, ahead * k)
            prefetch(flat, ahead * words)
            j = np.int64(indices[e])
            at = j * k
            for b in range(word):
                at += popcount(flat[j * words + b])
            bits = flat[j * words + word]
            a0, a1, a2, a3 = _add_word(bits, values, at, weight[e], a0, a1, a2, a3, table)
            at += popcount(bits)
            bits = flat[j * words + word + 1]
            b0, b1, b2, b3 = _add_word(bits, values, at, weight[e], b0, b1, b2, b3, table)
        o = i * outs + outo + 32 * word
        store(out, o, a0)
        store(out, o + 8, a1)
        store(out, o + 16, a2)
        store(out, o + 24, a3)
        store(out, o + 32, b0)
        store(out, o + 40, b1)
        store(out, o + 48, b2)
        store(out, o + 56, b3)


@numba.njit(cache=True, nogil=True)
def aggregate_packed(lo, hi, indptr, indices, weight, own, values, mask, out, outs, outo, d, table):
    """``aggregate`` of packed rows without expanding them in memory, float32.

    values: float32[N * k + PADDING], one-dimensional; mask: uint32[N, words]; table: EXPANSIONS;
    d: a multiple of 32.
    """
    k = (values.size - PADDING) // mask.shape[0]
    word = 0
    while d - 32 * word >= 64:
        _packed64(
            lo, hi, indptr, indices, weight, own, values, k, mask, word, out, outs, outo, table
        )
        word += 2
    if d - 32 * word >= 32:
        _packed32(
            lo, hi, indptr, indices, weight, own, values, k, mask, word, out, outs, outo, table
        )


@numba.njit(cache=True, nogil=True)
def aggregate_packed_any(lo, hi, indptr, indices, weight, own, values, mask, out, outs, outo, d):
    """``aggregate_packed`` for any width and dtype, one kept value at a time."""
    k = (values.size - PADDING) // mask.shape[0]
    for i in range(lo, hi):
        o = i * outs + outo
        for c in range(d):
            out[o + c] = 0
        for e in range(indptr[i] - 1, indptr[i + 1]):
            if e < indptr[i]:
                j, scale = np.int64(i), own[i]
            else:
                j, scale = np.int64(indices[e]), weight[e]
            at = j * k
            for w in range(mask.shape[1]):
                word = mask[j, w]
                while word != 0:
                    out[o + 32 * w + lowest_bit(word)] += scale * values[at]
                    at += 1
                    word &= word - np.uint32(1)


@numba.njit(nogil=True, inline="always")
def _dot(values, at, mask, j, row, offset):
    total = values.dtype.type(0)
    for w in range(mask.shape[1]):
        word = mask[j, w]
        while word != 0:
            total += values[at] * row[offset + 32 * w + lowest_bit(word)]
            at += 1
            word &= word - np.uint32(1)
    return total


@numba.njit(cache=True, nogil=True)
def packed_dots(lo, hi, values, mask, vectors, out):
    """``out[i, r] = <row i, vectors[r]>``; vectors float[R, d], out float[N, R]."""
    k = (values.size - PADDING) // mask.shape[0]
    for i in range(lo, hi):
        for r in range(vectors.shape[0]):
            out[i, r] = _dot(values, i * k, mask, i, vectors[r], 0)


@numba.njit(cache=True, nogil=True)
def packed_sums(lo, hi, values, mask, scale, rows, partial):
    """Blocks ``lo .. hi - 1`` of ``rows`` rows: ``partial[b, r] = sum_i scale[i, r] * row i``."""
    n = mask.shape[0]
    k = (values.size - PADDING) // n
    for block in range(lo, hi):
        partial[block] = 0
        for i in range(block * rows, min(n, (block + 1) * rows)):
            at = i * k
            for w in range(mask.shape[1]):
                word = mask[i, w]
                while word != 0:
                    c = 32 * w + lowest_bit(word)
                    for r in range(scale.shape[1]):
                        partial[block, r, c] += scale[i, r] * values[at]
                    at += 1
                    word &= word - np.uint32(1)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def attention(lo, hi, indptr, indices, source, target, slope, alpha, own):
    """Softmax of ``leaky(source[j] + target[i])`` over the neighbours j of i and i itself.

    source, target: float[N]; alpha: float[E] out; own: float[N] out.
    """
    for i in range(lo, hi):
        score = source[i] + target[i]
        score = score if score > 0 else slope * score
        own[i] = score
        top = score
        for e in range(indptr[i], indptr[i + 1]):
            score = source[indices[e]] + target[i]
            score = score if score > 0 else slope * score
            alpha[e] = score
            top = max(top, score)
        total = np.exp(own[i] - top)
        own[i] = total
        for e in range(indptr[i], indptr[i + 1]):
            alpha[e] = np.exp(alpha[e] - top)
            total += alpha[e]
        own[i] /= total
        for e in range(indptr[i], indptr[i + 1]):
            alpha[e] /= total


@numba.njit(cache=True, nogil=True)
def attention_backward(
    lo, hi, indptr, indices, source, target, slope, alpha, own, values, mask, grad, gs, go,
    grad_score, grad_own,
):  # fmt: skip
    """Gradient of the scores before the leaky step: ``grad_score`` float[E], ``grad_own`` float[N].

    grad: gradient of the aggregated rows, one-dimensional with stride ``gs``, offset ``go``.
    """
    k = (values.size - PADDING) // mask.shape[0]
    for i in range(lo, hi):
        offset = i * gs + go
        grad_own[i] = _dot(values, i * k, mask, i, grad, offset)
        mean = own[i] * grad_own[i]
        for e in range(indptr[i], indptr[i + 1]):
            j = np.int64(indices[e])
            grad_score[e] = _dot(values, j * k, mask, j, grad, offset)
            mean += alpha[e] * grad_score[e]
        step = own[i] * (grad_own[i] - mean)
        grad_own[i] = step if source[i] + target[i] > 0 else slope * step
        for e in range(indptr[i], indptr[i + 1]):
            step = alpha[e] * (grad_score[e] - mean)
            grad_score[e] = step if source[indices[e]] + target[i] > 0 else slope * step


@numba.njit(cache=True, nogil=True)
def edge_sums(lo, hi, indptr, position, values, start, out):
    """``out[i] = start[i] + sum of values[position[e]]`` over the edges e of row i."""
    for i in range(lo, hi):
        total = start[i]
        for e in range(indptr[i], indptr[i + 1]):
            total += values[position[e]]
        out[i] = total


def warmup() -> None:
    """Compile for float32."""
    indptr, indices = np.array([0, 1, 1]), np.zeros(1, np.int32)
    weight, own = np.ones(1, np.float32), np.ones(2, np.float32)
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    aggregate(0, 2, indptr, indices, weight, own, x, 32, 0, x, 32, 0, False, out, 32, 0, 32)
    values, mask = np.ones(2 * 8 + PADDING, np.float32), np.full((2, 1), 255, np.uint32)
    aggregate_packed(0, 2, indptr, indices, weight, own, values, mask, out, 32, 0, 32, EXPANSIONS)
