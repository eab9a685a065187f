"""The stack in torch operators, for devices other than the CPU: the same equations, modes and draws
as ``inner`` and ``residual``.

Neighbours are summed by segments of a CSR row and gradients by segments of its transpose, never by
atomic additions: f is a function of its input's bits here too, which the inverse on a grid needs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gnn_dist.kernels import grid
from gnn_dist.nn import torch_ops
from gnn_dist.nn.deep.compression import compressed
from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.inner import GridRangeError, storages
from gnn_dist.nn.deep.parameters import StackTensors
from gnn_dist.nn.deep.topology import DeepTopology, Sweep
from gnn_dist.rng import Stream, fold


class _SegmentSum(torch.autograd.Function):
    """Sums of rows [E, ...] over CSR rows: [N, ...]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sweep: "TorchSweep") -> Tensor:
        ctx.sweep = sweep
        return _segments(rows, sweep.indptr)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad[ctx.sweep.rows], None


class _Gather(torch.autograd.Function):
    """Rows of the sources of every edge, [N, ...] to [E, ...]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sweep: "TorchSweep") -> Tensor:
        ctx.sweep = sweep
        return x[sweep.indices]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        sweep = ctx.sweep
        return _segments(grad[sweep.back_position], sweep.back_indptr), None


class _Repeat(torch.autograd.Function):
    """Rows of the destinations of every edge, [N, ...] to [E, ...]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sweep: "TorchSweep") -> Tensor:
        ctx.sweep = sweep
        return x[sweep.rows]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _segments(grad, ctx.sweep.indptr), None


def _segments(rows: Tensor, indptr: Tensor, reduce: str = "sum", initial: float = 0.0) -> Tensor:
    if not rows.shape[0]:
        return rows.new_full((indptr.numel() - 1, *rows.shape[1:]), initial)
    return torch.segment_reduce(
        rows.contiguous(), reduce, offsets=indptr, axis=0, unsafe=True, initial=initial
    )


@dataclass(frozen=True, slots=True, eq=False)
class TorchSweep:
    """A ``Sweep`` as tensors of one device, with the destination of every edge."""

    indptr: Tensor
    indices: Tensor
    rows: Tensor
    weight: Tensor
    own: Tensor
    back_indptr: Tensor
    back_position: Tensor

    @classmethod
    def of(cls, sweep: Sweep, device: torch.device) -> "TorchSweep":
        def put(array: np.ndarray) -> Tensor:
            return torch.as_tensor(array, device=device)

        indptr = put(sweep.indptr.astype(np.int64))
        rows = torch.repeat_interleave(indptr.diff())
        return cls(
            indptr, put(sweep.indices.astype(np.int64)), rows, put(sweep.weight), put(sweep.own),
            put(sweep.back_indptr.astype(np.int64)), put(sweep.back_position.astype(np.int64)),
        )  # fmt: skip


class TorchInner:
    """f of every block of a stack over one micro-batch, on the device of its tensors.

    Attributes as in ``Inner``: ``deferred``, ``saved``, ``reconstructed``.
    """

    def __init__(
        self,
        config: DeepConfig,
        topology: DeepTopology,
        device: torch.device,
        *,
        first_layer: int = 0,
        drop: bool = False,
    ) -> None:
        self.config, self.topology, self.first_layer = config, topology, first_layer
        self.dropout = config.dropout if drop else 0.0
        self.deferred: list[tuple[int, int, Tensor, Tensor]] | None = None
        self.saved: dict[int, int] = {}
        self.reconstructed: Tensor | None = None
        self._sweeps = [TorchSweep.of(s, device) for s in topology.sweeps]
        self._ids = torch.as_tensor(topology.ids, device=device)
        self._outside: list[tuple[int, int, Tensor]] = []

    def columns(
        self, layer: int, group: int, u: Tensor, initial: Tensor | None, p: StackTensors,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """What the weights multiply, [N, columns], and what was selected, bool[N, d]."""
        config, d = self.config, u.shape[1]
        y = u
        if config.norm == "layer":
            y = torch.nn.functional.layer_norm(u, (d,), eps=config.norm_eps)
        elif config.norm == "rms":
            y = u * torch.rsqrt(u.square().mean(1, keepdim=True) + config.norm_eps)
        y = y * p.gain + p.shift
        if mask is None:
            mask = torch.ones_like(y, dtype=torch.bool)
            if config.kept < d:
                chosen = torch.topk(y.detach(), config.kept, dim=1).indices
                mask = torch.zeros_like(mask).scatter_(1, chosen, True)
            if self.dropout:
                key = fold(self.topology.key, Stream.DROPOUT, self.first_layer + layer, group)
                mask &= torch_ops.keep_mask(self._ids, d, key, self.dropout)
        drop = round(self.dropout * 65536)
        s = torch.where(mask, y * (65536 / (65536 - drop)), 0)
        parts = [s] if config.own_column else []
        for k, sweep in enumerate(self._sweeps):
            if config.conv == "attention":
                h = self._attend(s, sweep, p.attention[k])
            else:
                h = _SegmentSum.apply(_Gather.apply(s, sweep) * sweep.weight[:, None], sweep)
                if config.conv != "mean":
                    h = h + sweep.own[:, None] * s
            if initial is not None:
                h = (1 - config.initial_residual) * h + config.initial_residual * initial
            parts.append(h)
        return torch.cat(parts, 1), mask

    def _attend(self, s: Tensor, sweep: TorchSweep, scores: Tensor) -> Tensor:
        slope = self.config.attention_slope
        source, own = s @ scores[0], s @ scores[1]
        edge = _Gather.apply(source, sweep) + _Repeat.apply(own, sweep)
        edge = torch.nn.functional.leaky_relu(edge, slope)
        self_ = torch.nn.functional.leaky_relu(source + own, slope)
        with torch.no_grad():
            top = torch.maximum(_segments(edge, sweep.indptr, "max", -torch.inf), self_)
        edge, self_ = torch.exp(edge - top[sweep.rows]), torch.exp(self_ - top)
        total = _SegmentSum.apply(edge, sweep) + self_
        rows = _SegmentSum.apply(_Gather.apply(s, sweep) * edge[:, None], sweep)
        return (rows + self_[:, None] * s) / total[:, None]

    def snap(self, f: Tensor) -> Tensor:
        bits = self.config.grid
        return f if bits is None else torch.round(f * 2.0**bits) * 2.0**-bits

    def watch(self, layer: int, group: int, x: Tensor) -> None:
        """Keep, on the device, how far the stream of a group went."""
        if self.config.grid is not None:
            self._outside.append((layer, group, x.detach().abs().amax()))

    def check_range(self) -> None:
        """Raise ``GridRangeError`` for what was watched; one transfer from the device."""
        if not self._outside:
            return
        assert self.config.grid is not None
        kind = str(self._outside[0][2].dtype).removeprefix("torch.")
        limit = grid.bound(np.dtype(kind), self.config.grid)
        reached = torch.stack([most for _, _, most in self._outside]).cpu()
        outside = [(layer, group) for layer, group, _ in self._outside]
        self._outside.clear()
        bad = ~(reached < limit)  # what is not a number is outside
        if bad.any():
            first = int(bad.int().argmax())
            layer, group = outside[first]
            raise GridRangeError(
                f"block {self.first_layer + layer}, group {group}: the residual stream reached "
                f"{float(reached[first]):.4g}, past +-{limit:g}, where additions in {kind} are "
                f"exact on the grid 2^-{self.config.grid}; lower model.grid or the learning rate, "
                "or clip gradients"
            )


def run_torch_stack(
    inner: TorchInner, state: Tensor, initial: Tensor | None, parameters: StackTensors
) -> Tensor:
    """As ``residual.run_stack``."""
    config = inner.config
    if config.mode == "reversible" or not torch.is_grad_enabled():
        out: Tensor = _Reversible.apply(inner, state, initial, *parameters)
    elif config.mode == "checkpoint":
        out = state
        for layer in range(parameters.gain.shape[0]):
            out = checkpoint(
                _block, inner, layer, out, initial, parameters, use_reentrant=False,
                preserve_rng_state=False,
            )  # fmt: skip
    else:
        out = state
        for layer in range(parameters.gain.shape[0]):
            if config.compression is None:
                out = _block(inner, layer, out, initial, parameters)
            else:
                with compressed(config.compression, parameters, inner.saved):
                    out = _block(inner, layer, out, initial, parameters)
    inner.check_range()
    return out


def _block(
    inner: TorchInner, layer: int, state: Tensor, initial: Tensor | None, parameters: StackTensors
) -> Tensor:
    parts = list(state.unbind(0))
    for i in range(len(parts)):
        p = parameters.block(layer, i)
        z, _ = inner.columns(layer, i, _input(parts, i), _row(initial, i), p)
        f = z @ p.weight + p.bias
        parts[i] = parts[i] + (f + (inner.snap(f) - f).detach())  # the gradient passes unchanged
        inner.watch(layer, i, parts[i])
    return torch.stack(parts)


def _input(parts: list[Tensor], i: int) -> Tensor:
    """``Y_{i-1}``; for the first group the sum of the others."""
    if i:
        return parts[i - 1]
    return parts[1] if len(parts) == 2 else torch.stack(parts[1:]).sum(0)


def _row(tensor: Tensor | None, i: int) -> Tensor | None:
    return None if tensor is None else tensor[i]


class _Reversible(torch.autograd.Function):
    """The whole stack: keeps its output (and GCNII's initial rows)."""

    @staticmethod
    def forward(
        ctx: Any, inner: TorchInner, state: Tensor, initial: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        parameters = StackTensors(*(t.detach() for t in tensors))
        start = None if initial is None else initial.detach()
        keep = inner.config.saved_indices and any(ctx.needs_input_grad)
        masks: list[Tensor] = []
        parts = list(state.detach().unbind(0))
        for layer in range(parameters.gain.shape[0]):
            for i in range(len(parts)):
                p = parameters.block(layer, i)
                z, mask = inner.columns(layer, i, _input(parts, i), _row(start, i), p)
                parts[i] = parts[i] + inner.snap(z @ p.weight + p.bias)
                inner.watch(layer, i, parts[i])
                if keep:
                    masks.append(mask)
        out = torch.stack(parts)
        ctx.inner, ctx.masks = inner, masks
        ctx.save_for_backward(out, initial, *tensors)
        if any(ctx.needs_input_grad):
            inner.saved.update(storages((out, initial, *masks)))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        out, initial, *tensors = ctx.saved_tensors
        inner: TorchInner = ctx.inner
        parameters = StackTensors(*(t.detach() for t in tensors))
        grads = parameters.zeros_like()
        start = None if initial is None else initial.detach()
        grad_start = None if start is None else torch.zeros_like(start)
        parts, grad = list(out.detach().unbind(0)), list(grad_out.unbind(0))
        groups = len(parts)
        for layer in reversed(range(parameters.gain.shape[0])):
            for i in reversed(range(groups)):
                p = parameters.block(layer, i)
                leaf = StackTensors(*(t.detach().requires_grad_() for t in p))
                u = _input(parts, i).detach().requires_grad_()
                h = None if start is None else start[i].detach().requires_grad_()
                mask = ctx.masks[layer * groups + i] if ctx.masks else None
                with torch.enable_grad():
                    z, _ = inner.columns(layer, i, u, h, leaf, mask)
                parts[i] = parts[i] - inner.snap(z.detach() @ p.weight + p.bias)
                wanted = [u, leaf.gain, leaf.shift]
                wanted += [leaf.attention] if leaf.attention.numel() else []
                wanted += [] if h is None else [h]
                found = torch.autograd.grad(z, wanted, grad[i] @ p.weight.t())
                if inner.deferred is None:
                    grads.weight[layer, i] += z.detach().t() @ grad[i]
                    grads.bias[layer, i] += grad[i].sum(0)
                else:
                    inner.deferred.append((layer, i, z.detach(), grad[i]))
                grads.gain[layer, i] += found[1]
                grads.shift[layer, i] += found[2]
                if leaf.attention.numel():
                    grads.attention[layer, i] += found[3]
                if grad_start is not None:
                    grad_start[i] += found[-1]
                for k in [i - 1] if i else range(1, groups):
                    grad[k] = grad[k] + found[0]
        inner.reconstructed = torch.stack(parts)
        return None, torch.stack(grad), grad_start, *grads
