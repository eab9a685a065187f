"""Differentiable operators over blocks.

On a CPU they are the kernels of ``gnn_dist.kernels``, whose results do not depend on the number
of threads; on other devices they are torch operators (``torch_ops``). Both agree to rounding.
bfloat16 and float16 are summed in float32 and given back in their own type.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist import rng
from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.kernels import dropout as dropout_kernels
from gnn_dist.kernels import maximum as max_kernels
from gnn_dist.kernels import softmax as softmax_kernels
from gnn_dist.kernels import spmm as kernels
from gnn_dist.nn import torch_ops

Reduce = Literal["sum", "mean", "max"]


def aggregate(
    x: Tensor | FeatureRows, block: Block, reduce: Reduce = "mean", weight: Tensor | None = None
) -> Tensor:
    """Combine the rows of each destination's sources: [num_src, F] → [num_dst, F].

    ``weight`` float[E], or float[E, H] for H equal column blocks of ``x``, multiplies each edge's
    row (not for max) and gets a gradient where it asks for one; a mean divides by the number of
    edges. A destination without edges gets 0. The gradient of a maximum goes to the first edge
    that has it.
    """
    if reduce not in ("sum", "mean", "max"):
        raise InputError(f"aggregate: reduce is {reduce!r}; use sum, mean or max")
    if weight is not None and reduce == "max":
        raise InputError("aggregate: max takes no edge weights; use sum or mean")
    _check_rows("aggregate", x, block)
    if isinstance(x, FeatureRows):
        table = _table(x) if reduce != "max" and len(x.tables) == 1 else None
        if table is not None and (weight is None or not weight.requires_grad):
            return _aggregate_table(table, x, block, reduce == "mean", weight)
        x = x.materialise()
    if not _on_cpu(x):
        return torch_ops.aggregate(x, block, reduce, weight)
    if reduce == "max":
        return _Max.apply(x, block)
    return _Sum.apply(x, weight, block, reduce == "mean")


def self_mean(x: Tensor | FeatureRows, block: Block) -> Tensor:
    """``[self | mean]`` in one pass: [num_src, F] → [num_dst, 2F].

    Rows left in a feature table (float32, or float16 that is widened) are read there: the gathered
    input rows are never in memory.
    """
    _check_rows("self_mean", x, block)
    if isinstance(x, FeatureRows):
        table = _table(x)
        if table is not None:
            arrays = block.indptr.numpy(), block.indices.numpy(), table
            addresses = x.addresses().numpy()
            return torch.from_numpy(kernels.self_mean(*arrays, addresses=addresses))
        x = x.materialise()
    if not _on_cpu(x):
        return torch_ops.self_mean(x, block)
    return _SelfMean.apply(x, block)


def edge_softmax(scores: Tensor, block: Block) -> Tensor:
    """Softmax of float[E, H] (or [E]) over the in-edges of each destination."""
    flat = scores.reshape(scores.shape[0], math.prod(scores.shape[1:]))
    out = _Softmax.apply(flat, block) if _on_cpu(flat) else torch_ops.edge_softmax(flat, block)
    return out.view(scores.shape)


def edge_add(source: Tensor, destination: Tensor, block: Block) -> Tensor:
    """``source[s] + destination[d]`` for each edge s → d: [num_src, H], [num_dst, H] → [E, H]."""
    if not _on_cpu(source):
        return torch_ops.edge_add(source, destination, block)
    return _EdgeAdd.apply(source, destination, block)


def keyed_dropout(x: Tensor, p: float, block: Block, *, salt: int = 0) -> Tensor:
    """Dropout of [n, F] rows whose mask is drawn for (``block.key``, ``salt``, the row's original
    id ``block.ids[row]``, column): the same in whichever process, order or recomputation.

    ``p`` in [0, 1) is realised in steps of 2⁻¹⁶. ``salt`` tells several dropouts of one layer
    apart.
    """
    if not 0 <= p < 1:
        raise InputError(f"dropout: p is {p}; give a probability of at least 0 and below 1")
    if dropout_kernels.threshold(p) == 0:
        return x
    key = dropout_key(block, x.shape[0], salt)
    assert block.ids is not None
    return _drop(x, block.ids[: x.shape[0]], key, p)


def dropout_key(block: Block, rows: int, salt: int = 0) -> int:
    """The key of ``keyed_dropout``; ``InputError`` where the block lacks ids of ``rows`` rows."""
    if block.ids is None or block.ids.numel() < rows:
        known = 0 if block.ids is None else block.ids.numel()
        raise InputError(
            f"dropout: the block has original ids for {known} of {rows} rows; set block.ids "
            "(a sampler of this package does), or use torch.nn.Dropout"
        )
    return rng.fold(block.key, rng.Stream.DROPOUT, salt)


def attention_dropout(alpha: Tensor, p: float, block: Block) -> Tensor:
    """Dropout of edge coefficients [E, H], drawn for (``block.key``, the destination's original id,
    the edge's rank in its row, head)."""
    if not 0 <= p < 1:
        raise InputError(f"dropout: p is {p}; give a probability of at least 0 and below 1")
    if block.ids is None:
        raise InputError(
            "attention dropout: the block has no original ids; set block.ids (a sampler of this "
            "package does)"
        )
    rows = block.destinations()
    rank = torch.arange(block.num_edges, device=rows.device) - block.indptr[rows]
    key = rng.fold(block.key, rng.Stream.DROPOUT, -1)
    ids = rng.draw_torch(rng.node_state_torch(key, block.ids[rows]), rank)
    return _drop(alpha, ids, key, p)


def _drop(x: Tensor, ids: Tensor, key: int, p: float) -> Tensor:
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    if _on_cpu(flat):
        return _Dropout.apply(flat, ids, key, p).view(x.shape)
    return torch_ops.keyed_dropout(flat, ids, key, p).view(x.shape)


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in _WIDE


_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


def _check_rows(what: str, x: Tensor | FeatureRows, block: Block) -> None:
    if x.shape[0] != block.num_src:
        raise InputError(
            f"{what}: {x.shape[0]} rows for a block with {block.num_src} source nodes; give the "
            "rows of the block's sources, in their order"
        )


def _array(x: Tensor) -> np.ndarray:
    """As the kernels take it: contiguous; bfloat16 as its bits."""
    x = x.detach().contiguous()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


def _wide_array(x: Tensor) -> np.ndarray:
    return x.detach().to(_WIDE[x.dtype]).contiguous().numpy()


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(array).to(dtype)


def _table(rows: FeatureRows) -> np.ndarray | None:
    """The first table [N, F] where the kernels can read all of them, else None."""
    readable = rows.stored in (rows.dtype, torch.float16)
    if rows.device.type != "cpu" or rows.dtype != torch.float32 or not readable:
        return None
    if not all(table.is_contiguous() for table in rows.tables):
        return None
    return rows.tables[0].reshape(rows.tables[0].shape[0], -1).numpy()


def _narrow(ids: np.ndarray, limit: int) -> np.ndarray:
    """As int32 where all below ``limit`` fit: what the kernels are compiled for ahead."""
    return ids.astype(np.int32) if limit <= np.iinfo(np.int32).max else ids


def _aggregate_table(
    table: np.ndarray, rows: FeatureRows, block: Block, mean: bool, weight: Tensor | None
) -> Tensor:
    source = _narrow(rows.index.index_select(0, block.indices).numpy(), table.shape[0])
    coef = None if weight is None else _wide_array(weight)
    return torch.from_numpy(kernels.spmm(block.indptr.numpy(), source, table, coef=coef, mean=mean))


def _inverse_degree(block: Block, dtype: np.dtype) -> np.ndarray:
    return 1 / np.maximum(np.diff(block.indptr.numpy()), 1).astype(dtype)


class _Sum(torch.autograd.Function):
    """Sum or mean with optional edge weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, block: Block, mean: bool) -> Tensor:
        coef = None if weight is None else _wide_array(weight)
        arrays = block.indptr.numpy(), block.indices.numpy(), _array(x)
        out = kernels.spmm(*arrays, coef=coef, mean=mean)
        ctx.block, ctx.mean, ctx.dtype = block, mean, x.dtype
        weight_grad = weight is not None and weight.requires_grad
        ctx.save_for_backward(x if weight_grad else None, weight)
        return _tensor(out, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        block, (x, weight) = ctx.block, ctx.saved_tensors
        grad_out = _wide_array(grad)
        x_grad = weight_grad = None
        if ctx.needs_input_grad[0]:
            indptr, destinations, position = (t.numpy() for t in block.transposed())
            coef = None if weight is None else _wide_array(weight)[position]
            if ctx.mean:
                scale = _inverse_degree(block, grad_out.dtype)[destinations]
                coef = scale if coef is None else (coef.T * scale).T
            out = kernels.spmm(indptr, destinations, grad_out, coef=coef, ahead=False)
            x_grad = _tensor(out, ctx.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            heads = 1 if weight.ndim == 1 else weight.shape[1]
            arrays = block.indptr.numpy(), block.indices.numpy(), grad_out, _wide_array(x)
            out = kernels.edge_dot(*arrays, heads=heads, mean=ctx.mean)
            weight_grad = _tensor(out, weight.dtype).view(weight.shape)
        return x_grad, weight_grad, None, None


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        values, edge = max_kernels.spmm_max(
            block.indptr.numpy(), block.indices.numpy(), _wide_array(x)
        )
        ctx.block, ctx.edge, ctx.dtype = block, edge, x.dtype
        return _tensor(values, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        transposed = tuple(t.numpy() for t in ctx.block.transposed())
        out = max_kernels.spmm_max_backward(transposed, _wide_array(grad), ctx.edge)
        return _tensor(out, ctx.dtype), None


class _SelfMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        ctx.block, ctx.dtype = block, x.dtype
        out = kernels.self_mean(block.indptr.numpy(), block.indices.numpy(), _array(x))
        return _tensor(out, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        indptr, destinations, _ = (t.numpy() for t in ctx.block.transposed())
        grad_out = _wide_array(grad)
        inverse = _inverse_degree(ctx.block, grad_out.dtype)
        out = kernels.self_mean_backward((indptr, destinations), inverse, grad_out)
        return _tensor(out, ctx.dtype), None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, block: Block) -> Tensor:
        out = softmax_kernels.edge_softmax(block.indptr.numpy(), _wide_array(scores))
        ctx.block, ctx.out, ctx.dtype = block, out, scores.dtype
        return _tensor(out, scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = softmax_kernels.edge_softmax_backward(
            ctx.block.indptr.numpy(), ctx.out, _wide_array(grad)
        )
        return _tensor(out, ctx.dtype), None


class _EdgeAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, destination: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return torch_ops.edge_add(source, destination, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        block, rows = ctx.block, _wide_array(grad)
        source_grad = destination_grad = None
        if ctx.needs_input_grad[0]:
            indptr, _, position = (t.numpy() for t in block.transposed())
            edges = _narrow(position, block.num_edges)
            source_grad = _tensor(kernels.spmm(indptr, edges, rows, ahead=False), grad.dtype)
        if ctx.needs_input_grad[1]:
            edges = _narrow(np.arange(block.num_edges), block.num_edges)
            out = kernels.spmm(block.indptr.numpy(), edges, rows, ahead=False)
            destination_grad = _tensor(out, grad.dtype)
        return source_grad, destination_grad, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, key: int, p: float) -> Tensor:
        ctx.ids, ctx.key, ctx.p = ids, key, p
        return _dropped(x, ids, key, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _dropped(grad, ctx.ids, ctx.key, ctx.p), None, None, None


def _dropped(x: Tensor, ids: Tensor, key: int, p: float) -> Tensor:
    out = dropout_kernels.keyed_dropout(_wide_array(x), ids.numpy(), key, p)
    return _tensor(out, x.dtype)
