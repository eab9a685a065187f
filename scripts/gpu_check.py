#!/usr/bin/env python
"""Checks the GPU paths against the CPU, and times a training step on both.

    python scripts/gpu_check.py [--device cuda] [--nodes 200000] [--json FILE]

Needs no data and no Ray. Exits with 1 where a result differs. Figures are those of the machine it
runs on; it claims nothing where there is no GPU.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block, MiniBatch
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.datasets.circuits import generated_circuits
from gnn_dist.datasets.synthetic import rmat
from gnn_dist.datasets.temporal import synthetic
from gnn_dist.dynamic import WindowBatch
from gnn_dist.nn import build_model, gcn_norm
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.nn.functional import keyed_dropout
from gnn_dist.nn.recurrent.models import MPNNLSTM, TGCN, GConvGRU
from gnn_dist.sampling import LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.pipeline import PipelineStrategy
from gnn_dist.strategies.snapshot import Options, SnapshotStrategy
from gnn_dist.strategies.snapshot_tasks import NodeRegression

MODELS = {
    "sage": {"hidden": 256, "dropout": 0.5},
    "gcn": {"hidden": 256},
    "gat": {"hidden": 256, "heads": 4},
    "gin": {"hidden": 256},
}


RECURRENT = {
    "tgcn": lambda features: TGCN(features, 32),
    "mpnn_lstm": lambda features: MPNNLSTM(features, 32, 8),
    "gconv_gru": lambda features: GConvGRU(features, 32),
}


def batches(num_nodes: int, count: int) -> list[MiniBatch]:
    graph = gcn_norm(rmat(num_nodes=num_nodes, avg_degree=15.0, num_features=100))
    topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    sampler = NeighborSampler([15, 10, 5], edge=("gcn",))
    drawn = []
    for number in range(count):
        index = BatchIndex(0, number)
        order = rng.permutation(rng.fold(1, number), np.arange(num_nodes))
        batch = sampler.sample(topology, order[:1024], seed=0, index=index)
        batch.x = torch.from_numpy(graph.node["x"])[batch.input_nodes]
        batch.node = {"y": torch.from_numpy(graph.node["y"])[batch.seeds]}
        drawn.append(batch)
    return drawn


def step(model: torch.nn.Module, batch: MiniBatch, device: str) -> torch.Tensor:
    blocks = [block.to(device) for block in batch.blocks]
    output = model(batch.x.to(device), blocks)
    loss = torch.nn.functional.cross_entropy(output, batch.node["y"].to(device))
    loss.backward()
    return output.detach().cpu()


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def check_dropout(batch: MiniBatch, device: str) -> bool:
    """The same mask, bit for bit, on both."""
    block = batch.blocks[-1]
    h = torch.ones(block.num_dst, 64)
    here = keyed_dropout(h, 0.3, block)
    there = keyed_dropout(h.to(device), 0.3, block.to(device)).cpu()
    return torch.equal(here, there)


def check_model(name: str, args: dict, drawn: list[MiniBatch], device: str) -> dict:
    classes = int(max(b.node["y"].max() for b in drawn)) + 1
    sizes = {"in_features": drawn[0].x.shape[1], "out_features": classes, "num_layers": 3}
    here = build_model(name, args, **sizes).train()
    there = build_model(name, args, **sizes).to(device).train()
    error = float((step(here, drawn[0], "cpu") - step(there, drawn[0], device)).abs().max())
    scale = max(float(p.grad.abs().max()) for p in here.parameters())
    gradient = max(
        float((a.grad - b.grad.cpu()).abs().max()) / scale
        for a, b in zip(here.parameters(), there.parameters(), strict=True)
    )
    seconds = {"cpu": [], device: []}
    for batch in drawn[1:]:
        for place, model in (("cpu", here), (device, there)):
            synchronise(device)
            start = time.perf_counter()
            step(model, batch, place)
            synchronise(device)
            seconds[place].append(time.perf_counter() - start)
    return {
        "model": name,
        "output_error": error,
        "gradient_error": gradient,
        "cpu_ms": 1000 * statistics.median(seconds["cpu"]),
        f"{device}_ms": 1000 * statistics.median(seconds[device]),
        "ok": error < 1e-3 and gradient < 1e-3,
    }


def check_deep(num_nodes: int, device: str) -> dict:
    """The deep model's torch operators against the kernels; the inverse on the grid is exact."""
    graph = rmat(num_nodes=num_nodes, avg_degree=2.5, num_features=16)
    block = Block(
        torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), num_nodes,
        ids=torch.arange(num_nodes),
    )  # fmt: skip
    x = torch.from_numpy(graph.node["x"])
    outputs, grads, seconds = [], [], []
    for place in ("cpu", device):
        model = DeepGNN(16, 1, width=64, layers=28, direction="both").to(place)
        there, rows = block.to(place), x.to(place)
        for _ in range(2):  # the second is timed
            model.zero_grad(set_to_none=True)
            synchronise(place)
            start = time.perf_counter()
            output = model(rows, [there])
            output.square().mean().backward()
            synchronise(place)
            took = time.perf_counter() - start
        seconds.append(took)
        outputs.append(output.detach().cpu())
        grads.append([p.grad.cpu() for p in model.parameters() if p.numel()])
    state = model.encode(rows).detach()
    exact = torch.equal(model.stack.last_inner.reconstructed, state)
    # by norm: where two values are nearly equal, roundings decide which a node keeps
    error = float((outputs[0] - outputs[1]).norm() / outputs[0].norm())
    gradient = max(float((a - b).norm() / a.norm()) for a, b in zip(*grads, strict=True))
    return {
        "model": "deep",
        "output_error": error,
        "gradient_error": gradient,
        "undone_exactly": exact,
        "cpu_ms": 1000 * seconds[0],
        f"{device}_ms": 1000 * seconds[1],
        "ok": exact and error < 1e-2 and gradient < 5e-2,
    }


def check_pipeline(device: str) -> dict:
    """A global batch of the strategy pipeline on one rank: the second is timed."""
    graph = generated_circuits(
        kinds=["array_multiplier"], widths=[8, 12, 16], targets=["level"], patterns=64
    )
    job = Config.model_validate(
        {
            "dataset": {"name": "generated_circuits"},
            "sampler": {"name": "circuits"},
            "model": {"name": "deep", "args": {"width": 64, "layers": 28}},
            "task": {"kind": "regression"},
            "train": {"strategy": "pipeline"},
        }
    )
    losses, gradients, seconds = [], [], []
    for place in ("cpu", device):
        whole = PartitionedGraph.from_graph(graph)
        strategy = PipelineStrategy.build(job, World.local(place), whole)
        _, share = next(iter(strategy.shares(0, 0, 1)))
        for _ in range(2):
            start = time.perf_counter()
            loss = strategy.backward(share).loss
            synchronise(place)
            took = time.perf_counter() - start
        losses.append(loss)
        seconds.append(took)
        gradients.append([p.grad.cpu() for p in strategy.model.parameters() if p.numel()])
        assert strategy.predict("train") is not None
    gap = abs(losses[1] - losses[0]) / abs(losses[0])
    error = max(float((a - b).norm() / a.norm()) for a, b in zip(*gradients, strict=True))
    return {
        "model": "deep, strategy pipeline",
        "output_error": gap,
        "gradient_error": error,
        "cpu_ms": 1000 * seconds[0],
        f"{device}_ms": 1000 * seconds[1],
        "ok": gap < 1e-3 and error < 5e-2,
    }


def check_snapshots(name: str, device: str) -> dict:
    """A step of windows over snapshots, twice: groups are copied in the first and kept."""
    data = synthetic(num_nodes=5000, num_edges=50_000, snapshots=24, change=0.05)
    steps = [WindowBatch(0, k, tuple(range(k, k + 8)), 8) for k in (0, 8)]
    losses, gradients, seconds = [], [], []
    for place in ("cpu", device):
        torch.manual_seed(0)
        model = RECURRENT[name](data.num_features).to(place)
        task = NodeRegression(model.out_features).to(place)
        strategy = SnapshotStrategy(data, model, task, Options(), device=place)
        for _ in range(2):
            for p in strategy.parameters():
                p.grad = None
            synchronise(device)
            start = time.perf_counter()
            losses.append(sum(strategy.accumulate(b) for b in strategy.ahead(steps)))
            synchronise(device)
            seconds.append(time.perf_counter() - start)
        gradients.append([p.grad.cpu() for p in strategy.parameters()])
    scale = max(float(g.abs().max()) for g in gradients[0])
    error = max(float((a - b).abs().max()) for a, b in zip(*gradients, strict=True)) / scale
    gap = abs(losses[3] - losses[1]) / abs(losses[1])
    return {
        "model": name,
        "output_error": gap,
        "gradient_error": error,
        "cpu_ms": 1000 * seconds[1],
        f"{device}_ms": 1000 * seconds[3],
        "ok": gap < 1e-4 and error < 1e-3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU here: nothing was checked (--device cpu runs the script against itself)")
        return 1
    drawn = batches(arguments.nodes, arguments.batches)
    rows = [check_model(name, args, drawn, arguments.device) for name, args in MODELS.items()]
    rows.append(check_deep(arguments.nodes, arguments.device))
    rows.append(check_pipeline(arguments.device))
    rows += [check_snapshots(name, arguments.device) for name in RECURRENT]
    dropout = check_dropout(drawn[0], arguments.device)
    for row in rows:
        print(
            "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )
    print(f"keyed dropout has the same mask: {dropout}")
    if arguments.json:
        name = arguments.device
        if name.startswith("cuda"):
            name = torch.cuda.get_device_name()
        found = {"device": name, "torch": torch.__version__, "rows": rows, "dropout": dropout}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if dropout and all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
