"""One layer of message passing over a block: ``(x [num_src, in], block) → [num_dst, out]``.

With full neighbourhoods each equals PyG's layer of the same name on the same edges.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.nn.functional import (
    Reduce,
    aggregate,
    attention_dropout,
    edge_add,
    edge_softmax,
    self_mean,
)

GCN_EDGE_TENSOR = "gcn"
"""Name of the edge tensor that ``prepare.gcn_norm`` adds and ``GCNConv`` reads."""


def rows_of(x: Tensor | FeatureRows) -> Tensor:
    """``x`` as a tensor; rows still in a feature table are gathered."""
    return x if isinstance(x, Tensor) else x.materialise()


def own_rows(x: Tensor | FeatureRows, block: Block) -> Tensor:
    """The rows of the block's destinations."""
    return rows_of(x[: block.num_dst])


def edge_weight(x: Tensor | FeatureRows, block: Block) -> Tensor | None:
    """``block.weight`` in the dtype of the rows that it multiplies: the importance of sampled
    edges, say."""
    return None if block.weight is None else block.weight.to(x.dtype)


def transform_first(block: Block, in_features: int, out_features: int) -> bool:
    """Whether it is cheaper to multiply the sources' rows by the weights before aggregating them.

    Both orders give the same result to rounding. Counts multiplications, and one moved number of
    an aggregated row as ``16`` of them (the measured ratio of a GEMM to a random row read).
    """
    gemm = in_features * out_features
    before = block.num_src * gemm + 16 * block.num_edges * out_features
    after = block.num_dst * gemm + 16 * block.num_edges * in_features
    return before < after


class SAGEConv(nn.Module):
    """GraphSAGE (Hamilton, Ying, Leskovec 2017): W_self · own row + W_neigh · aggregate + b.

    Args:
        aggregator: ``mean``, ``max`` or ``sum``.
        normalize: scale each output row to length 1.
        bias: add b.

    Attributes:
        weight: [out, 2 * in], ``[W_self | W_neigh]``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregator: Reduce = "mean",
        normalize: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if aggregator not in ("mean", "max", "sum"):
            raise InputError(f"model.aggregator: {aggregator!r} is none of mean, max, sum")
        self.in_features, self.out_features = in_features, out_features
        self.aggregator: Reduce = aggregator
        self.normalize = normalize
        self.weight = nn.Parameter(torch.empty(out_features, 2 * in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for part in self.weight.data.chunk(2, dim=1):
            nn.init.kaiming_uniform_(part, a=math.sqrt(5))
        _reset_bias(self.bias, self.in_features)

    def forward(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        n, m = self.in_features, self.out_features
        weight = None if self.aggregator == "max" else edge_weight(x, block)
        if self.aggregator != "max" and isinstance(x, Tensor) and transform_first(block, n, m):
            own, others = self.weight.chunk(2, dim=1)
            out = F.linear(x[: block.num_dst], own, self.bias)
            out = out + aggregate(F.linear(x, others), block, self.aggregator, weight)
        else:
            if self.aggregator == "mean" and weight is None:
                rows = self_mean(x, block)
            else:
                mixed = aggregate(x, block, self.aggregator, weight)
                rows = torch.cat((own_rows(x, block), mixed), dim=1)
            out = F.linear(rows, self.weight, self.bias)
        return F.normalize(out, dim=1) if self.normalize else out


class GCNConv(nn.Module):
    """GCN (Kipf & Welling 2017): Σ W x_j / √(d_i d_j) over the in-neighbours j of i, itself
    included, with the degrees of the whole graph.

    ``norm="both"`` reads the edge tensor ``gcn`` of the block, which ``prepare.gcn_norm`` adds to
    the graph together with self-loops: √(d_i / d_j) for each edge, whose mean over all d_i edges
    is the sum above and whose mean over sampled ones is an unbiased estimate of it. ``"right"``
    needs no preparation: the mean of the in-neighbours and the node itself, D⁻¹(A + I).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        norm: Literal["both", "right"] = "both",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if norm not in ("both", "right"):
            raise InputError(f"model.norm: {norm!r} is none of both, right")
        self.in_features, self.out_features, self.norm = in_features, out_features, norm
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        if transform_first(block, self.in_features, self.out_features):
            out = self._propagate(F.linear(rows_of(x), self.weight), block)
            return out if self.bias is None else out + self.bias.to(out.dtype)
        return F.linear(self._propagate(x, block), self.weight, self.bias)

    def _propagate(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        if self.norm == "right":
            count = (block.degrees() + 1).to(x.dtype)[:, None]
            mixed = aggregate(x, block, "sum", edge_weight(x, block))
            return (mixed + own_rows(x, block)) / count
        weight = block.edge.get(GCN_EDGE_TENSOR)
        if weight is None:
            raise InputError(
                f"gcn: the block has no edge tensor {GCN_EDGE_TENSOR!r}; partition the graph that "
                "gnn_dist.nn.gcn_norm returns and name the tensor in the sampler's edge=, or "
                "build the model with norm='right'"
            )
        weight = weight.to(x.dtype)
        importance = edge_weight(x, block)
        return aggregate(x, block, "mean", weight if importance is None else weight * importance)


class GATConv(nn.Module):
    """Graph attention (Veličković et al. 2018) with ``heads`` heads of ``out_features`` columns.

    Args:
        concat: put the heads side by side (the output is [num_dst, heads * out_features]), else
            average them.
        self_loops: each node also attends to itself; self-loops of the graph are replaced.
        attention_dropout: of the normalised coefficients, in [0, 1), drawn by counter keys.
        negative_slope: of the leaky ReLU on the scores.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        self_loops: bool = True,
        attention_dropout: float = 0.0,
        negative_slope: float = 0.2,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise InputError(f"model.heads: {heads} is below 1; give at least 1")
        if not 0 <= attention_dropout < 1:
            raise InputError(
                f"model.attention_dropout: {attention_dropout} is not a probability; "
                "give one in [0, 1)"
            )
        self.in_features, self.out_features, self.heads = in_features, out_features, heads
        self.concat, self.self_loops = concat, self_loops
        self.attention_dropout, self.negative_slope = attention_dropout, negative_slope
        self.weight = nn.Parameter(torch.empty(heads * out_features, in_features))
        self.att_src = nn.Parameter(torch.empty(heads, out_features))
        self.att_dst = nn.Parameter(torch.empty(heads, out_features))
        width = heads * out_features if concat else out_features
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(parameter)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        if self.self_loops:
            block = block_with_self_loops(block)
        h = F.linear(rows_of(x), self.weight)
        heads = h.view(-1, self.heads, self.out_features)
        source = (heads * self.att_src).sum(-1)
        destination = (heads[: block.num_dst] * self.att_dst).sum(-1)
        scores = F.leaky_relu(edge_add(source, destination, block), self.negative_slope)
        alpha = edge_softmax(scores, block)
        if self.training and self.attention_dropout:
            alpha = attention_dropout(alpha, self.attention_dropout, block)
        out = aggregate(h, block, "sum", alpha)
        if not self.concat:
            out = out.view(-1, self.heads, self.out_features).mean(1)
        return out if self.bias is None else out + self.bias


class GINConv(nn.Module):
    """GIN (Xu et al. 2019): MLP((1 + ε) · own row + Σ in-neighbours' rows).

    ``mlp`` maps [num_dst, in] to [num_dst, out]; ε is learned if ``train_eps``.
    """

    def __init__(self, mlp: nn.Module, *, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.mlp = mlp
        value = torch.tensor(float(eps))
        if train_eps:
            self.eps = nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    def forward(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        return self.mlp(
            aggregate(x, block, "sum", edge_weight(x, block)) + (1 + self.eps) * own_rows(x, block)
        )


def block_with_self_loops(block: Block) -> Block:
    """The block with exactly one edge from each destination to itself, last in its row; without
    edge ids, weights and edge tensors."""
    rows = block.destinations()
    kept = block.indices != rows
    counts = torch.zeros(block.num_dst, dtype=torch.int64, device=rows.device)
    counts.index_add_(0, rows, kept.long())
    indptr = torch.zeros_like(block.indptr)
    torch.cumsum(counts + 1, 0, out=indptr[1:])
    size = int(kept.sum()) + block.num_dst
    indices = torch.empty(size, dtype=block.indices.dtype, device=rows.device)
    loops = indptr[1:] - 1
    free = torch.ones(size, dtype=torch.bool, device=rows.device)
    free[loops] = False
    indices[free] = block.indices[kept]
    indices[loops] = torch.arange(block.num_dst, dtype=indices.dtype, device=rows.device)
    return Block(indptr, indices, block.num_src, ids=block.ids, key=block.key)


def _reset_bias(bias: nn.Parameter | None, fan_in: int) -> None:
    if bias is not None:
        bound = 1 / math.sqrt(max(fan_in, 1))
        nn.init.uniform_(bias, -bound, bound)
