"""Recurrences over windows side by side, as differentiable functions.

On a CPU they are the kernels of ``gnn_dist.kernels``; on other devices torch operators that give
the same to rounding. State goes in and comes out: nothing is kept on a module.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_dist.kernels import gru_windows, lstm_windows, parallel

PARTS = 8
"""Ranges of nodes with weight gradients of their own, at most; their number depends on the sizes
alone, so that sums never depend on the number of threads."""

ROWS = 256
"""Rows a chunk: 8 steps of 32 units in float32 stay within a second-level cache."""


class Plan(NamedTuple):
    """How a recurrence is cut: parts, nodes a chunk, chunks in all, rows a chunk."""

    parts: int
    chunk: int
    chunks: int
    rows: int


def _plan(nodes: int, windows: int) -> Plan:
    parts = max(1, min(PARTS, nodes * windows // ROWS))
    per_part = -(-nodes // parts)
    chunk = max(1, min(per_part, ROWS // windows))
    return Plan(parts, chunk, parts * -(-per_part // chunk), chunk * windows)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _first_uses(slots: np.ndarray, projected: Tensor, used: int) -> tuple[np.ndarray, Tensor]:
    """Which uses of a snapshot are the first on the way back, bool[steps, B], and where to write
    the gradient of ``projected``, of which the first ``used`` columns are read."""
    back = slots[::-1].reshape(-1)
    found, at = np.unique(back, return_index=True)
    first = np.zeros(back.size, bool)
    first[at] = True
    out = torch.empty_like(projected, memory_format=torch.contiguous_format)
    if found.size < projected.shape[1]:
        out.zero_()
    out[..., used:] = 0
    return np.ascontiguousarray(first.reshape(slots.shape)[::-1]), out


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        start: Tensor | None,
        w_zr: Tensor,
        w_c: Tensor,
        bias: Tensor,
        slots: np.ndarray,
        every: bool,
        checkpoint: bool,
    ) -> Tensor:
        steps, windows = slots.shape
        nodes, hidden = projected.shape[0], w_c.shape[0]
        plan = _plan(nodes, windows)
        keep = not checkpoint and any(ctx.needs_input_grad[:5])
        dtype = projected.dtype
        kept_h = torch.empty(
            (plan.chunks if keep else 0, steps + 1, plan.rows, hidden), dtype=dtype
        )
        kept_g = torch.empty(
            (plan.chunks if keep else 0, steps, plan.rows, 3 * hidden), dtype=dtype
        )
        begin = projected.new_empty((0, hidden)) if start is None else start.reshape(-1, hidden)
        out = torch.empty((steps if every else 1, nodes * windows, hidden), dtype=dtype)
        arrays = [_array(t) for t in (projected, begin, w_zr, w_c, bias)]
        if nodes:
            parallel.run(
                gru_windows.forward_parts, plan.parts, nodes, plan.parts, plan.chunk, slots,
                *arrays, every, out.numpy(), kept_h.numpy(), kept_g.numpy(),
                work=nodes * windows * steps,
            )  # fmt: skip
        ctx.save_for_backward(projected, begin, w_zr, w_c, bias, kept_h, kept_g)
        ctx.slots, ctx.every, ctx.plan = slots, every, plan
        return out.view(-1, nodes, windows, hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        projected, begin, w_zr, w_c, bias, kept_h, kept_g = ctx.saved_tensors
        steps, windows = ctx.slots.shape
        nodes, hidden = projected.shape[0], w_c.shape[0]
        plan: Plan = ctx.plan
        d_out = _array(gradients[0]).reshape(-1, nodes * windows, hidden)
        fresh, d_projected = _first_uses(ctx.slots, projected, 3 * hidden)
        d_start = torch.zeros_like(begin, memory_format=torch.contiguous_format)
        d_w_zr = torch.zeros((plan.parts, hidden, 2 * hidden), dtype=w_c.dtype)
        d_w_c = torch.zeros((plan.parts, hidden, hidden), dtype=w_c.dtype)
        d_bias = torch.zeros((plan.parts, 3 * hidden), dtype=w_c.dtype)
        arrays = [_array(t) for t in (projected, begin, w_zr, w_c, bias, w_zr.t(), w_c.t())]
        if nodes:
            parallel.run(
                gru_windows.backward_parts, plan.parts, nodes, plan.parts, plan.chunk, ctx.slots,
                fresh, *arrays, ctx.every, d_out, kept_h.numpy(), kept_g.numpy(),
                d_projected.numpy(), d_start.numpy(), d_w_zr.numpy(), d_w_c.numpy(),
                d_bias.numpy(), work=nodes * windows * steps,
            )  # fmt: skip
        start = d_start.view(nodes, windows, hidden) if begin.numel() else None
        sums = (d.sum(0) for d in (d_w_zr, d_w_c, d_bias))
        return d_projected, start, *sums, None, None, None


def gru(
    projected: Tensor,
    start: Tensor | None,
    w_zr: Tensor,
    w_c: Tensor,
    bias: Tensor,
    slots: np.ndarray,
    *,
    every: bool = False,
    checkpoint: bool = False,
) -> Tensor:
    """The unit of ``kernels.gru_windows`` over all windows of a step.

    Args:
        projected: float[N, S, 3H], the input half of the gates z, r, c of every snapshot, without
            their bias.
        start: float[N, B, H], the state before the first step; None for zeros.
        w_zr: float[H, 2H]. w_c: float[H, H]. bias: float[3H], of the gates.
        slots: int64[steps, B], the snapshot (of S) that each window takes at each step.
        every: return the states after all steps, not only the last.
        checkpoint: keep no state for the backward pass but compute it again, chunk by chunk: memory
            does not grow with the number of steps, at the price of one more forward pass.

    Returns:
        float[1 or steps, N, B, H].
    """
    if projected.device.type == "cpu":
        return _Gru.apply(projected, start, w_zr, w_c, bias, slots, every, checkpoint)
    return gru_torch(projected, start, w_zr, w_c, bias, slots, every=every)


def gru_torch(
    projected: Tensor,
    start: Tensor | None,
    w_zr: Tensor,
    w_c: Tensor,
    bias: Tensor,
    slots: np.ndarray,
    *,
    every: bool = False,
) -> Tensor:
    """``gru`` through torch operators, for other devices than a CPU."""
    hidden = w_c.shape[0]
    index = torch.from_numpy(slots).to(projected.device)
    h = start
    if h is None:
        h = projected.new_zeros((projected.shape[0], slots.shape[1], hidden))
    outputs = []
    for k in range(slots.shape[0]):
        p = projected[:, index[k]] + bias
        z, r = torch.sigmoid(p[..., : 2 * hidden] + h @ w_zr).chunk(2, dim=-1)
        c = torch.tanh(p[..., 2 * hidden :] + (r * h) @ w_c)
        h = z * h + (1 - z) * c
        outputs.append(h)
    return torch.stack(outputs if every else outputs[-1:])


class _Lstm2(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        start: Tensor | None,
        w1: Tensor,
        w2: Tensor,
        bias: Tensor,
        slots: np.ndarray,
        every: bool,
        checkpoint: bool,
    ) -> tuple[Tensor, Tensor]:
        steps, windows = slots.shape
        nodes, hidden = projected.shape[0], w1.shape[0]
        plan = _plan(nodes, windows)
        chunks = plan.chunks if not checkpoint and any(ctx.needs_input_grad[:5]) else 0
        dtype, rows = projected.dtype, plan.rows
        kept = (
            torch.empty((chunks, steps + 1, rows, 2 * hidden), dtype=dtype),
            torch.empty((chunks, 2, steps + 1, rows, hidden), dtype=dtype),
            torch.empty((chunks, 2, steps, rows, 4 * hidden), dtype=dtype),
        )
        begin = projected.new_empty((0, 0, hidden))
        if start is not None:
            begin = start.reshape(4, nodes * windows, hidden)
        out = torch.empty((steps if every else 1, nodes * windows, 2 * hidden), dtype=dtype)
        last = torch.empty((2, nodes * windows, hidden), dtype=dtype)
        arrays = [_array(t) for t in (projected, begin, w1, w2, bias)]
        if nodes:
            parallel.run(
                lstm_windows.forward_parts, plan.parts, nodes, plan.parts, plan.chunk, slots,
                *arrays, every, out.numpy(), last.numpy(), *(k.numpy() for k in kept),
                work=nodes * windows * steps,
            )  # fmt: skip
        ctx.save_for_backward(projected, begin, w1, w2, bias, *kept)
        ctx.slots, ctx.every, ctx.plan = slots, every, plan
        last = last.view(2, nodes, windows, hidden)
        ctx.mark_non_differentiable(last)
        return out.view(-1, nodes, windows, 2 * hidden), last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        projected, begin, w1, w2, bias, *kept = ctx.saved_tensors
        steps, windows = ctx.slots.shape
        nodes, hidden = projected.shape[0], w1.shape[0]
        plan: Plan = ctx.plan
        d_out = _array(gradients[0]).reshape(-1, nodes * windows, 2 * hidden)
        fresh, d_projected = _first_uses(ctx.slots, projected, 4 * hidden)
        d_start = torch.zeros_like(begin, memory_format=torch.contiguous_format)
        d_w1, d_w2, d_bias = (
            torch.zeros((plan.parts, *w.shape), dtype=w.dtype) for w in (w1, w2, bias)
        )
        arrays = [_array(t) for t in (projected, begin, w1, w2, bias, w1.t(), w2.t())]
        if nodes:
            parallel.run(
                lstm_windows.backward_parts, plan.parts, nodes, plan.parts, plan.chunk, ctx.slots,
                fresh, *arrays, ctx.every, d_out, *(k.numpy() for k in kept), d_projected.numpy(),
                d_start.numpy(), d_w1.numpy(), d_w2.numpy(), d_bias.numpy(),
                work=nodes * windows * steps,
            )  # fmt: skip
        start = d_start.view(4, nodes, windows, hidden) if begin.numel() else None
        return d_projected, start, d_w1.sum(0), d_w2.sum(0), d_bias.sum(0), None, None, None


def lstm2(
    projected: Tensor,
    start: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    bias: Tensor,
    slots: np.ndarray,
    *,
    every: bool = False,
    checkpoint: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two stacked LSTMs over all windows of a step (``kernels.lstm_windows``).

    Args:
        projected: float[N, S, 4H], the input half of the first layer's gates i, f, g, o, without
            their bias. Further columns are left alone.
        start: float[4, N, B, H], h1, h2, c1 and c2 before the first step; None for zeros. Its
            gradient is that of a start, but a final c passes none on (truncated there).
        w1: float[H, 4H]. w2: float[2H, 4H], for [h1 | h2]. bias: float[2, 4H], of both layers.
        slots, every, checkpoint: as in ``gru``.

    Returns:
        float[1 or steps, N, B, 2H], h1 and h2 side by side, and the final c1 and c2, float[2, N,
        B, H].
    """
    if projected.device.type == "cpu":
        return _Lstm2.apply(projected, start, w1, w2, bias, slots, every, checkpoint)
    return lstm2_torch(projected, start, w1, w2, bias, slots, every=every)


def lstm2_torch(
    projected: Tensor,
    start: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    bias: Tensor,
    slots: np.ndarray,
    *,
    every: bool = False,
) -> tuple[Tensor, Tensor]:
    """``lstm2`` through torch operators, for other devices than a CPU."""
    hidden = w1.shape[0]
    index = torch.from_numpy(slots).to(projected.device)
    if start is None:
        start = projected.new_zeros((4, projected.shape[0], slots.shape[1], hidden))
    h1, h2, c1, c2 = start
    outputs = []
    for k in range(slots.shape[0]):
        h1, c1 = _cell(bias[0] + projected[:, index[k], : 4 * hidden] + h1 @ w1, c1)
        h2, c2 = _cell(bias[1] + torch.cat((h1, h2), dim=-1) @ w2, c2)
        outputs.append(torch.cat((h1, h2), dim=-1))
    return torch.stack(outputs if every else outputs[-1:]), torch.stack((c1, c2)).detach()


def _cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def warmup(dtype: torch.dtype = torch.float32) -> None:
    """Compile the kernels for models of one dtype."""
    slots = np.zeros((1, 1), np.int64)
    with torch.enable_grad():
        p = torch.zeros((1, 1, 3), dtype=dtype, requires_grad=True)
        w = torch.zeros((1, 2), dtype=dtype)
        gru(p, None, w, w[:, :1], p.detach()[0, 0], slots).sum().backward()
        q = torch.zeros((1, 1, 4), dtype=dtype, requires_grad=True)
        v = torch.zeros((2, 4), dtype=dtype)
        lstm2(q, None, v[:1], v, v, slots)[0].sum().backward()
