"""Pipelines: simulated beside measured, the planner's choice beside the best, two ranks beside one.

Sleeping stages show the schedules without a processor for every rank: their seconds are those of
the costs given to the simulator. The last table trains a deep model on circuits, one thread a
rank, whole global batches, the same result.
"""

import json
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _common import finish, median_ratio, parser, target
from torch import nn

from gnn_dist.cluster import World
from gnn_dist.config import Config, Pipeline
from gnn_dist.strategies.pipeline import Profile, candidates
from gnn_dist.strategies.pipeline.executor import PipelineExecutor
from gnn_dist.strategies.pipeline.generators import SCHEDULES
from gnn_dist.strategies.pipeline.link import GroupLink
from gnn_dist.strategies.pipeline.simulate import simulate
from gnn_dist.strategies.pipeline.stages import ModuleStage
from gnn_dist.strategies.pipeline.strategy import PipelineStrategy

WIDTH = 64


class _Sleep(torch.autograd.Function):
    """Costs given seconds forward and backward; passes its input on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        time.sleep(forward)
        ctx.backward_seconds = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        time.sleep(ctx.backward_seconds)
        return grad, None, None


class SleepingStage(ModuleStage[int]):
    """Sleeps as the costs say; the gradients of weights sleep apart where they are split."""

    def __init__(self, costs: Any, number: int, last: bool) -> None:
        self.costs, self.number, self.last = costs, number, last
        super().__init__(nn.Module(), self._run, lambda micro: ((8, WIDTH),) * 2)

    def _run(self, module: nn.Module, micro: int, value: torch.Tensor | None) -> torch.Tensor:
        x = torch.ones(8, WIDTH, requires_grad=True) if value is None else value
        out = _Sleep.apply(
            x, self.costs.forward[self.number][micro], self.costs.input[self.number][micro]
        )
        return out.sum() if self.last else out

    def forward(self, micro: int, value: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
        return self._run(self.module, micro, value), micro

    def backward(self, output: torch.Tensor, grad: torch.Tensor | None, kept: Any) -> None:
        torch.autograd.backward(output, grad)
        time.sleep(self.costs.weight[self.number][kept])

    def backward_input(self, value: Any, output: torch.Tensor, grad: Any, kept: Any) -> Any:
        torch.autograd.backward(output, grad)
        return lambda: time.sleep(self.costs.weight[self.number][kept])


def profile(layers: int, micro: int, unit: float, *, uneven: bool) -> Profile:
    rng = np.random.default_rng(0)
    size = rng.uniform(0.5, 1.5, micro) if uneven else np.ones(micro)
    weight = rng.uniform(0.7, 1.3, layers) if uneven else np.ones(layers)
    seconds = (unit * np.outer(weight, size)).tolist()
    return Profile(seconds, seconds, seconds, [[1.0] * micro] * layers, [8 * WIDTH * 4.0] * micro)


def sleeping(
    world: World, layers: int, micro: int, unit: float, repeats: int, uneven: bool
) -> list[dict[str, Any]]:
    """Every candidate, simulated and measured."""
    link = GroupLink(world)
    given = profile(layers, micro, unit, uneven=uneven)
    rows = []
    for candidate in candidates(given, world.size, chunks=(2,)):
        costs = given.stage_costs(candidate.bounds)
        schedule = candidate.schedule
        last = schedule.num_stages - 1
        stages = {s: SleepingStage(costs, s, s == last) for s in schedule.stages_of(world.rank)}
        executor = PipelineExecutor(schedule, stages, link)
        measured = []
        for _ in range(repeats + 1):
            world.control.barrier()
            step = executor.run(list(range(micro)))
            ends = world.control.all_gather_object(
                (min(s.start for s in step.spans), max(s.end for s in step.spans))
            )
            measured.append(max(e for _, e in ends) - min(s for s, _ in ends))
        seconds = float(np.median(measured[1:]))
        simulated = simulate(schedule, costs).makespan
        rows.append(
            {
                "schedule": schedule.name,
                "micro": micro,
                "uneven": uneven,
                "simulated_s": simulated,
                "measured_s": seconds,
                "error_percent": 100 * abs(seconds - simulated) / simulated,
                "bubble_percent": 100 * candidate.timeline.bubble,
            }
        )
    return rows


def job(layers: int, width: int, micro: int) -> Config:
    return Config.model_validate(
        {
            "dataset": {"name": "generated_circuits"},
            "sampler": {"name": "circuits", "args": {"micro_batches": micro}},
            "model": {
                "name": "gnn_dist.nn.deep.DeepGNN",
                "args": {"width": width, "layers": layers},
            },
            "task": {"kind": "regression"},
            "train": {"strategy": "pipeline"},
        }
    )


def training(
    world: World, layers: int, width: int, micro: int, circuit: int, repeats: int
) -> dict[str, Any]:
    """Seconds of whole global batches of one deep model, and a digest of its gradients."""
    from gnn_dist.datasets.circuits import generated_circuits
    from gnn_dist.storage import PartitionedGraph

    graph = generated_circuits(
        kinds=["array_multiplier"],
        widths=[circuit + k for k in range(micro)],
        split={"train": [circuit + k for k in range(micro)]},
        targets=["relative_slack"],
        patterns=64,
    )
    strategy = PipelineStrategy.build(
        job(layers, width, micro), world, PartitionedGraph.from_graph(graph)
    )
    strategy._settings = Pipeline()
    seconds = []
    digest = 0.0
    for turn in range(repeats + 1):
        for _, share in strategy.shares(0, 0, 1):
            world.control.barrier()
            start = time.perf_counter()
            strategy.backward(share)
            if turn:
                seconds.append(time.perf_counter() - start)
            digest = float(sum(p.grad.double().abs().sum() for p in strategy.model.parameters()))
    chosen = strategy._chosen
    return {
        "seconds": seconds,
        "digest": digest,
        "schedule": chosen[0] if chosen else "",
        "nodes": graph.num_nodes,
    }


def _worker(port: int, rank: int, size: int, what: str, args: list[Any]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=120))
        limit = timedelta(seconds=300)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
        world = World.connect(timeout=300)
    else:
        world = World.local(timeout=300)
    answer = {"sleeping": sleeping, "training": training}[what](world, *args)
    if rank == 0:
        print("ANSWER " + json.dumps(answer))
    world.close()
    if size > 1:
        dist.destroy_process_group()


def launch(size: int, what: str, *args: Any) -> Any:
    """What rank 0 of ``size`` fresh processes answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--worker", str(port)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), what, json.dumps(args)], stdout=subprocess.PIPE
        )
        for rank in range(size)
    ]
    try:
        outputs = [p.communicate(timeout=1800)[0] for p in ranks]
    finally:
        for p in ranks:
            if p.poll() is None:
                p.kill()
    for line in outputs[0].decode().splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line.removeprefix("ANSWER "))
    raise RuntimeError(f"{what} on {size} ranks gave no answer")


def main() -> None:
    if "--worker" in sys.argv:
        port, rank, size, what, args = sys.argv[sys.argv.index("--worker") + 1 :][:5]
        _worker(int(port), int(rank), int(size), what, json.loads(args))
        return
    options = parser(__doc__ or "").parse_args()
    quick = options.quick
    unit, repeats = (0.01, 1) if quick else (0.04, 2)
    rows: list[dict[str, Any]] = []
    for uneven in (False, True):
        rows += launch(4, "sleeping", 8, 8, unit, repeats, uneven)
    regrets = []
    for uneven in (False, True):
        group = [r for r in rows if r["uneven"] is uneven]
        best = min(r["measured_s"] for r in group)
        picked = min(group, key=lambda r: r["simulated_s"])
        regrets.append(100 * (picked["measured_s"] / best - 1))
        fastest = min(group, key=lambda r: r["measured_s"])["schedule"]
        kind = "uneven" if uneven else "even"
        print(f"{kind} costs: planned {picked['schedule']}, measured fastest {fastest}")
    # (layers, width, micro-batches, width of the smallest multiplier)
    size = (16, 32, 8, 12) if quick else (56, 64, 16, 30)
    alone, pair = [], []
    digests = set()
    for _ in range(1 if quick else 3):
        one = launch(1, "training", *size, 1 if quick else 2)
        two = launch(2, "training", *size, 1 if quick else 2)
        alone += one["seconds"]
        pair += two["seconds"]
        digests.add(one["digest"] / two["digest"])
    # the sums of chimera's two directions are reassociated
    assert all(abs(d - 1) < 1e-5 for d in digests), f"one and two ranks differ: {digests}"
    for name, seconds in (("one rank", alone), (f"two ranks, {two['schedule']}", pair)):
        rows.append({"schedule": name, "measured_s": float(np.median(seconds)), "micro": size[2]})
    targets = [
        target(
            "simulator_error_percent", max(r.get("error_percent", 0) for r in rows), 15, "lower"
        ),
        target("planner_regret_percent", max(regrets), 5, "lower"),
        target("two_ranks_ratio", median_ratio(pair, alone), 0.65, "lower"),
    ]
    missing = set(SCHEDULES) - {r["schedule"].split("-")[0].replace("zb", "zb-h1") for r in rows}
    assert not missing, f"schedules that were not run: {missing}"
    finish("pipeline", rows, targets, options.json)


if __name__ == "__main__":
    main()
