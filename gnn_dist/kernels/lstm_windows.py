"""Two stacked LSTMs over windows side by side, forward and backward.

For window ``b``, node ``n`` and step ``k``, with ``p = projected[n, slot[k, b]]`` (the input half
of the first layer's four gates, computed once a snapshot), gates in the order i, f, g, o:

    first layer:   gates = p + h1 W1 + bias1
    second layer:  gates = [h1 | h2] W2 + bias2
    c = f · c + i · g,    h = o · tanh(c)

Rows are taken in chunks that stay in cache for all steps of both layers; see ``gru_windows``.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.pointwise import add_to, ask_for, copy_to, logistic_add, put, tanh_add
from gnn_dist.kernels.product import product
from gnn_dist.kernels.vector import (
    fma,
    lanes32,
    load,
    multiply,
    pointer,
    splat,
    store,
    zeros1,
    zeros32,
)

# Arithmetic of a row is done on short vectors through pointers: an array that is handed to a helper
# costs atomic reference counts at every row, and loops over this many arrays stay scalar.


@njit(inline="always")
def _gates(gates, at, other, start, hidden):
    logistic_add(gates, at, other, start, 2 * hidden)
    tanh_add(gates, at + 2 * hidden, other, start + 2 * hidden, hidden)
    logistic_add(gates, at + 3 * hidden, other, start + 3 * hidden, hidden)


@njit(cache=True)
def _cells_block(like, lanes, gates, at, before, b, after, a, squashed, s, hidden, done):
    """``after = f · before + i · g``, twice: one copy is squashed next."""
    while done + lanes <= hidden:
        i = load(like, gates, at + done)
        f = load(like, gates, at + hidden + done)
        g = load(like, gates, at + 2 * hidden + done)
        c = fma(f, load(like, before, b + done), multiply(i, g))
        store(after, a + done, c)
        store(squashed, s + done, c)
        done += lanes
    return done


@njit(cache=True)
def _outputs_block(like, lanes, gates, at, squashed, s, out, o, hidden, done):
    """``out = o · tanh(c)``."""
    while done + lanes <= hidden:
        value = load(like, gates, at + 3 * hidden + done)
        store(out, o + done, multiply(value, load(like, squashed, s + done)))
        done += lanes
    return done


@njit(cache=True)
def _cells_back_block(
    like, lanes, gates, at, before, b, squashed, s, dh, h, dc, q, d_gates, d, hidden, done,
):  # fmt: skip
    """Gradient of the gates' inputs from that of h and c; ``dc`` becomes that of the c before."""
    one, negative = splat(like, 1.0), splat(like, -1.0)
    while done + lanes <= hidden:
        i = load(like, gates, at + done)
        f = load(like, gates, at + hidden + done)
        g = load(like, gates, at + 2 * hidden + done)
        o = load(like, gates, at + 3 * hidden + done)
        t = load(like, squashed, s + done)
        out = load(like, dh, h + done)
        slope = fma(multiply(negative, t), t, one)
        c = fma(multiply(out, o), slope, load(like, dc, q + done))
        d_i = multiply(multiply(c, g), multiply(i, fma(negative, i, one)))
        d_f = multiply(multiply(c, load(like, before, b + done)),
                       multiply(f, fma(negative, f, one)))  # fmt: skip
        d_g = multiply(multiply(c, i), fma(multiply(negative, g), g, one))
        d_o = multiply(multiply(out, t), multiply(o, fma(negative, o, one)))
        store(d_gates, d + done, d_i)
        store(d_gates, d + hidden + done, d_f)
        store(d_gates, d + 2 * hidden + done, d_g)
        store(d_gates, d + 3 * hidden + done, d_o)
        store(dc, q + done, multiply(c, f))
        done += lanes
    return done


@njit(cache=True)
def _cells(gates, at, before, b, after, a, squashed, s, hidden):
    done = _cells_block(
        zeros32(gates), lanes32(gates), gates, at, before, b, after, a, squashed, s, hidden, 0
    )
    _cells_block(zeros1(gates), 1, gates, at, before, b, after, a, squashed, s, hidden, done)


@njit(cache=True)
def _outputs(gates, at, squashed, s, out, o, hidden):
    done = _outputs_block(zeros32(gates), lanes32(gates), gates, at, squashed, s, out, o, hidden, 0)
    _outputs_block(zeros1(gates), 1, gates, at, squashed, s, out, o, hidden, done)


@njit(cache=True)
def _cells_back(gates, at, before, b, squashed, s, dh, h, dc, q, d_gates, d, hidden):
    done = _cells_back_block(
        zeros32(gates),
        lanes32(gates),
        gates,
        at,
        before,
        b,
        squashed,
        s,
        dh,
        h,
        dc,
        q,
        d_gates,
        d,
        hidden,
        0,
    )
    _cells_back_block(
        zeros1(gates), 1, gates, at, before, b, squashed, s, dh, h, dc, q, d_gates, d, hidden, done
    )


@njit(inline="always")
def _forward(
    first, rows, windows, snapshots, slots, projected, start, w1, w2, bias, hs, cs, gates, tmp
):
    """Steps of some rows. ``hs`` [steps + 1, R, 2H] holds h1 and h2 side by side, ``cs``
    [2, steps + 1, R, H], ``gates`` [2, steps, R, 4H], all kept for the backward pass."""
    steps, hidden = slots.shape[0], w1.shape[0]
    g, two = 4 * hidden, 2 * hidden
    stride = projected.shape[2]
    squashed = pointer(tmp)
    zero = pointer(tmp[hidden:])
    tmp[:two] = 0
    flat, fixed, p_w1, p_w2 = pointer(projected), pointer(bias), pointer(w1), pointer(w2)
    for q in range(rows):
        for j in range(hidden):
            hs[0, q, j] = start[0, first + q, j] if start.size else 0
            hs[0, q, hidden + j] = start[1, first + q, j] if start.size else 0
            cs[0, 0, q, j] = start[2, first + q, j] if start.size else 0
            cs[1, 0, q, j] = start[3, first + q, j] if start.size else 0
    for k in range(steps):
        h, h_next = pointer(hs[k]), pointer(hs[k + 1])
        still = k == 0 and start.size == 0
        line, c, c_next = pointer(gates[0, k]), pointer(cs[0, k]), pointer(cs[0, k + 1])
        if still:
            gates[0, k, :rows] = 0
        else:
            product(rows, g, hidden, h, 0, two, 1, p_w1, 0, g, line, 0, g, True)
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at, cell, both = q * g, q * hidden, 2 * q * hidden
            if b == windows - 1 and k + 1 < steps:
                ask_for(flat, (node * snapshots + slots[k + 1, b]) * stride, g)
            add_to(line, at, fixed, 0, g)
            _gates(line, at, flat, (node * snapshots + slots[k, b]) * stride, hidden)
            _cells(line, at, c, cell, c_next, cell, squashed, 0, hidden)
            tanh_add(squashed, 0, zero, 0, hidden)
            _outputs(line, at, squashed, 0, h_next, both, hidden)
        line, c, c_next = pointer(gates[1, k]), pointer(cs[1, k]), pointer(cs[1, k + 1])
        product(rows, g, hidden, h_next, 0, two, 1, p_w2, 0, g, line, 0, g, True)
        if not still:
            product(rows, g, hidden, h, hidden, two, 1, p_w2, hidden * g, g, line, 0, g, False)
        for q in range(rows):
            at, cell, both = q * g, q * hidden, 2 * q * hidden + hidden
            _gates(line, at, fixed, g, hidden)
            _cells(line, at, c, cell, c_next, cell, squashed, 0, hidden)
            tanh_add(squashed, 0, zero, 0, hidden)
            _outputs(line, at, squashed, 0, h_next, both, hidden)


@njit(inline="always")
def _backward(
    first, rows, windows, slots, fresh, start, w1_t, w2_t, hs, cs, gates, d_out, every, d_projected,
    d_start, d_w1, d_w2, d_bias, tmp,
):  # fmt: skip
    steps, hidden = slots.shape[0], w1_t.shape[1]
    size = rows * hidden
    dh = tmp[: 2 * size].reshape(rows, 2 * hidden)
    dc1 = tmp[2 * size : 3 * size].reshape(rows, hidden)
    dc2 = tmp[3 * size : 4 * size].reshape(rows, hidden)
    d_gates = tmp[4 * size : 8 * size].reshape(rows, 4 * hidden)
    squashed, zero = pointer(tmp[8 * size :]), pointer(tmp[8 * size + hidden :])
    tmp[8 * size : 8 * size + 2 * hidden] = 0
    dh[:] = 0
    dc1[:] = 0
    dc2[:] = 0
    p_dh, p_dc1, p_dc2 = pointer(dh), pointer(dc1), pointer(dc2)
    p_gates, p_bias, p_w1, p_w2 = pointer(d_gates), pointer(d_bias), pointer(d_w1), pointer(d_w2)
    back1, back2 = pointer(w1_t), pointer(w2_t)
    target, snapshots = pointer(d_projected), d_projected.shape[1]
    g, two, stride = 4 * hidden, 2 * hidden, d_projected.shape[2]
    for k in range(steps - 1, -1, -1):
        h, h_next = pointer(hs[k]), pointer(hs[k + 1])
        still = k == 0 and start.size == 0
        if every or k == steps - 1:
            out = pointer(d_out[k if every else 0])
            add_to(p_dh, 0, out, first * two, rows * two)
        gate, before, after = pointer(gates[1, k]), pointer(cs[1, k]), pointer(cs[1, k + 1])
        for q in range(rows):
            cell, both = q * hidden, q * two
            copy_to(squashed, 0, after, cell, hidden)
            tanh_add(squashed, 0, zero, 0, hidden)
            _cells_back(
                gate, q * g, before, cell, squashed, 0, p_dh, both + hidden,
                p_dc2, cell, p_gates, q * g, hidden,
            )  # fmt: skip
            add_to(p_bias, g, p_gates, q * g, g)
        product(hidden, g, rows, h_next, 0, 1, two, p_gates, 0, g, p_w2, 0, g, False)
        product(rows, hidden, g, p_gates, 0, g, 1, back2, 0, two, p_dh, 0, two, False)
        if not still:
            product(hidden, g, rows, h, hidden, 1, two, p_gates, 0, g, p_w2, hidden * g, g, False)
            product(rows, hidden, g, p_gates, 0, g, 1, back2, hidden, two, p_dh, hidden, two, True)
        gate, before, after = pointer(gates[0, k]), pointer(cs[0, k]), pointer(cs[0, k + 1])
        for q in range(rows):
            node, b = divmod(first + q, windows)
            cell, both = q * hidden, q * two
            copy_to(squashed, 0, after, cell, hidden)
            tanh_add(squashed, 0, zero, 0, hidden)
            _cells_back(
                gate, q * g, before, cell, squashed, 0, p_dh, both, p_dc1,
                cell, p_gates, q * g, hidden,
            )  # fmt: skip
            at = (node * snapshots + slots[k, b]) * stride
            add_to(p_bias, 0, p_gates, q * g, g)
            put(target, at, p_gates, q * g, g, fresh[k, b])
        if not still:
            product(hidden, g, rows, h, 0, 1, two, p_gates, 0, g, p_w1, 0, g, False)
            product(rows, hidden, g, p_gates, 0, g, 1, back1, 0, hidden, p_dh, 0, two, True)
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
    ``bias`` float[2, 4H], ``out`` float[1 or steps, N · B, 2H] (h1 and h2 side by side), ``last``
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
    tmp = np.empty(2 * hidden, projected.dtype)
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
    lo, hi, nodes, parts, chunk, slots, fresh, projected, start, w1, w2, bias, w1_t, w2_t, every,
    d_out, kept_h, kept_c, kept_g, d_projected, d_start, d_w1, d_w2, d_bias,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the backward pass; gradients of the weights are a part's own, and
    ``fresh`` is as in ``gru_windows.backward_parts``."""
    steps, windows = slots.shape
    hidden, snapshots = w1.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, 2 * hidden), projected.dtype)
    cs_own = np.empty((own * 2, steps + 1, most, hidden), projected.dtype)
    gates_own = np.empty((own * 2, steps, most, 4 * hidden), projected.dtype)
    tmp = np.empty((8 * most + 2) * hidden, projected.dtype)
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
                first, rows, windows, slots, fresh, start, w1_t, w2_t, hs, cs, gates, d_out, every,
                d_projected, d_start, d_w1[part], d_w2[part], d_bias[part], tmp,
            )  # fmt: skip
            number += 1
