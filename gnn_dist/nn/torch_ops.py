"""The block operators of ``functional`` in plain torch: for GPUs, and as their oracle in tests.

Differentiable by autograd. On a GPU the sums use atomics, so their last bits may vary from run to
run; on a CPU they do not.
"""

import torch
from torch import Tensor

from gnn_dist import rng
from gnn_dist.batch import Block
from gnn_dist.kernels.dropout import threshold


def aggregate(x: Tensor, block: Block, reduce: str, weight: Tensor | None) -> Tensor:
    """See ``functional.aggregate``; ``x`` is [num_src, F], ``weight`` [E] or [E, H]."""
    if reduce == "max":
        return _max(x, block)
    messages = x.index_select(0, block.indices)
    if weight is not None:
        heads = 1 if weight.ndim == 1 else weight.shape[1]
        blocks = messages.view(block.num_edges, heads, x.shape[1] // heads)
        messages = (blocks * weight.view(-1, heads, 1).to(x.dtype)).view_as(messages)
    out = x.new_zeros(block.num_dst, x.shape[1])
    out = out.index_add(0, block.destinations(), messages)
    if reduce == "mean":
        out = out / block.degrees().clamp(min=1).to(x.dtype)[:, None]
    return out


def _max(x: Tensor, block: Block) -> Tensor:
    """The gradient of an entry goes to the first edge that has the largest value."""
    shape = (block.num_dst, x.shape[1])
    rows = block.destinations()[:, None].expand(-1, shape[1])
    with torch.no_grad():
        messages = x.index_select(0, block.indices)
        largest = torch.full(shape, -torch.inf, dtype=x.dtype, device=x.device)
        largest.scatter_reduce_(0, rows, messages, "amax")
        position = torch.arange(block.num_edges, device=x.device)[:, None].expand_as(messages)
        hit = (messages == largest.gather(0, rows)) | messages.isnan()
        position = torch.where(hit, position, block.num_edges)
        edge = torch.full(shape, block.num_edges, device=x.device)
        edge.scatter_reduce_(0, rows, position, "amin")
        empty = edge == block.num_edges
        source = torch.zeros_like(edge)
        source[~empty] = block.indices.long()[edge[~empty]]
    return x.gather(0, source).masked_fill(empty, 0)


def self_mean(x: Tensor, block: Block) -> Tensor:
    """See ``functional.self_mean``."""
    return torch.cat((x[: block.num_dst], aggregate(x, block, "mean", None)), dim=1)


def edge_softmax(scores: Tensor, block: Block) -> Tensor:
    """See ``functional.edge_softmax``; ``scores`` is [E, H]."""
    rows = block.destinations()
    index = rows[:, None].expand_as(scores)
    shape = (block.num_dst, scores.shape[1])
    largest = torch.full(shape, -torch.inf, dtype=scores.dtype, device=scores.device)
    largest.scatter_reduce_(0, index, scores.detach(), "amax")
    value = (scores - largest[rows]).exp()
    total = value.new_zeros(shape).index_add(0, rows, value)
    return value / total[rows]


def edge_add(source: Tensor, destination: Tensor, block: Block) -> Tensor:
    """See ``functional.edge_add``."""
    return source.index_select(0, block.indices) + destination.index_select(0, block.destinations())


def keep_mask(ids: Tensor, width: int, key: int, p: float) -> Tensor:
    """bool[n, width], the entries that keyed dropout keeps: the bits of ``kernels.dropout``."""
    words = torch.arange(-(-width // 4), device=ids.device)
    bits = rng.draw_torch(rng.node_state_torch(key, ids)[:, None], words)
    shifts = torch.arange(0, 64, 16, device=ids.device)
    lanes = (bits[:, :, None] >> shifts) & 0xFFFF
    return (lanes >= threshold(p)).flatten(1)[:, :width]


def keyed_dropout(x: Tensor, ids: Tensor, key: int, p: float) -> Tensor:
    """See ``functional.keyed_dropout``; ``x`` is [n, F]."""
    scale = 65536 / (65536 - threshold(p))
    return torch.where(keep_mask(ids, x.shape[1], key, p), x * scale, 0)
