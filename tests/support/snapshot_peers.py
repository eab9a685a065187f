"""PyG's layers one window and one snapshot at a time: the oracle of the dynamic strategies."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gnn_dist.dynamic import SnapshotSequence, WindowBatch
from gnn_dist.nn.recurrent import models


def peers() -> ModuleType:
    """``scripts/bench/_dynamic_peers.py``: what the bench measures is what is compared here."""
    path = Path(__file__).parents[2] / "scripts" / "bench" / "_dynamic_peers.py"
    spec = importlib.util.spec_from_file_location("_dynamic_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_of(model: nn.Module) -> nn.Module:
    module = peers()
    if isinstance(model, models.TGCN):
        return module.PeerTGCN(model, module.PygConv)
    if isinstance(model, models.MPNNLSTM):
        return module.PeerMPNNLSTM(model, module.PygConv)
    if isinstance(model, models.GConvGRU):
        return module.PeerGConvGRU(model)
    assert isinstance(model, models.EvolveGCN)
    return module.PeerEvolveGCN(model)


def oracle(
    sequence: SnapshotSequence, model: nn.Module, head: nn.Module, batch: WindowBatch
) -> tuple[float, dict[str, Tensor]]:
    """Mean squared error of a step, and the gradients by the peer's parameter names."""
    dtype = next(model.parameters()).dtype
    graphs = peers().pyg_graphs(sequence, dtype)
    peer = peer_of(model)
    losses: list[Any] = []
    for start in batch.starts:
        span = range(start, start + batch.length)
        xs = [torch.tensor(sequence.x[t], dtype=dtype) for t in span]
        out = head(peer(xs, [graphs[t] for t in span]))[:, 0]
        active = torch.from_numpy(sequence.active_at(span[-1]))
        y = torch.tensor(sequence.y[span[-1]], dtype=dtype)
        losses.append(((out - y) ** 2)[active])
    loss = torch.cat(losses).mean()
    for p in head.parameters():
        p.grad = None
    loss.backward()
    found = {n: p.grad for n, p in peer.named_parameters() if p.grad is not None}
    found |= {f"head.{n}": p.grad.clone() for n, p in head.named_parameters()}
    return float(loss.detach()), found


def ours_by_peer_name(model: nn.Module, task: nn.Module) -> dict[str, Tensor]:
    """Gradients of our parameters under the names and in the shapes of the peer's."""
    out: dict[str, Any] = {f"head.{n}": p.grad for n, p in task.named_parameters()}
    if isinstance(model, models.TGCN):
        for i in range(3):
            out[f"conv.{i}.conv.lin.weight"] = model.conv[i].grad.t()
            out[f"conv.{i}.conv.bias"] = model.conv_bias[i].grad
            out[f"linear.{i}.weight"] = model.gates[i].weight.grad
            out[f"linear.{i}.bias"] = model.gates[i].bias.grad
    elif isinstance(model, models.MPNNLSTM):
        for i in range(2):
            out[f"conv.{i}.conv.lin.weight"] = model.conv[i].grad.t()
            out[f"conv.{i}.conv.bias"] = model.conv_bias[i].grad
            out[f"norm.{i}.weight"] = model.scale[i].grad
            out[f"norm.{i}.bias"] = model.shift[i].grad
            out[f"lstm.{i}.weight_ih_l0"] = model.lstm[3 * i].grad
            out[f"lstm.{i}.weight_hh_l0"] = model.lstm[3 * i + 1].grad
            out[f"lstm.{i}.bias_ih_l0"] = model.lstm[3 * i + 2].grad
            out[f"lstm.{i}.bias_hh_l0"] = model.lstm[3 * i + 2].grad
    elif isinstance(model, models.GConvGRU):
        for i in range(3):
            for side, weights, width in (
                ("x", model.input, model.in_features), ("h", model.state, model.hidden),
            ):  # fmt: skip
                for k in range(model.K):
                    part = weights[i].grad[k * width : (k + 1) * width].t()
                    out[f"{side}.{i}.lins.{k}.weight"] = part
                out[f"{side}.{i}.bias"] = model.bias[i].grad
    elif isinstance(model, models.EvolveGCN):
        out["weight"] = model.weight.grad
        for name, p in model.cell.named_parameters():
            out[f"gru.{name}_l0"] = p.grad
        if model.variant == "H":
            out["pool.select.weight"] = model.score.grad[None]
    return out
