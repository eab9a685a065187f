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
from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.datasets.synthetic import rmat
from gnn_dist.nn import build_model, gcn_norm
from gnn_dist.nn.functional import keyed_dropout
from gnn_dist.sampling import LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph

MODELS = {
    "sage": {"hidden": 256, "dropout": 0.5},
    "gcn": {"hidden": 256},
    "gat": {"hidden": 256, "heads": 4},
    "gin": {"hidden": 256},
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
