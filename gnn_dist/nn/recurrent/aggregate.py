"""Grouped aggregation as a differentiable function of the features."""

import contextlib
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Moved:
    """A group's edges and factors as tensors on a device.

    Attributes:
        spans: ``(first, last, lo, hi)`` of each segment: its snapshots, and its edges' positions.
        src, dst: int64[E].
        weight, position: as ``Segments`` has them, or None.
        left, loop, right: float[rows, S], [rows, S], [cols, S].
        ready: recorded behind the copies, where they were made on a stream of their own.
    """

    spans: tuple[tuple[int, int, int, int], ...]
    src: Tensor
    dst: Tensor
    weight: Tensor | None
    position: Tensor | None
    left: Tensor
    loop: Tensor
    right: Tensor
    ready: torch.cuda.Event | None = None

    def tensors(self) -> list[Tensor]:
        found = (self.src, self.dst, self.weight, self.position, self.left, self.loop, self.right)
        return [t for t in found if t is not None]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def wait(self) -> None:
        """Let the current stream wait for the copies, and keep their memory from being reused."""
        if self.ready is None:
            return
        stream = torch.cuda.current_stream(self.src.device)
        stream.wait_event(self.ready)
        for tensor in self.tensors():
            tensor.record_stream(stream)


def move(
    segments: Segments,
    factors: Factors,
    device: torch.device,
    dtype: torch.dtype,
    stream: torch.cuda.Stream | None = None,
) -> Moved:
    """Copy a group to a device; with ``stream``, behind the caller and the computation."""

    def copy(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        elif tensor.dtype != torch.int64:
            tensor = tensor.long()
        if stream is not None:
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=stream is not None)

    bounds = zip(segments.first, segments.last, segments.indptr, strict=True)
    spans = tuple((int(a), int(b), int(p[0]), int(p[-1])) for a, b, p in bounds)
    with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
        src, dst = copy(segments.indices), copy(segments.destinations())
        weight = None if segments.weight is None else copy(segments.weight)
        position = None if segments.position is None else copy(segments.position)
        left, loop, right = (copy(a) for a in factors.arrays())
        ready = None if stream is None else stream.record_event()
    return Moved(spans, src, dst, weight, position, left, loop, right, ready)


class _GroupedTorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, moved: Moved) -> Tensor:
        ctx.moved = moved
        scaled = x * moved.right[:, :, None]
        out = moved.loop[:, :, None] * scaled[: moved.loop.shape[0]]
        _add_edges(out, scaled, moved.dst, moved.src, moved)
        return out.mul_(moved.left[:, :, None])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        moved: Moved = ctx.moved
        scaled = gradients[0] * moved.left[:, :, None]
        out = scaled.new_zeros((moved.right.shape[0], *scaled.shape[1:]))
        torch.mul(moved.loop[:, :, None], scaled, out=out[: scaled.shape[0]])
        _add_edges(out, scaled, moved.src, moved.dst, moved)
        return out.mul_(moved.right[:, :, None]), None


def _add_edges(out: Tensor, x: Tensor, to: Tensor, source: Tensor, moved: Moved) -> None:
    """Add every segment's edges to the columns of its snapshots: what they share, side by side."""
    for a, b, lo, hi in moved.spans:
        messages = x[source[lo:hi], a:b]
        if moved.weight is not None and moved.position is None:
            messages *= moved.weight[lo:hi, None, None]
        elif moved.weight is not None and moved.position is not None:
            own = moved.position[lo:hi, None] + torch.arange(b - a, device=x.device)
            messages *= moved.weight[own][:, :, None]
        out[:, a:b].index_add_(0, to[lo:hi], messages)


def aggregate_group(
    x: Tensor, segments: Segments, factors: Factors, moved: Moved | None = None
) -> Tensor:
    """``left · (A + loop) · right · x`` in every snapshot of the group.

    Args:
        x: float[cols, S, F], features side by side; the first ``rows`` rows are the destinations.
        segments: the group's edges.
        factors: ``left`` and ``loop`` float[rows, S], ``right`` float[cols, S], of x's dtype.
        moved: both on x's device, where that is not a CPU (copied now where left out).

    Returns:
        float[rows, S, F], differentiable in ``x``.
    """
    if x.device.type == "cpu" and moved is None:
        return _Grouped.apply(x, segments, factors)
    if moved is None:
        moved = move(segments, factors, x.device, x.dtype)
    moved.wait()
    return _GroupedTorch.apply(x, moved)
