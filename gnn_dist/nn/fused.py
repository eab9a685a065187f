"""GraphSAGE layers with mean, ReLU and dropout as one function, tile by tile, on a CPU.

A step on a CPU is bound by its matrix products and by memory. So the rows of a layer are taken in
tiles that stay in the cache: ``[self | mean]`` of a tile, its product with the weights, bias, ReLU
and dropout, before the next tile. Backwards a tile of the gradient before the ReLU is pulled from
the layer above, used for all weight gradients and forgotten; gradients of hidden rows are never in
memory as a whole. The first layer reads the feature table. Tiles and the order of sums do not
depend on the number of threads, and neither do the bits of the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.batch import Block
from gnn_dist.kernels import epilogue, parallel, spmm
from gnn_dist.kernels.dropout import drop_rows, threshold
from gnn_dist.kernels.vector import flat

FORWARD_ROWS = 512  # of a tile: [self | mean] of 100 features fills the second-level cache
BACKWARD_ROWS = 2048  # weight gradients want a longer product
_GROUPS = 8  # partial weight gradients; fixed, so that sums do not depend on threads


@dataclass(frozen=True, slots=True, eq=False)
class SageLayer:
    """One layer of a stack.

    Attributes:
        block: its block.
        rectify: a ReLU follows.
        dropout: probability of the dropout that follows the ReLU, 0 for none.
        key: key of the dropout (see ``functional.keyed_dropout``).
    """

    block: Block
    rectify: bool
    dropout: float = 0.0
    key: int = 0

    @property
    def scale(self) -> float:
        """What an entry that is kept by dropout is multiplied by."""
        return 65536 / (65536 - threshold(self.dropout))


def sage_stack(
    x: Tensor,
    addresses: Tensor | None,
    layers: Sequence[SageLayer],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Tensor:
    """Layers of ``act([self | mean] W^T + b)``, one after the other: [num_dst of the last, out].

    ``x`` is [num_src, F], or with ``addresses`` int64[num_src] one of the feature tables whose rows
    are read (see ``FeatureRows``; float32, or float16 that is widened; they get no gradient).
    ``weights`` are [out, 2 * in].
    """
    return _Stack.apply(x, addresses, tuple(layers), *weights, *biases)


def _tiles(rows: int, size: int) -> list[tuple[int, int]]:
    return [(lo, min(lo + size, rows)) for lo in range(0, rows, size)]


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        addresses: Tensor | None,
        layers: tuple[SageLayer, ...],
        *parameters: Tensor,
    ) -> Tensor:
        ctx.layers = layers
        needs_grad = any(ctx.needs_input_grad)
        weights, biases = parameters[: len(layers)], parameters[len(layers) :]
        saved: list[Tensor] = []
        out, rows = x.detach(), addresses
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            args = (layer, weight.detach(), bias.detach(), needs_grad)
            both, out, active = _forward(out, rows, *args)
            saved += (both, active)
            rows = None
        if needs_grad:
            ctx.save_for_backward(*saved, *weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers, saved = ctx.layers, ctx.saved_tensors
        weights = saved[2 * len(layers) :]
        weight_grads: list[Tensor] = []
        bias_grads: list[Tensor] = []
        active = saved[2 * len(layers) - 1]
        source: _Gradient = _OutputGradient(grad.contiguous(), layers[-1], active)
        x_grad = None
        for k in reversed(range(len(layers))):
            goes_on = k > 0 or ctx.needs_input_grad[0]
            weight = weights[k].detach() if goes_on else None
            both_grad, weight_grad, bias_grad = _backward(source, saved[2 * k], weight)
            weight_grads.insert(0, weight_grad)
            bias_grads.insert(0, bias_grad)
            if both_grad is not None and k:
                source = _HiddenGradient(
                    both_grad, layers[k].block, layers[k - 1], saved[2 * k - 1]
                )
            elif both_grad is not None:
                x_grad = _input_gradient(both_grad, layers[0].block)
        return x_grad, None, None, *weight_grads, *bias_grads


def _forward(
    x: Tensor,
    addresses: Tensor | None,
    layer: SageLayer,
    weight: Tensor,
    bias: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's ``[self | mean]`` (empty unless ``keep``), its output, and which entries of that
    are active (see ``kernels.epilogue``; empty unless needed)."""
    block, (columns, width) = layer.block, weight.shape
    rows = block.num_dst
    out = torch.empty(rows, columns, dtype=weight.dtype)
    both = torch.empty(rows if keep else 0, width, dtype=weight.dtype)
    mark = keep and layer.rectify and epilogue.packs(columns, out.numpy().dtype)
    bits = torch.empty(rows * columns // 8 if mark else 0, dtype=torch.uint8)
    product = weight.t().contiguous()
    args = spmm.self_mean_args(
        block.indptr.numpy(),
        block.indices.numpy(),
        x.contiguous().numpy(),
        None if addresses is None else addresses.numpy(),
    )
    flat_both, flat_out, offset = flat(both.numpy()), flat(out.numpy()), bias.numpy()
    active = bits.numpy()
    drop = threshold(layer.dropout)
    ids = None
    if drop:
        assert block.ids is not None
        ids = block.ids.numpy()
    tiles = _tiles(rows, FORWARD_ROWS)

    def task(k: int) -> None:
        lo, hi = tiles[k]
        if keep:
            tile = both[lo:hi]
            spmm.self_mean_rows(lo, hi, *args, flat_both, 0)
        else:
            tile = torch.empty(hi - lo, width, dtype=weight.dtype)
            spmm.self_mean_rows(lo, hi, *args, flat(tile.numpy()), lo)
        torch.mm(tile, product, out=out[lo:hi])
        if ids is None:
            epilogue.add_bias(lo, hi, flat_out, offset, layer.rectify, active)
        else:
            epilogue.add_bias(lo, hi, flat_out, offset, layer.rectify, active[:0])
            drop_rows(lo, hi, out.numpy(), ids, layer.key, drop)
            if mark:
                epilogue.mark_active(lo, hi, flat_out, columns, active)

    parallel.run_tasks(task, len(tiles))
    return both, out, bits if mark or not layer.rectify else out


class _Gradient(Protocol):
    """The gradient before a layer's activation, made tile by tile."""

    shape: torch.Size

    def tile(self, lo: int, hi: int, buffer: Tensor, totals: np.ndarray) -> Tensor:
        """Rows ``lo .. hi - 1``, in ``buffer`` or elsewhere, also added to ``totals`` [F]."""
        ...


class _OutputGradient:
    """Of the last layer, from the gradient of its output."""

    def __init__(self, grad: Tensor, layer: SageLayer, active: Tensor) -> None:
        self.shape = grad.shape
        self._grad = grad
        self._args = None
        if layer.rectify:
            scale = grad.numpy().dtype.type(layer.scale)
            self._args = flat(grad.numpy()), flat(active.numpy()), scale

    def tile(self, lo: int, hi: int, buffer: Tensor, totals: np.ndarray) -> Tensor:
        if self._args is None:
            totals += self._grad[lo:hi].sum(0).numpy()
            return self._grad[lo:hi]
        epilogue.masked(lo, hi, *self._args, totals, flat(buffer.numpy()), lo)
        return buffer[: hi - lo]


class _HiddenGradient:
    """Of the layer ``below`` another, from the gradient of the other's ``[self | mean]``."""

    def __init__(self, both_grad: Tensor, block: Block, below: SageLayer, active: Tensor) -> None:
        self.shape = torch.Size((block.num_src, both_grad.shape[1] // 2))
        grad = both_grad.numpy()
        args = spmm.self_mean_backward_args(*_transposed(block, grad.dtype), grad)
        self._args = *args, flat(active.numpy()), grad.dtype.type(below.scale)

    def tile(self, lo: int, hi: int, buffer: Tensor, totals: np.ndarray) -> Tensor:
        spmm.rectified_backward_rows(lo, hi, *self._args, totals, flat(buffer.numpy()), lo)
        return buffer[: hi - lo]


def _transposed(block: Block, dtype: np.dtype) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The block by source, and 1 / in-degree."""
    indptr, destinations, _ = (t.numpy() for t in block.transposed())
    inverse = 1 / np.maximum(np.diff(block.indptr.numpy()), 1).astype(dtype)
    return (indptr, destinations), inverse


def _input_gradient(both_grad: Tensor, block: Block) -> Tensor:
    grad = both_grad.numpy()
    return torch.from_numpy(spmm.self_mean_backward(*_transposed(block, grad.dtype), grad))


def _backward(
    source: _Gradient, both: Tensor, weight: Tensor | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of ``[self | mean]`` (where ``weight`` is given), of the weights and the bias."""
    rows, columns = source.shape
    both_grad = None if weight is None else torch.empty_like(both)
    tiles = _tiles(rows, BACKWARD_ROWS)
    groups = max(1, min(_GROUPS, len(tiles)))
    partial = torch.zeros(groups, columns, both.shape[1], dtype=both.dtype)
    totals = np.zeros((len(tiles), columns), both.numpy().dtype)

    def task(group: int) -> None:
        buffer = torch.empty(BACKWARD_ROWS, columns, dtype=both.dtype)
        for k in range(len(tiles) * group // groups, len(tiles) * (group + 1) // groups):
            lo, hi = tiles[k]
            grad = source.tile(lo, hi, buffer, totals[k])
            partial[group].addmm_(grad.t(), both[lo:hi])
            if both_grad is not None and weight is not None:
                torch.mm(grad, weight, out=both_grad[lo:hi])

    parallel.run_tasks(task, groups)
    weight_grad = partial[0]
    for group in range(1, groups):
        weight_grad += partial[group]
    return both_grad, weight_grad, torch.from_numpy(totals.sum(0))
