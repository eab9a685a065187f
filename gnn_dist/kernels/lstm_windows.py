"""Two stacked LSTMs over windows side by side, forward and backward.

For window ``b``, node ``n`` and step ``k``, with ``p = projected[n, slot[k, b]]`` (the input half
of the first layer's four gates, computed once a snapshot), gates in the order i, f, g, o:

    first layer:   gates = p + h1 W1
    second layer:  gates = bias + [h1 | h2] W2
    c = f · c + i · g,    h = o · tanh(c)

Rows are taken in chunks that stay in cache for all steps of both layers; see ``gru_windows``.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.pointwise import logistic_add, tanh_add


@njit(inline="always")
def _gates(buffer, at, other, start, hidden):
    logistic_add(buffer, at, other, start, 2 * hidden)
    tanh_add(buffer, at + 2 * hidden, other, start + 2 * hidden, hidden)
    logistic_add(buffer, at + 3 * hidden, other, start + 3 * hidden, hidden)


@njit(inline="always")
def _state(gates, at, before, after, squashed, zero, q, hidden):
    """``after = f · before + i · g``; ``squashed`` holds tanh of it."""
    for j in range(hidden):
        i, f, g = gates[at + j], gates[at + hidden + j], gates[at + 2 * hidden + j]
        c = f * before[q, j] + i * g
        after[q, j] = c
        squashed[q * hidden + j] = c
    tanh_add(squashed, q * hidden, zero, 0, hidden)


@njit(cache=True, nogil=True)
def _forward(
    first, rows, windows, snapshots, slots, projected, start, w1, w2, bias, hs, cs, gates, tmp
):
    """Steps of some rows. ``hs`` [steps + 1, R, 2H] holds h1 and h2 side by side, ``cs``
    [2, steps + 1, R, H], ``gates`` [2, steps, R, 4H], all kept for the backward pass."""
    steps, hidden = slots.shape[0], w1.shape[0]
    g = 4 * hidden
    flat = projected.reshape(-1)
    stride = projected.shape[2]
    squashed = tmp[: rows * hidden]
    zero = tmp[rows * hidden : (rows + 1) * hidden]
    own = tmp[(rows + 1) * hidden : (rows + 1) * hidden + rows * hidden].reshape(rows, hidden)
    pair = tmp[(2 * rows + 1) * hidden : (4 * rows + 1) * hidden].reshape(rows, 2 * hidden)
    zero[:] = 0
    for q in range(rows):
        for j in range(hidden):
            hs[0, q, j] = start[0, first + q, j] if start.size else 0
            hs[0, q, hidden + j] = start[1, first + q, j] if start.size else 0
            cs[0, 0, q, j] = start[2, first + q, j] if start.size else 0
            cs[1, 0, q, j] = start[3, first + q, j] if start.size else 0
    for k in range(steps):
        g1, g2 = gates[0, k][:rows], gates[1, k][:rows]
        if k == 0 and start.size == 0:
            g1[:] = 0
        else:
            for q in range(rows):
                for j in range(hidden):
                    own[q, j] = hs[k, q, j]
            np.dot(own, w1, g1)
        line = g1.reshape(-1)
        for q in range(rows):
            node, b = divmod(first + q, windows)
            _gates(line, q * g, flat, (node * snapshots + slots[k, b]) * stride, hidden)
            _state(line, q * g, cs[0, k], cs[0, k + 1], squashed, zero, q, hidden)
            for j in range(hidden):
                h = g1[q, 3 * hidden + j] * squashed[q * hidden + j]
                hs[k + 1, q, j] = h
                pair[q, j] = h
                pair[q, hidden + j] = hs[k, q, hidden + j]
        np.dot(pair, w2, g2)
        line = g2.reshape(-1)
        for q in range(rows):
            _gates(line, q * g, bias, 0, hidden)
            _state(line, q * g, cs[1, k], cs[1, k + 1], squashed, zero, q, hidden)
            for j in range(hidden):
                hs[k + 1, q, hidden + j] = g2[q, 3 * hidden + j] * squashed[q * hidden + j]


@njit(inline="always")
def _cell_back(gates, before, after, dh, shift, dc, d_gates, squashed, zero, rows, hidden):
    """Gradient of the gates' inputs from that of h (``dh`` columns from ``shift``) and c."""
    one = zero[0] + 1
    for q in range(rows):
        for j in range(hidden):
            squashed[j] = after[q, j]
        tanh_add(squashed, 0, zero, 0, hidden)
        for j in range(hidden):
            i, f = gates[q, j], gates[q, hidden + j]
            g, o = gates[q, 2 * hidden + j], gates[q, 3 * hidden + j]
            t = squashed[j]
            d = dh[q, shift + j]
            c = dc[q, j] + d * o * (one - t * t)
            d_gates[q, j] = c * g * i * (one - i)
            d_gates[q, hidden + j] = c * before[q, j] * f * (one - f)
            d_gates[q, 2 * hidden + j] = c * i * (one - g * g)
            d_gates[q, 3 * hidden + j] = d * t * o * (one - o)
            dc[q, j] = c * f


@njit(cache=True, nogil=True)
def _backward(
    first, rows, windows, slots, start, w1_t, w2_t, hs, cs, gates, d_out, every, d_projected,
    d_start, d_w1, d_w2, d_bias, tmp,
):  # fmt: skip
    steps, hidden = slots.shape[0], w1_t.shape[1]
    size = rows * hidden
    dh = tmp[: 2 * size].reshape(rows, 2 * hidden)
    dc1 = tmp[2 * size : 3 * size].reshape(rows, hidden)
    dc2 = tmp[3 * size : 4 * size].reshape(rows, hidden)
    d_gates = tmp[4 * size : 8 * size].reshape(rows, 4 * hidden)
    pair = tmp[8 * size : 10 * size].reshape(rows, 2 * hidden)
    back = tmp[10 * size : 12 * size].reshape(rows, 2 * hidden)
    own = tmp[12 * size : 13 * size].reshape(rows, hidden)
    back1 = tmp[13 * size : 14 * size].reshape(rows, hidden)
    squashed = np.empty(hidden, tmp.dtype)
    zero = np.zeros(hidden, tmp.dtype)
    dh[:] = 0
    dc1[:] = 0
    dc2[:] = 0
    for k in range(steps - 1, -1, -1):
        if every or k == steps - 1:
            out = d_out[k if every else 0]
            for q in range(rows):
                for j in range(2 * hidden):
                    dh[q, j] += out[first + q, j]
        _cell_back(
            gates[1, k], cs[1, k], cs[1, k + 1], dh, hidden, dc2, d_gates, squashed, zero, rows,
            hidden,
        )  # fmt: skip
        for q in range(rows):
            for j in range(4 * hidden):
                d_bias[j] += d_gates[q, j]
            for j in range(hidden):
                pair[q, j] = hs[k + 1, q, j]
                pair[q, hidden + j] = hs[k, q, hidden + j]
        d_w2 += np.dot(pair.T, d_gates)
        np.dot(d_gates, w2_t, back)
        for q in range(rows):
            for j in range(hidden):
                dh[q, j] += back[q, j]
                dh[q, hidden + j] = back[q, hidden + j]
        _cell_back(
            gates[0, k], cs[0, k], cs[0, k + 1], dh, 0, dc1, d_gates, squashed, zero, rows, hidden
        )
        for q in range(rows):
            node, b = divmod(first + q, windows)
            target = d_projected[node, slots[k, b]]
            for j in range(4 * hidden):
                target[j] += d_gates[q, j]
        if k > 0 or start.size:
            for q in range(rows):
                for j in range(hidden):
                    own[q, j] = hs[k, q, j]
            d_w1 += np.dot(own.T, d_gates)
            np.dot(d_gates, w1_t, back1)
            for q in range(rows):
                for j in range(hidden):
                    dh[q, j] = back1[q, j]
    if d_start.size:
        for q in range(rows):
            for j in range(hidden):
                d_start[0, first + q, j] = dh[q, j]
                d_start[1, first + q, j] = dh[q, hidden + j]
                d_start[2, first + q, j] = dc1[q, j]
                d_start[3, first + q, j] = dc2[q, j]


@njit(cache=True, nogil=True)
def forward_parts(
    lo, hi, nodes, parts, chunk, slots, projected, start, w1, w2, bias, every, out, last,
    kept_h, kept_c, kept_g,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the forward pass.

    As ``gru_windows.forward_parts``, with ``projected`` float[N, S, at least 4H], ``start``
    float[4, N · B, H] (h1, h2, c1, c2) or empty, ``w1`` float[H, 4H], ``w2`` float[2H, 4H],
    ``bias`` float[4H], ``out`` float[1 or steps, N · B, 2H] (h1 and h2 side by side), ``last``
    float[2, N · B, H] the final c1 and c2, and what is kept: float[chunks, steps + 1, R, 2H],
    float[chunks, 2, steps + 1, R, H], float[chunks, 2, steps, R, 4H], or empty.
    """
    steps, windows = slots.shape
    hidden, snapshots = w1.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, 2 * hidden), projected.dtype)
    cs_own = np.empty((own * 2, steps + 1, most, hidden), projected.dtype)
    gates_own = np.empty((own * 2, steps, most, 4 * hidden), projected.dtype)
    tmp = np.empty((4 * most + 1) * hidden, projected.dtype)
    per_part = -(-nodes // parts)
    chunks_a_part = -(-per_part // chunk)
    for part in range(lo, hi):
        end = min(nodes, (part + 1) * per_part)
        number = part * chunks_a_part
        for node in range(part * per_part, end, chunk):
            rows = (min(end, node + chunk) - node) * windows
            first = node * windows
            hs = kept_h[number] if keep else hs_own
            cs = kept_c[number] if keep else cs_own
            gates = kept_g[number] if keep else gates_own
            _forward(
                first, rows, windows, snapshots, slots, projected, start, w1, w2, bias, hs, cs,
                gates, tmp,
            )  # fmt: skip
            if every:
                for k in range(steps):
                    out[k, first : first + rows] = hs[k + 1, :rows]
            else:
                out[0, first : first + rows] = hs[steps, :rows]
            last[0, first : first + rows] = cs[0, steps, :rows]
            last[1, first : first + rows] = cs[1, steps, :rows]
            number += 1


@njit(cache=True, nogil=True)
def backward_parts(
    lo, hi, nodes, parts, chunk, slots, projected, start, w1, w2, bias, w1_t, w2_t, every, d_out,
    kept_h, kept_c, kept_g, d_projected, d_start, d_w1, d_w2, d_bias,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the backward pass; gradients of the weights are a part's own."""
    steps, windows = slots.shape
    hidden, snapshots = w1.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, 2 * hidden), projected.dtype)
    cs_own = np.empty((own * 2, steps + 1, most, hidden), projected.dtype)
    gates_own = np.empty((own * 2, steps, most, 4 * hidden), projected.dtype)
    tmp = np.empty((14 * most + 1) * hidden, projected.dtype)
    per_part = -(-nodes // parts)
    chunks_a_part = -(-per_part // chunk)
    for part in range(lo, hi):
        end = min(nodes, (part + 1) * per_part)
        number = part * chunks_a_part
        d_w1[part] = 0
        d_w2[part] = 0
        d_bias[part] = 0
        for node in range(part * per_part, end, chunk):
            rows = (min(end, node + chunk) - node) * windows
            first = node * windows
            hs = kept_h[number] if keep else hs_own
            cs = kept_c[number] if keep else cs_own
            gates = kept_g[number] if keep else gates_own
            if not keep:
                _forward(
                    first, rows, windows, snapshots, slots, projected, start, w1, w2, bias, hs,
                    cs, gates, tmp,
                )  # fmt: skip
            _backward(
                first, rows, windows, slots, start, w1_t, w2_t, hs, cs, gates, d_out, every,
                d_projected, d_start, d_w1[part], d_w2[part], d_bias[part], tmp,
            )  # fmt: skip
            number += 1
