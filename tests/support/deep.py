"""A deep model's blocks written with torch alone, and small square blocks to run them on."""

import numpy as np
import torch
from torch import Tensor

from gnn_dist.batch import Block
from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.parameters import StackTensors


def square_block(num_nodes: int, num_edges: int, seed: int = 0, key: int = 0) -> Block:
    """Random edges with parallel ones, self-loops and empty rows."""
    rng = np.random.default_rng(seed)
    dst = np.sort(rng.integers(0, max(1, num_nodes - 2), num_edges))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    src = rng.integers(0, num_nodes, num_edges).astype(np.int32)
    return Block(
        torch.from_numpy(indptr),
        torch.from_numpy(src),
        num_nodes,
        ids=torch.arange(num_nodes) * 3 + 1,
        key=key,
    )


def dense_adjacency(block: Block, dtype: torch.dtype) -> Tensor:
    """A[i, j] = number of edges j -> i."""
    a = torch.zeros(block.num_dst, block.num_src, dtype=dtype)
    src, dst = block.edge_index()
    return a.index_put_((dst, src), torch.ones(src.numel(), dtype=dtype), accumulate=True)


def _normalised(config: DeepConfig, a: Tensor) -> Tensor:
    n = a.shape[0]
    degree = a.sum(1)
    if config.conv == "mean":
        return a / degree.clamp(min=1)[:, None]
    if config.conv == "gcn":
        root = (degree + 1).rsqrt()
        return root[:, None] * (a + torch.eye(n, dtype=a.dtype)) * root[None, :]
    return a + (1 + config.gin_eps) * torch.eye(n, dtype=a.dtype)


def _attention(config: DeepConfig, a: Tensor, s: Tensor, scores: Tensor) -> Tensor:
    count = a + torch.eye(a.shape[0], dtype=a.dtype)  # parallel edges count each
    e = torch.nn.functional.leaky_relu(
        (s @ scores[0])[None, :] + (s @ scores[1])[:, None], config.attention_slope
    )
    top = e.masked_fill(count == 0, -torch.inf).amax(1, keepdim=True).detach()
    w = count * torch.exp(e - top)
    return (w / w.sum(1, keepdim=True)) @ s


def reference_inner(
    config: DeepConfig, block: Block, u: Tensor, initial: Tensor | None, p: StackTensors
) -> Tensor:
    """f(u) with its bias, by dense matrices and ``torch.topk``."""
    d = u.shape[1]
    if config.norm == "layer":
        y = torch.nn.functional.layer_norm(u, (d,), eps=config.norm_eps)
    elif config.norm == "rms":
        y = u * torch.rsqrt(u.square().mean(1, keepdim=True) + config.norm_eps)
    else:
        y = u
    y = y * p.gain + p.shift
    kept = torch.topk(y.detach(), config.kept, dim=1).indices
    s = y * torch.zeros_like(y).scatter_(1, kept, 1.0)
    a = dense_adjacency(block, u.dtype)
    sweeps = {"fan_in": (a,), "fan_out": (a.T,), "both": (a, a.T)}[config.direction]
    parts = [s] if config.own_column else []
    for k, sweep in enumerate(sweeps):
        if config.conv == "attention":
            h = _attention(config, sweep, s, p.attention[k])
        else:
            h = _normalised(config, sweep) @ s
        if initial is not None:
            h = (1 - config.initial_residual) * h + config.initial_residual * initial
        parts.append(h)
    return torch.cat(parts, 1) @ p.weight + p.bias


def reference_stack(
    config: DeepConfig, block: Block, state: Tensor, initial: Tensor | None, p: StackTensors
) -> Tensor:
    """All blocks without a grid."""
    parts = list(state.unbind(0))
    for layer in range(p.gain.shape[0]):
        for i in range(config.groups):
            u = parts[i - 1] if i else torch.stack(parts[1:]).sum(0)
            start = None if initial is None else initial[i]
            parts[i] = parts[i] + reference_inner(config, block, u, start, p.block(layer, i))
    return torch.stack(parts)
