"""Normalise a row, keep its k largest values, store them as values and a bit mask.

A row of d columns becomes ``values[k]`` (the kept ones, in column order) and ``mask`` (one bit a
column, uint32 words, lowest bit first). The threshold is found by bisection on the values, where a
step is a compare and a population count for every eight columns; equal values at the threshold are
kept from the lowest column on, so that a row always keeps exactly k and the choice is a function
of its values alone. What is not a number is kept, so that it is seen downstream.
"""

import numba
import numpy as np
from numba.core import types
from numba.extending import overload

from gnn_dist.kernels.lanes import lowest_bit, not_below8, popcount
from gnn_dist.kernels.vector import load, splat, zeros32
from gnn_dist.rng import draw, node_state

NORMS = {"none": 0, "layer": 1, "rms": 2}
BLOCK = 512  # rows that share one partial sum of the gain's and shift's gradient
DROP_LANES = 4  # dropout takes sixteen bits of a draw a column


def mask_words(width: int) -> int:
    """uint32 words of a row's mask."""
    return (width + 31) // 32


def _mark(y, d, threshold, words):
    """Set in ``words`` the columns that are not below ``threshold``; returns how many."""
    raise AssertionError("compiled code only")


@overload(_mark)
def _mark_typed(y, d, threshold, words):
    if y.dtype == types.float32:

        def mark(y, d, threshold, words):
            level = splat(zeros32(y), threshold)
            like = zeros32(y)
            count = np.int64(0)
            full = d // 8
            for w in range(words.size):
                word = np.uint32(0)
                for b in range(4 * w, min(4 * w + 4, full)):
                    lanes = not_below8(load(like, y, 8 * b), level)
                    word |= lanes << np.uint32(8 * (b - 4 * w))
                for c in range(max(8 * full, 32 * w), min(d, 32 * w + 32)):
                    if not y[c] < threshold:
                        word |= np.uint32(1) << np.uint32(c - 32 * w)
                words[w] = word
                count += popcount(word)
            return count

    else:

        def mark(y, d, threshold, words):
            count = np.int64(0)
            for w in range(words.size):
                word = np.uint32(0)
                for c in range(32 * w, min(d, 32 * w + 32)):
                    if not y[c] < threshold:
                        word |= np.uint32(1) << np.uint32(c - 32 * w)
                words[w] = word
                count += popcount(word)
            return count

    return mark


@numba.njit(nogil=True, error_model="numpy")
def _choose(y, d, k, words, spare, guess):
    """Mark the k largest of ``y[:d]`` in ``words``; ``spare`` has as many words.

    Returns a threshold, a good first guess for a row like this one. The choice does not depend on
    the guess.
    """
    t = guess
    step = y.dtype.type(0.125)
    low = y.dtype.type(-np.inf)
    high = y.dtype.type(np.inf)
    above_low, above_high = np.int64(d), np.int64(0)
    some_high = False
    steps = 0
    while True:
        count = _mark(y, d, t, words)
        if count == k:
            return t
        if count > k:
            low = t
            above_low = count
        else:
            high = t
            above_high = count
            some_high = True
        if not some_high:
            t = low + step
            step += step
        elif low == -np.inf:
            t = high - step
            step += step
        else:
            # as if values lay evenly between, at first: a step less than halving
            share = y.dtype.type(0.5)
            if steps < 6:
                share = y.dtype.type(above_low - k) / y.dtype.type(above_low - above_high)
                share = min(max(share, y.dtype.type(0.1)), y.dtype.type(0.9))
            steps += 1
            t = low + (high - low) * share
            if not (low < t < high):
                t = low + (high - low) * y.dtype.type(0.5)
        if not (low < t < high):
            break
    # Equal values around the threshold (or values that are not numbers): those above it, then the
    # equal ones from the lowest column on.
    kept = _mark(y, d, high, spare) if some_high else np.int64(0)
    for w in range(words.size):
        words[w] = spare[w] if some_high else np.uint32(0)
    for turn in range(2):
        for c in range(d):
            bit = np.uint32(1) << np.uint32(c & 31)
            if kept < k and not words[c >> 5] & bit and (turn == 1 or not y[c] < low):
                words[c >> 5] |= bit
                kept += 1
    return guess


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def normalise_row(u, i, norm, eps, gain, shift, y, stats):
    """``y = norm(u[i]) * gain + shift``; ``stats[i] = (mean, 1 / deviation)``."""
    d = u.shape[1]
    one = u.dtype.type(1)
    mean = u.dtype.type(0)
    inverse = one
    if norm == 1:
        total = u.dtype.type(0)
        for c in range(d):
            total += u[i, c]
        mean = total / u.dtype.type(d)
    if norm != 0:
        square = u.dtype.type(0)
        for c in range(d):
            centred = u[i, c] - mean
            square += centred * centred
        inverse = one / np.sqrt(square / u.dtype.type(d) + eps)
    stats[i, 0] = mean
    stats[i, 1] = inverse
    for c in range(d):
        y[c] = (u[i, c] - mean) * inverse * gain[c] + shift[c]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def select(
    lo, hi, u, norm, eps, gain, shift, k, key, ids, drop, keep_scale, given, stats, values, mask
):
    """Rows ``lo .. hi - 1``: normalise ``u`` (float[N, d]), keep k, write ``values`` and ``mask``.

    norm, eps: as ``NORMS``; gain, shift: float[d].
    key, ids, drop, keep_scale: dropout. A kept column goes with probability drop / 65536, drawn
        from the key, the row's original id and the column; the others grow by ``keep_scale``.
    given: ``mask`` already says what is kept, dropout included; nothing is chosen.
    stats: float[N, 2] out, for the gradient. values: float[N, k] out. mask: uint32[N, words] out.
    """
    d = u.shape[1]
    num_words = mask.shape[1]
    y = np.empty(d, u.dtype)
    words = np.empty(num_words, np.uint32)
    spare = np.empty(num_words, np.uint32)
    guess = u.dtype.type(0.5)
    for i in range(lo, hi):
        normalise_row(u, i, norm, eps, gain, shift, y, stats)
        if given:
            for w in range(num_words):
                words[w] = mask[i, w]
        else:
            if k < d:
                found = _choose(y, d, k, words, spare, guess)
                guess += (found - guess) * u.dtype.type(0.125)
            else:
                for w in range(num_words):
                    width = min(32, d - 32 * w)
                    words[w] = np.uint32(0xFFFFFFFF) >> np.uint32(32 - width)
            if drop > 0:
                state = node_state(key, ids[i])
                bits = np.uint64(0)
                for c in range(d):
                    if c % 4 == 0:
                        bits = draw(state, c // 4)
                    if np.int64(bits & np.uint64(0xFFFF)) < drop:
                        words[c >> 5] &= ~(np.uint32(1) << np.uint32(c & 31))
                    bits >>= np.uint64(16)
            for w in range(num_words):
                mask[i, w] = words[w]
        at = 0
        for w in range(num_words):
            word = words[w]
            while word != 0:
                values[i, at] = y[32 * w + lowest_bit(word)] * keep_scale
                at += 1
                word &= word - np.uint32(1)


@numba.njit(cache=True, nogil=True)
def unpack(lo, hi, values, mask, out, stride, offset, d):
    """Rows ``lo .. hi - 1`` in full: ``out[i * stride + offset + column]``, out one-dimensional."""
    for i in range(lo, hi):
        row = i * stride + offset
        for c in range(d):
            out[row + c] = 0
        at = 0
        for w in range(mask.shape[1]):
            word = mask[i, w]
            while word != 0:
                out[row + 32 * w + lowest_bit(word)] = values[i, at]
                at += 1
                word &= word - np.uint32(1)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def select_backward(lo, hi, u, norm, gain, keep_scale, stats, mask, grad, grad_u, partial):
    """Blocks ``lo .. hi - 1`` of ``BLOCK`` rows: the gradient through ``select``.

    grad: float[N, d], of the kept values in their columns (what stands in other columns is not
        read as zero, it is masked here). grad_u: float[N, d], added to.
    partial: float[blocks, 2, d] out, the block's part of the gradient of gain and shift.
    """
    n, d = u.shape
    zero = u.dtype.type(0)
    g = np.empty(d, u.dtype)
    x = np.empty(d, u.dtype)
    flags = np.empty(d, u.dtype)
    for block in range(lo, hi):
        partial[block] = 0
        gain_part = partial[block, 0]
        shift_part = partial[block, 1]
        for i in range(block * BLOCK, min(n, (block + 1) * BLOCK)):
            mean = stats[i, 0]
            inverse = stats[i, 1]
            for w in range(mask.shape[1]):
                word = mask[i, w]
                for c in range(32 * w, min(d, 32 * w + 32)):
                    flags[c] = u.dtype.type((word >> np.uint32(c - 32 * w)) & np.uint32(1))
            first = zero
            second = zero
            for c in range(d):
                through = grad[i, c] * flags[c] * keep_scale
                x[c] = (u[i, c] - mean) * inverse
                gain_part[c] += through * x[c]
                shift_part[c] += through
                g[c] = through * gain[c]
                first += g[c]
                second += g[c] * x[c]
            if norm == 0:
                for c in range(d):
                    grad_u[i, c] += g[c]
                continue
            second /= u.dtype.type(d)
            first = first / u.dtype.type(d) if norm == 1 else zero
            for c in range(d):
                grad_u[i, c] += inverse * (g[c] - first - x[c] * second)


def warmup() -> None:
    """Compile for float32."""
    u = np.zeros((2, 8), np.float32)
    row, stats = np.ones(8, np.float32), np.zeros((2, 2), np.float32)
    values, mask = np.zeros((2, 2), np.float32), np.zeros((2, 1), np.uint32)
    one = np.float32(1)
    ids = np.arange(2)
    key = np.uint64(1)
    select(0, 2, u, 1, one, row, row, 2, key, ids, 0, one, False, stats, values, mask)
    unpack(0, 2, values, mask, np.zeros(16, np.float32), 8, 0, 8)
    partial = np.zeros((1, 2, 8), np.float32)
    select_backward(0, 1, u, 1, row, one, stats, mask, u, u.copy(), partial)
