"""Does depth pay: correlation on held-out circuits against the number of blocks.

The same data, steps and (within some 5%) parameters for all: deep models are narrow, shallow
ones wide. The target is the unit-delay slack of every gate, divided by the circuit's depth, which
takes as many hops as the circuit has levels. Means over seeds, whatever they show.
"""

import time
from typing import Any

import numpy as np
import torch
from _common import finish, parser, target

from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.datasets.circuits import circuits, generated_circuits
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.pipeline import PipelineStrategy
from gnn_dist.training import metrics

NAMES = ("pearson", "spearman", "kendall", "mae")
EPFL = {
    "train": ["adder", "max", "cavlc", "i2c", "priority_ckt", "sin"],
    "val": ["dec"],
    "test": ["bar", "int2float", "router", "ctrl"],
}


def data(suite: str) -> Graph:
    if suite == "epfl":
        return circuits(split=EPFL, targets=["relative_slack"])
    return generated_circuits(
        kinds=["ripple_adder", "lookahead_adder", "array_multiplier"],
        split={"train": [4, 6, 8, 12], "test": [10, 16]},
        targets=["relative_slack"],
        patterns=64,
    )


def width_for(layers: int, budget: int) -> int:
    """The even width whose blocks have closest to ``budget`` weights: 1.5 w² + 3 w a block (two
    groups of w / 2 columns that read themselves and both directions; norm and bias)."""
    root = (1 + budget / (1.5 * layers)) ** 0.5 - 1
    return max(8, 2 * round(root / 2))


def run(graph: Graph, layers: int, width: int, steps: int, seed: int) -> dict[str, Any]:
    job = Config.model_validate(
        {
            "seed": seed,
            "dataset": {"name": "circuits"},
            "sampler": {"name": "circuits", "args": {"micro_batches": 2}},
            "model": {
                "name": "gnn_dist.nn.deep.DeepGNN",
                "args": {
                    "width": width, "layers": layers, "direction": "both", "seed": seed,
                    "keep": max(2, width // 4),
                },
            },
            "task": {"kind": "regression"},
            "train": {"strategy": "pipeline"},
        }
    )  # fmt: skip
    strategy = PipelineStrategy.build(job, World.local(), PartitionedGraph.from_graph(graph))
    model = strategy.model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    start, step, epoch = time.perf_counter(), 0, 0
    while step < steps:
        for _, share in strategy.shares(epoch, 0, strategy.num_batches()):
            if step == steps:
                break
            strategy.backward(share)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
        epoch += 1
    predicted = strategy.predict("test")
    assert predicted is not None
    _, output, wanted = predicted
    scores = metrics.compute(metrics.resolve(list(NAMES), "regression"), output, wanted, ["slack"])
    parameters = sum(p.numel() for p in model.parameters())
    return {**scores, "parameters": parameters, "seconds": time.perf_counter() - start}


def main() -> None:
    args = parser(__doc__ or "")
    args.add_argument("--suite", choices=("generated", "epfl"), default="generated")
    args.add_argument("--steps", type=int, default=None)
    args.add_argument("--seeds", type=int, default=None)
    args.add_argument("--layers", type=int, nargs="+", default=None)
    options = args.parse_args()
    torch.set_num_threads(1)
    depths = options.layers or ([2, 8] if options.quick else [2, 4, 8, 16, 32, 64, 112])
    steps = options.steps or (8 if options.quick else 200)
    seeds = options.seeds or (1 if options.quick else 3)
    graph = data(options.suite)
    rows = []
    for layers in depths:
        width = width_for(layers, 20_000 if options.quick else 60_000)
        runs = [run(graph, layers, width, steps, seed) for seed in range(seeds)]
        row: dict[str, Any] = {
            "layers": layers, "width": width, "parameters": runs[0]["parameters"],
        }  # fmt: skip
        for name in NAMES:
            values = [r[name] for r in runs]
            row[name] = float(np.mean(values))
            row[f"{name} std"] = float(np.std(values))
        row["seconds"] = float(np.mean([r["seconds"] for r in runs]))
        rows.append(row)
        print(row, flush=True)
    half = len(rows) // 2
    targets = []
    if half:
        deep, shallow = (max(r["pearson"] for r in part) for part in (rows[half:], rows[:half]))
        targets = [target("deep_minus_shallow_pearson", deep - shallow, 0, "higher")]
    finish("depth", rows, targets, options.json)


if __name__ == "__main__":
    main()
