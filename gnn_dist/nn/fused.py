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
from typing import Any

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
    index: Tensor | None,
    layers: Sequence[SageLayer],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Tensor:
    """Layers of ``act([self | mean] W^T + b)``, one after the other: [num_dst of the last, out].

    ``x`` is [num_src, F], or with ``index`` int64[num_src] a feature table whose rows are read
    (float32, or float16 that is widened; it gets no gradient). ``weights`` are [out, 2 * in].
    """
    return _Stack.apply(x, index, tuple(layers), *weights, *biases)


def _tiles(rows: int, size: int) -> list[tuple[int, int]]:
    return [(lo, min(lo + size, rows)) for lo in range(0, rows, size)]


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor | None,
        layers: tuple[SageLayer, ...],
        *parameters: Tensor,
    ) -> Tensor:
        ctx.layers = layers
        needs_grad = any(ctx.needs_input_grad)
        weights, biases = parameters[: len(layers)], parameters[len(layers) :]
        saved: list[Tensor] = []
        table: Tensor = x.detach()
        rows = index
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            both, out = _forward(table, rows, layer, weight.detach(), bias.detach(), needs_grad)
            saved += (both, out)
            table, rows = out, None
        if needs_grad:
            ctx.save_for_backward(*saved, *weights)
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers = ctx.layers
        saved = ctx.saved_tensors
        weights = saved[2 * len(layers) :]
        weight_grads: list[Tensor] = []
        bias_grads: list[Tensor] = []
        source = _OutputGradient(grad.contiguous(), layers[-1], saved[2 * len(layers) - 1])
        x_grad = None
        for k in reversed(range(len(layers))):
            both = saved[2 * k]
            goes_on = k > 0 or ctx.needs_input_grad[0]
            weight = weights[k].detach() if goes_on else None
            both_grad, weight_grad, bias_grad = _backward(source, both, weight)
            weight_grads.insert(0, weight_grad)
            bias_grads.insert(0, bias_grad)
            if both_grad is not None:
                below = (layers[k - 1], saved[2 * k - 1]) if k else None
                source = _HiddenGradient(both_grad, layers[k].block, below)
                if not k:
                    x_grad = source.whole()
        return x_grad, None, None, *weight_grads, *bias_grads


def _forward(
    x: Tensor,
    index: Tensor | None,
    layer: SageLayer,
    weight: Tensor,
    bias: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """``[self | mean]`` (empty unless ``keep``) and the layer's output."""
    block, width = layer.block, weight.shape[1]
    rows = block.num_dst
    out = torch.empty(rows, weight.shape[0], dtype=weight.dtype)
    both = torch.empty(rows if keep else 0, width, dtype=weight.dtype)
    product = weight.t().contiguous()
    indptr, indices = block.indptr.numpy(), block.indices.numpy()
    args = spmm.self_mean_args(
        indptr, indices, x.contiguous().numpy(), None if index is None else index.numpy()
    )
    flat_both, flat_out, offset = flat(both.numpy()), flat(out.numpy()), bias.numpy()
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
        epilogue.add_bias(lo, hi, flat_out, offset, layer.rectify)
        if ids is not None:
            drop_rows(lo, hi, out.numpy(), ids, layer.key, drop)

    parallel.run_tasks(task, len(tiles))
    return both, out


class _OutputGradient:
    """The gradient before the last layer's activation, from the one after it."""

    def __init__(self, grad: Tensor, layer: SageLayer, out: Tensor) -> None:
        self.shape = grad.shape
        self._grad = grad
        self._args = None
        if layer.rectify:
            scale = grad.numpy().dtype.type(layer.scale)
            self._args = flat(grad.numpy()), flat(out.numpy()), scale, grad.shape[1]

    def tile(self, lo: int, hi: int, buffer: Tensor) -> Tensor:
        """Rows ``lo .. hi - 1``, in ``buffer`` or elsewhere."""
        if self._args is None:
            return self._grad[lo:hi]
        epilogue.masked(lo, hi, *self._args, flat(buffer.numpy()), lo)
        return buffer[: hi - lo]


class _HiddenGradient:
    """The gradient before the activation ``below`` a layer (of its input, where there is none),
    from the gradient of the layer's ``[self | mean]``."""

    def __init__(
        self, both_grad: Tensor, block: Block, below: tuple[SageLayer, Tensor] | None
    ) -> None:
        self.shape = torch.Size((block.num_src, both_grad.shape[1] // 2))
        grad = both_grad.numpy()
        indptr, destinations, _ = (t.numpy() for t in block.transposed())
        inverse = 1 / np.maximum(np.diff(block.indptr.numpy()), 1).astype(grad.dtype)
        active = None if below is None or not below[0].rectify else below[1].numpy()
        scale = 1.0 if below is None else below[0].scale
        self._args = spmm.self_mean_backward_args(
            (indptr, destinations), inverse, grad, active, scale
        )
        self._dtype = both_grad.dtype

    def tile(self, lo: int, hi: int, buffer: Tensor) -> Tensor:
        spmm.self_mean_backward_rows(lo, hi, *self._args, flat(buffer.numpy()), lo)
        return buffer[: hi - lo]

    def whole(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self._dtype)
        args = (*self._args, flat(out.numpy()), 0)
        parallel.run_rows(spmm.self_mean_backward_rows, self._args[0], *args)
        return out


def _backward(
    source: _OutputGradient | _HiddenGradient, both: Tensor, weight: Tensor | None
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
            grad = source.tile(lo, hi, buffer)
            partial[group].addmm_(grad.t(), both[lo:hi])
            epilogue.column_total(flat(grad.numpy()), hi - lo, totals[k])
            if both_grad is not None:
                torch.mm(grad, weight, out=both_grad[lo:hi])

    parallel.run_tasks(task, groups)
    weight_grad = partial[0]
    for group in range(1, groups):
        weight_grad += partial[group]
    return both_grad, weight_grad, torch.from_numpy(totals.sum(0))
