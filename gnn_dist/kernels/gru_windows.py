"""The recurrence of a gated unit over windows side by side, forward and backward.

For window ``b``, node ``n`` and step ``k``, with ``p = projected[n, slot[k, b]]`` (the input half
of all three gates, computed once a snapshot) and the state ``h``:

    z, r = logistic(p[0:H] + h Wz), logistic(p[H:2H] + h Wr)
    c = tanh(p[2H:3H] + (r · h) Wc)
    h = z · h + (1 - z) · c

This is the unit of T-GCN (Zhao et al., T-ITS 2020). Rows are taken in chunks that stay in cache for
all steps; a chunk's states are kept for the backward pass or computed again there. A part (a fixed
range of nodes) has its own weight gradients, so sums do not depend on the number of threads.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels.pointwise import logistic_add, tanh_add


@njit(cache=True, nogil=True)
def _forward(first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, hs, gates, tmp):
    """Steps of the rows ``first .. first + rows - 1`` (row = node · windows + window).

    ``hs`` [steps + 1, R, H] receives the states, ``gates`` [steps, R, 3H] z, r and c.
    """
    steps, hidden = slots.shape[0], w_c.shape[0]
    g = gates.shape[2]
    flat = projected.reshape(-1)
    for q in range(rows):
        for j in range(hidden):
            hs[0, q, j] = start[first + q, j] if start.size else 0
    zr = tmp[: rows * 2 * hidden]
    rh = tmp[rows * 2 * hidden : rows * 3 * hidden]
    cand = tmp[rows * 3 * hidden : rows * 4 * hidden]
    for k in range(steps):
        still = k == 0 and start.size == 0
        h = hs[k][:rows]
        if still:
            zr[:] = 0
        else:
            np.dot(h, w_zr, zr.reshape(rows, 2 * hidden))
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at = (node * snapshots + slots[k, b]) * g
            logistic_add(zr, q * 2 * hidden, flat, at, 2 * hidden)
        if still:
            cand[:] = 0
        else:
            for q in range(rows):
                for j in range(hidden):
                    rh[q * hidden + j] = zr[q * 2 * hidden + hidden + j] * h[q, j]
            np.dot(rh.reshape(rows, hidden), w_c, cand.reshape(rows, hidden))
        for q in range(rows):
            node, b = divmod(first + q, windows)
            at = (node * snapshots + slots[k, b]) * g + 2 * hidden
            tanh_add(cand, q * hidden, flat, at, hidden)
            for j in range(hidden):
                z = zr[q * 2 * hidden + j]
                c = cand[q * hidden + j]
                hs[k + 1, q, j] = z * h[q, j] + (1 - z) * c
            for j in range(2 * hidden):
                gates[k, q, j] = zr[q * 2 * hidden + j]
            for j in range(hidden):
                gates[k, q, 2 * hidden + j] = cand[q * hidden + j]


@njit(cache=True, nogil=True)
def _backward(
    first, rows, windows, snapshots, slots, start, w_zr_t, w_c_t, hs, gates, d_out, every,
    d_projected, d_start, d_w_zr, d_w_c, tmp,
):  # fmt: skip
    steps, hidden = slots.shape[0], w_c_t.shape[0]
    dh = tmp[: rows * hidden].reshape(rows, hidden)
    d_c = tmp[rows * hidden : rows * 2 * hidden].reshape(rows, hidden)
    d_rh = tmp[rows * 2 * hidden : rows * 3 * hidden].reshape(rows, hidden)
    rh = tmp[rows * 3 * hidden : rows * 4 * hidden].reshape(rows, hidden)
    d_zr = tmp[rows * 4 * hidden : rows * 6 * hidden].reshape(rows, 2 * hidden)
    back = tmp[rows * 6 * hidden : rows * 7 * hidden].reshape(rows, hidden)
    dh[:] = 0
    for k in range(steps - 1, -1, -1):
        still = k == 0 and start.size == 0
        if every or k == steps - 1:
            out = d_out[k if every else 0]
            for q in range(rows):
                for j in range(hidden):
                    dh[q, j] += out[first + q, j]
        h, gate = hs[k], gates[k]
        for q in range(rows):
            for j in range(hidden):
                z, r, c = gate[q, j], gate[q, hidden + j], gate[q, 2 * hidden + j]
                d = dh[q, j]
                d_c[q, j] = d * (1 - z) * (1 - c * c)
                d_zr[q, j] = d * (h[q, j] - c) * z * (1 - z)
                dh[q, j] = d * z
                rh[q, j] = r * h[q, j]
        if still:
            d_zr[:, hidden:] = 0
        else:
            np.dot(d_c, w_c_t, d_rh)
            for q in range(rows):
                for j in range(hidden):
                    r = gate[q, hidden + j]
                    d = d_rh[q, j]
                    d_zr[q, hidden + j] = d * h[q, j] * r * (1 - r)
                    dh[q, j] += d * r
            np.dot(d_zr, w_zr_t, back)
            for q in range(rows):
                for j in range(hidden):
                    dh[q, j] += back[q, j]
            d_w_zr += np.dot(h[:rows].T, d_zr)
            d_w_c += np.dot(rh.T, d_c)
        for q in range(rows):
            node, b = divmod(first + q, windows)
            target = d_projected[node, slots[k, b]]
            for j in range(2 * hidden):
                target[j] += d_zr[q, j]
            for j in range(hidden):
                target[2 * hidden + j] += d_c[q, j]
    if d_start.size:
        for q in range(rows):
            for j in range(hidden):
                d_start[first + q, j] = dh[q, j]


@njit(cache=True, nogil=True)
def forward_parts(
    lo, hi, nodes, parts, chunk, slots, projected, start, w_zr, w_c, every, out, kept_h, kept_g
):
    """Parts ``lo .. hi - 1`` of the forward pass.

    Args:
        nodes: number of nodes; part ``i`` holds ``i · nodes // parts`` up to the next.
        chunk: nodes a chunk.
        slots: int64[steps, B].
        projected: float[N, S, 3H].
        start: float[N · B, H], or empty for zeros.
        w_zr, w_c: float[H, 2H], float[H, H].
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
                first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, hs, gates, tmp
            )
            if every:
                for k in range(steps):
                    out[k, first : first + rows] = hs[k + 1, :rows]
            else:
                out[0, first : first + rows] = hs[steps, :rows]
            number += 1


@njit(cache=True, nogil=True)
def backward_parts(
    lo, hi, nodes, parts, chunk, slots, projected, start, w_zr, w_c, w_zr_t, w_c_t, every, d_out,
    kept_h, kept_g, d_projected, d_start, d_w_zr, d_w_c,
):  # fmt: skip
    """Parts ``lo .. hi - 1`` of the backward pass; arguments as in ``forward_parts``.

    ``d_projected`` is added to; ``d_w_zr`` float[parts, H, 2H] and ``d_w_c`` float[parts, H, H]
    hold the gradients of each part.
    """
    steps, windows = slots.shape
    hidden, snapshots = w_c.shape[0], projected.shape[1]
    most = chunk * windows
    keep = kept_h.size > 0
    own = 0 if keep else 1
    hs_own = np.empty((own * (steps + 1), most, hidden), projected.dtype)
    gates_own = np.empty((own * steps, most, 3 * hidden), projected.dtype)
    tmp = np.empty(most * 7 * hidden, projected.dtype)
    per_part = -(-nodes // parts)
    chunks_a_part = -(-per_part // chunk)
    for part in range(lo, hi):
        end = min(nodes, (part + 1) * per_part)
        number = part * chunks_a_part
        d_w_zr[part] = 0
        d_w_c[part] = 0
        for node in range(part * per_part, end, chunk):
            rows = (min(end, node + chunk) - node) * windows
            first = node * windows
            hs = kept_h[number] if keep else hs_own
            gates = kept_g[number] if keep else gates_own
            if not keep:
                _forward(
                    first, rows, windows, snapshots, slots, projected, start, w_zr, w_c, hs, gates,
                    tmp,
                )  # fmt: skip
            _backward(
                first, rows, windows, snapshots, slots, start, w_zr_t, w_c_t, hs, gates, d_out,
                every, d_projected, d_start, d_w_zr[part], d_w_c[part], tmp,
            )  # fmt: skip
            number += 1
