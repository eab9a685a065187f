"""Peers of the dynamic models: the cells of PyTorch Geometric Temporal written with PyG's layers,
applied one window and one snapshot at a time.

``PygConv`` is PyG's ``GCNConv`` as it is, which normalises at every call; ``CsrConv`` multiplies
the same weights and a CSR matrix that was normalised once (its transpose too, for the gradient).
Weights are copied from our models, so that losses and gradients can be compared.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import ChebConv, GCNConv, TopKPooling
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnn_dist.dynamic.sequence import SnapshotSequence


class PygConv(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.conv = GCNConv(*weight.shape).to(weight.dtype)
        self.conv.lin.weight.data = weight.detach().t().clone()
        self.conv.bias.data = bias.detach().clone()

    def forward(self, x: Tensor, graph: tuple[Tensor, Tensor | None]) -> Tensor:
        return self.conv(x, *graph)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ gradients[0], None, None


class CsrConv(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.lin = nn.Linear(*weight.shape, bias=False).to(weight.dtype)
        self.lin.weight.data = weight.detach().t().clone()
        self.bias = nn.Parameter(bias.detach().clone())

    def forward(self, x: Tensor, graph: tuple[Tensor, Tensor]) -> Tensor:
        return _Multiply.apply(self.lin(x), *graph) + self.bias


def pyg_graphs(sequence: SnapshotSequence, dtype: torch.dtype) -> list[Any]:
    """``(edge_index, edge_weight)`` of every snapshot."""
    out = []
    for t in range(sequence.num_snapshots):
        csc = sequence.snapshot(t)
        weight = None if csc.weight is None else torch.from_numpy(csc.weight).to(dtype)
        out.append((torch.from_numpy(csc.edge_index()), weight))
    return out


def csr_graphs(sequence: SnapshotSequence, dtype: torch.dtype) -> list[Any]:
    """The normalised adjacency of every snapshot and its transpose, in CSR."""
    out = []
    nodes = sequence.num_nodes
    for index, weight in pyg_graphs(sequence, dtype):
        index, values = gcn_norm(index, weight, nodes, dtype=dtype)
        pair = []
        for rows, columns in ((index[1], index[0]), (index[0], index[1])):
            matrix = torch.sparse_coo_tensor(torch.stack((rows, columns)), values, (nodes, nodes))
            pair.append(matrix.coalesce().to_sparse_csr())
        out.append(tuple(pair))
    return out


class PeerTGCN(nn.Module):
    def __init__(self, model: Any, conv: type) -> None:
        super().__init__()
        pairs = zip(model.conv, model.conv_bias, strict=True)
        self.conv = nn.ModuleList([conv(w, b) for w, b in pairs])
        self.linear = nn.ModuleList()
        for gate in model.gates:
            copy = nn.Linear(gate.in_features, gate.out_features).to(gate.weight.dtype)
            copy.load_state_dict(gate.state_dict())
            self.linear.append(copy)
        self.hidden = model.hidden

    def step(self, x: Tensor, graph: Any, h: Tensor) -> Tensor:
        z = torch.sigmoid(self.linear[0](torch.cat((self.conv[0](x, graph), h), 1)))
        r = torch.sigmoid(self.linear[1](torch.cat((self.conv[1](x, graph), h), 1)))
        c = torch.tanh(self.linear[2](torch.cat((self.conv[2](x, graph), h * r), 1)))
        return z * h + (1 - z) * c

    def forward(self, xs: list[Tensor], graphs: list[Any]) -> Tensor:
        h = xs[0].new_zeros(xs[0].shape[0], self.hidden)
        for x, graph in zip(xs, graphs, strict=True):
            h = self.step(x, graph, h)
        return h


class PeerMPNNLSTM(nn.Module):
    def __init__(self, model: Any, conv: type) -> None:
        super().__init__()
        pairs = zip(model.conv, model.conv_bias, strict=True)
        self.conv = nn.ModuleList([conv(w, b) for w, b in pairs])
        hidden, dtype = model.hidden, model.conv[0].dtype
        self.norm = nn.ModuleList()
        for scale, shift in zip(model.scale, model.shift, strict=True):
            norm = nn.BatchNorm1d(hidden, track_running_stats=False).to(dtype)
            norm.weight.data, norm.bias.data = scale.detach().clone(), shift.detach().clone()
            self.norm.append(norm)
        self.lstm = nn.ModuleList()
        for i, width in enumerate((2 * hidden, hidden)):
            lstm = nn.LSTM(width, hidden, 1).to(dtype)
            lstm.weight_ih_l0.data = model.lstm[3 * i].detach().clone()
            lstm.weight_hh_l0.data = model.lstm[3 * i + 1].detach().clone()
            lstm.bias_ih_l0.data = model.lstm[3 * i + 2].detach().clone()
            lstm.bias_hh_l0.data.zero_()
            self.lstm.append(lstm)
        self.dropout = model.dropout

    def forward(self, xs: list[Tensor], graphs: list[Any]) -> Tensor:
        rows = []
        for x, graph in zip(xs, graphs, strict=True):
            parts, h = [], x
            for conv, norm in zip(self.conv, self.norm, strict=True):
                h = norm(torch.relu(conv(h, graph)))
                h = nn.functional.dropout(h, self.dropout, self.training)
                parts.append(h)
            rows.append(torch.cat(parts, 1))
        out, (h1, _) = self.lstm[0](torch.stack(rows))
        _, (h2, _) = self.lstm[1](out)
        return torch.cat((h1[0], h2[0], torch.cat(xs, 1)), 1)


class PeerGConvGRU(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.x, self.h = nn.ModuleList(), nn.ModuleList()
        dtype = model.input[0].dtype
        for side, weights, width in (
            (self.x, model.input, model.in_features), (self.h, model.state, model.hidden),
        ):  # fmt: skip
            for weight, bias in zip(weights, model.bias, strict=True):
                conv = ChebConv(width, model.hidden, model.K).to(dtype)
                for k, lin in enumerate(conv.lins):
                    lin.weight.data = weight.detach()[k * width : (k + 1) * width].t().clone()
                conv.bias.data = bias.detach().clone() if side is self.x else bias.detach() * 0
                side.append(conv)
        self.hidden = model.hidden

    def forward(self, xs: list[Tensor], graphs: list[Any]) -> Tensor:
        h = xs[0].new_zeros(xs[0].shape[0], self.hidden)
        for x, graph in zip(xs, graphs, strict=True):
            z = torch.sigmoid(self.x[0](x, *graph) + self.h[0](h, *graph))
            r = torch.sigmoid(self.x[1](x, *graph) + self.h[1](h, *graph))
            c = torch.tanh(self.x[2](x, *graph) + self.h[2](h * r, *graph))
            h = z * h + (1 - z) * c
        return h


class PeerEvolveGCN(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        width, hidden, dtype = model.in_features, model.hidden, model.weight.dtype
        self.weight = nn.Parameter(model.weight.detach().clone())
        self.gru = nn.GRU(model.cell.input_size, hidden, 1).to(dtype)
        for name, value in model.cell.state_dict().items():
            getattr(self.gru, f"{name}_l0").data = value.clone()
        self.conv = GCNConv(width, hidden, bias=False).to(dtype)
        self.pool = None
        if model.variant == "H":
            self.pool = TopKPooling(width, ratio=width).to(dtype)
            self.pool.select.weight.data = model.score.detach()[None].clone()

    def forward(self, xs: list[Tensor], graphs: list[Any]) -> Tensor:
        weight = self.weight[None]
        for x, (index, _) in zip(xs, graphs, strict=True):
            read = weight if self.pool is None else self.pool(x, index)[0][None]
            _, weight = self.gru(read.contiguous(), weight.contiguous())
        parameters = {"lin.weight": weight[0].t()}
        return torch.func.functional_call(self.conv, parameters, (xs[-1], *graphs[-1]))
