"""The recurrence of a gated unit over windows side by side, forward and backward.

For window ``b``, node ``n`` and step ``k``, with ``p = projected[n, slot[k, b]]`` (the input half
of all three gates, computed once a snapshot) and the state ``h``:

    z, r = logistic(p[0:H] + h Wz + bz), logistic(p[H:2H] + h Wr + br)
    c = tanh(p[2H:3H] + (r · h) Wc + bc)
    h = z · h + (1 - z) · c

This is the unit of T-GCN (Zhao et al., T-ITS 2020). Rows are taken in chunks that stay in cache for
all steps; a chunk's states are kept for the backward pass or computed again there. A part (a fixed
range of nodes) has its own weight gradients, so sums do not depend on the number of threads.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.pointwise import add_to, ask_for, logistic_add, put, tanh_add
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


@njit(cache=True)
def _mix_block(like, lanes, zr, at, cand, c, h, before, after, gates, g, hidden, done):
    """``after = z · h + (1 - z) · c``, and the three gates side by side."""
    one, negative = splat(like, 1.0), splat(like, -1.0)
    while done + lanes <= hidden:
        z = load(like, zr, at + done)
        new = load(like, cand, c + done)
        old = multiply(z, load(like, h, before + done))
        store(after, before + done, fma(fma(negative, z, one), new, old))
        store(gates, g + done, z)
        store(gates, g + hidden + done, load(like, zr, at + hidden + done))
        store(gates, g + 2 * hidden + done, new)
        done += lanes
    return done


@njit(cache=True)
def _mix(zr, at, cand, c, h, before, after, gates, g, hidden):
    done = _mix_block(
        zeros32(zr), lanes32(zr), zr, at, cand, c, h, before, after, gates, g, hidden, 0
    )
    _mix_block(zeros1(zr), 1, zr, at, cand, c, h, before, after, gates, g, hidden, done)


@njit(cache=True)
def _gated_block(like, lanes, out, o, gates, g, h, at, hidden, done):
    """``out = r · h``, with r the second of the gates at ``g``."""
    while done + lanes <= hidden:
        r = load(like, gates, g + hidden + done)
        store(out, o + done, multiply(r, load(like, h, at + done)))
        done += lanes
    return done


@njit(cache=True)
def _gated(out, o, gates, g, h, at, hidden):
    done = _gated_block(zeros32(out), lanes32(out), out, o, gates, g, h, at, hidden, 0)
    _gated_block(zeros1(out), 1, out, o, gates, g, h, at, hidden, done)


@njit(cache=True)
def _unmix_block(like, lanes, gates, g, h, dh, d_c, at, d_zr, d, hidden, done):
    """Gradients of c's and z's inputs, and the direct part of that of h."""
    one, negative = splat(like, 1.0), splat(like, -1.0)
    while done + lanes <= hidden:
        z = load(like, gates, g + done)
        c = load(like, gates, g + 2 * hidden + done)
        out = load(like, dh, at + done)
        rest = fma(negative, z, one)
        slope = fma(multiply(negative, c), c, one)
        store(d_c, at + done, multiply(multiply(out, rest), slope))
        apart = fma(negative, c, load(like, h, at + done))
        store(d_zr, d + done, multiply(multiply(out, apart), multiply(z, rest)))
        store(dh, at + done, multiply(out, z))
        done += lanes
    return done


@njit(cache=True)
def _unmix(gates, g, h, dh, d_c, at, d_zr, d, hidden):
    done = _unmix_block(
        zeros32(gates), lanes32(gates), gates, g, h, dh, d_c, at, d_zr, d, hidden, 0
    )
    _unmix_block(zeros1(gates), 1, gates, g, h, dh, d_c, at, d_zr, d, hidden, done)


@njit(cache=True)
def _ungate_block(like, lanes, gates, g, h, dh, d_rh, at, d_zr, d, hidden, done):
    """Gradient of r's input, and of h through r · h."""
    one, negative = splat(like, 1.0), splat(like, -1.0)
    while done + lanes <= hidden:
        r = load(like, gates, g + hidden + done)
        out = load(like, d_rh, at + done)
        slope = multiply(r, fma(negative, r, one))
        store(d_zr, d + done, multiply(multiply(out, load(like, h, at + done)), slope))
        store(dh, at + done, fma(out, r, load(like, dh, at + done)))
        done += lanes
    return done


@njit(cache=True)
def _ungate(gates, g, h, dh, d_rh, at, d_zr, d, hidden):
    done = _ungate_block(
        zeros32(gates), lanes32(gates), gates, g, h, dh, d_rh, at, d_zr, d, hidden, 0
    )
    _ungate_block(zeros1(gates), 1, gates, g, h, dh, d_rh, at, d_zr, d, hidden, done)


@njit(inline="always")
def _forward(
    first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, bias, hs, gates, tmp
):
    """Steps of the rows ``first .. first + rows - 1`` (row = node · windows + window).

    ``hs`` [steps + 1, R, H] receives the states, ``gates`` [steps, R, 3H] z, r and c.
    """
    steps, hidden = slots.shape[0], w_c.shape[0]
    g, two = 3 * hidden, 2 * hidden
    for q in range(rows):
        for j in range(hidden):
            hs[0, q, j] = start[first + q, j] if start.size else 0
    zr = tmp[: rows * two].reshape(rows, two)
    rh = tmp[rows * two : rows * 3 * hidden].reshape(rows, hidden)
    cand = tmp[rows * 3 * hidden : rows * 4 * hidden].reshape(rows, hidden)
    flat, p_zr, p_rh, p_cand = pointer(projected), pointer(zr), pointer(rh), pointer(cand)
    fixed, p_w_zr, p_w_c = pointer(bias), pointer(w_zr), pointer(w_c)
    for k in range(steps):
        still = k == 0 and start.size == 0
        now, after, kept = pointer(hs[k]), pointer(hs[k + 1]), pointer(gates[k])
        if still:
            zr[:] = 0
            cand[:] = 0
        else:
            product(rows, two, hidden, now, 0, hidden, 1, p_w_zr, 0, two, p_zr, 0, two, True)
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at = (node * snapshots + slots[k, b]) * g
            if b == windows - 1 and k + 1 < steps:
                ask_for(flat, (node * snapshots + slots[k + 1, b]) * g, g)
            add_to(p_zr, q * two, fixed, 0, two)
            logistic_add(p_zr, q * two, flat, at, two)
            _gated(p_rh, q * hidden, p_zr, q * two, now, q * hidden, hidden)
        if not still:
            product(
                rows, hidden, hidden, p_rh, 0, hidden, 1, p_w_c, 0, hidden, p_cand, 0, hidden, True
            )
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at = (node * snapshots + slots[k, b]) * g + two
            add_to(p_cand, q * hidden, fixed, two, hidden)
            tanh_add(p_cand, q * hidden, flat, at, hidden)
            _mix(p_zr, q * two, p_cand, q * hidden, now, q * hidden, after, kept, q * g, hidden)


@njit(inline="always")
def _backward(
    first, rows, windows, snapshots, slots, fresh, start, w_zr_t, w_c_t, hs, gates, d_out, every,
    d_projected, d_start, d_w_zr, d_w_c, d_bias, tmp,
):  # fmt: skip
    steps, hidden = slots.shape[0], w_c_t.shape[0]
    g, two = 3 * hidden, 2 * hidden
    dh = tmp[: rows * hidden].reshape(rows, hidden)
    d_c = tmp[rows * hidden : rows * two].reshape(rows, hidden)
    d_rh = tmp[rows * two : rows * 3 * hidden].reshape(rows, hidden)
    rh = tmp[rows * 3 * hidden : rows * 4 * hidden].reshape(rows, hidden)
    d_zr = tmp[rows * 4 * hidden : rows * 6 * hidden].reshape(rows, two)
    p_dh, p_dc, p_drh, p_rh = pointer(dh), pointer(d_c), pointer(d_rh), pointer(rh)
    p_dzr, target, p_bias = pointer(d_zr), pointer(d_projected), pointer(d_bias)
    back_zr, back_c, p_w_zr, p_w_c = (
        pointer(w_zr_t), pointer(w_c_t), pointer(d_w_zr), pointer(d_w_c),
    )  # fmt: skip
    dh[:] = 0
    for k in range(steps - 1, -1, -1):
        still = k == 0 and start.size == 0
        if every or k == steps - 1:
            out = pointer(d_out[k if every else 0])
            add_to(p_dh, 0, out, first * hidden, rows * hidden)
        h, gate = pointer(hs[k]), pointer(gates[k])
        for q in range(rows):
            at = q * hidden
            _unmix(gate, q * g, h, p_dh, p_dc, at, p_dzr, q * two, hidden)
            _gated(p_rh, at, gate, q * g, h, at, hidden)
        if still:
            d_zr[:, hidden:] = 0
        else:
            product(
                rows, hidden, hidden, p_dc, 0, hidden, 1, back_c, 0, hidden, p_drh, 0, hidden, True
            )
            for q in range(rows):
                at = q * hidden
                _ungate(gate, q * g, h, p_dh, p_drh, at, p_dzr, q * two + hidden, hidden)
            product(rows, hidden, two, p_dzr, 0, two, 1, back_zr, 0, hidden, p_dh, 0, hidden, False)
            product(hidden, two, rows, h, 0, 1, hidden, p_dzr, 0, two, p_w_zr, 0, two, False)
            product(
                hidden, hidden, rows, p_rh, 0, 1, hidden, p_dc, 0, hidden, p_w_c, 0, hidden, False
            )
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at = (node * snapshots + slots[k, b]) * g
            add_to(p_bias, 0, p_dzr, q * two, two)
            add_to(p_bias, two, p_dc, q * hidden, hidden)
            put(target, at, p_dzr, q * two, two, fresh[k, b])
            put(target, at + two, p_dc, q * hidden, hidden, fresh[k, b])
    if d_start.size:
        for q in range(rows):
            for j in range(hidden):
                d_start[first + q, j] = dh[q, j]


@njit(cache=True, nogil=True)
def forward_parts(
    lo, hi, nodes, parts, chunk, slots, projected, start, w_zr, w_c, bias, every, out, kept_h,
    kept_g,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the forward pass.

    Args:
        nodes: number of nodes; part ``i`` holds ``i · nodes // parts`` up to the next.
        chunk: nodes a chunk.
        slots: int64[steps, B].
        projected: float[N, S, 3H].
        start: float[N · B, H], or empty for zeros.
        w_zr, w_c, bias: float[H, 2H], float[H, H], float[3H].
        every: return the state after every step.
        out: float[1 or steps, N · B, H].
        kept_h, kept_g: float[chunks, steps + 1, R, H] and [chunks, steps, R, 3H] to keep, or empty.
    """
    steps, windows = slots.shape
    hidden, snapshots = w_c.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, hidden), projected.dtype)
    gates_own = np.empty((own * steps, most, 3 * hidden), projected.dtype)
    tmp = np.empty(most * 4 * hidden, projected.dtype)
    per_part = -(-nodes // parts)
    chunks_a_part = -(-per_part // chunk)
    for part in range(lo, hi):
        end = min(nodes, (part + 1) * per_part)
        number = part * chunks_a_part
        for node in range(part * per_part, end, chunk):
            rows = (min(end, node + chunk) - node) * windows
            first = node * windows
            hs = kept_h[number] if keep else hs_own
            gates = kept_g[number] if keep else gates_own
            _forward(
                first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, bias, hs,
                gates, tmp,
            )  # fmt: skip
            if every:
                for k in range(steps):
                    out[k, first : first + rows] = hs[k + 1, :rows]
            else:
                out[0, first : first + rows] = hs[steps, :rows]
            number += 1


@njit(cache=True, nogil=True)
def backward_parts(
    lo, hi, nodes, parts, chunk, slots, fresh, projected, start, w_zr, w_c, bias, w_zr_t, w_c_t,
    every, d_out, kept_h, kept_g, d_projected, d_start, d_w_zr, d_w_c, d_bias,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the backward pass; arguments as in ``forward_parts``.

    ``fresh``: bool[steps, B], whether a window's use of a snapshot is the first on the way back:
    ``d_projected`` is written there and added to elsewhere. ``d_w_zr`` float[parts, H, 2H],
    ``d_w_c`` float[parts, H, H] and ``d_bias`` float[parts, 3H] hold the gradients of each part.
    """
    steps, windows = slots.shape
    hidden, snapshots = w_c.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, hidden), projected.dtype)
    gates_own = np.empty((own * steps, most, 3 * hidden), projected.dtype)
    tmp = np.empty(most * 6 * hidden, projected.dtype)
    per_part = -(-nodes // parts)
    chunks_a_part = -(-per_part // chunk)
    for part in range(lo, hi):
        end = min(nodes, (part + 1) * per_part)
        number = part * chunks_a_part
        d_w_zr[part] = 0
        d_w_c[part] = 0
        d_bias[part] = 0
        for node in range(part * per_part, end, chunk):
            rows = (min(end, node + chunk) - node) * windows
            first = node * windows
            hs = kept_h[number] if keep else hs_own
            gates = kept_g[number] if keep else gates_own
            if not keep:
                _forward(
                    first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, bias, hs,
                    gates, tmp,
                )  # fmt: skip
            _backward(
                first, rows, windows, snapshots, slots, fresh, start, w_zr_t, w_c_t, hs, gates,
                d_out, every, d_projected, d_start, d_w_zr[part], d_w_c[part], d_bias[part], tmp,
            )  # fmt: skip
            number += 1
