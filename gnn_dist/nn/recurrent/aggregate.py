"""Grouped aggregation as a differentiable function of the features."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.dynamic.groups import Segments
from gnn_dist.dynamic.normalise import Factors
from gnn_dist.kernels import parallel
from gnn_dist.kernels.grouped import aggregate_rows


def _run(s: Segments, x: np.ndarray, loop: np.ndarray, scale: np.ndarray) -> np.ndarray:
    out = np.empty((s.rows, *x.shape[1:]), x.dtype)
    if out.size:
        weight = None if s.weight is None else s.weight.astype(x.dtype, copy=False)
        parallel.run(
            aggregate_rows, s.rows, s.indptr, s.indices, weight, s.position, s.first, s.last, x,
            loop, scale, out, work=s.stored_edges * s.snapshots,
        )  # fmt: skip
    return out


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, segments: Segments, factors: Factors) -> Tensor:
        ctx.segments, ctx.factors = segments, factors
        scaled = x.detach().numpy() * factors.right[:, :, None]
        return torch.from_numpy(_run(segments, scaled, factors.loop, factors.left))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        s, f = ctx.segments, ctx.factors
        g = np.zeros((s.cols, *gradients[0].shape[1:]), f.left.dtype)
        np.multiply(gradients[0].numpy(), f.left[:, :, None], out=g[: s.rows])
        loop = np.zeros((s.cols, s.snapshots), f.loop.dtype)
        loop[: s.rows] = f.loop
        return torch.from_numpy(_run(s.transposed(), g, loop, f.right)), None, None


def aggregate_group(x: Tensor, segments: Segments, factors: Factors) -> Tensor:
    """``left · (A + loop) · right · x`` in every snapshot of the group.

    Args:
        x: float[cols, S, F], features side by side; the first ``rows`` rows are the destinations.
        segments: the group's edges.
        factors: ``left`` and ``loop`` float[rows, S], ``right`` float[cols, S], of x's dtype.

    Returns:
        float[rows, S, F], differentiable in ``x``.
    """
    if x.device.type == "cpu":
        return _Grouped.apply(x, segments, factors)
    return aggregate_torch(x, segments, factors)


def aggregate_torch(x: Tensor, segments: Segments, factors: Factors) -> Tensor:
    """``aggregate_group`` through torch operators, for other devices than a CPU."""
    device = x.device
    left, loop, right = (torch.from_numpy(a).to(device) for a in factors.arrays())
    scaled = x * right[:, :, None]
    out = loop[:, :, None] * scaled[: segments.rows]
    dst = torch.from_numpy(segments.destinations()).to(device)
    src = torch.from_numpy(segments.indices).to(device).long()
    for g in range(segments.first.size):
        a, b = int(segments.first[g]), int(segments.last[g])
        lo, hi = int(segments.indptr[g, 0]), int(segments.indptr[g, -1])
        messages = scaled[src[lo:hi], a:b]
        if segments.weight is not None:
            weight = torch.from_numpy(segments.weight).to(device, x.dtype)
            if segments.position is None:
                messages = messages * weight[lo:hi, None, None]
            else:
                begin = torch.from_numpy(segments.position[lo:hi]).to(device)
                values = weight[begin[:, None] + torch.arange(b - a, device=device)]
                messages = messages * values[:, :, None]
        part = torch.zeros_like(out[:, a:b]).index_add(0, dst[lo:hi], messages)
        out = torch.cat((out[:, :a], out[:, a:b] + part, out[:, b:]), dim=1)
    return left[:, :, None] * out
