"""One host of ``_namespaces.run``: trains some steps under each of several settings.

``python _hosts_worker.py JOB``, JOB as JSON. A setting is a configuration with two keys of its own,
``bench.steps`` an epoch and ``bench.epochs`` that are timed, after the start of one that is not.
"""

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnn_dist import config, kernels, storage, strategies
from gnn_dist.cluster import World, tune_allocator

WARM_UP = 16  # steps


def sent_bytes(device: str) -> int:
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def measure(world: World, graph: Any, setting: dict[str, Any], device: str) -> dict[str, Any]:
    steps, epochs = setting.pop("bench.steps"), setting.pop("bench.epochs")
    job = config.load(None, {"partition.path": str(graph.path), **setting})
    strategy = strategies.build(job, world, graph)
    optimizer = torch.optim.Adam(strategy.model.parameters(), lr=1e-3, fused=True)
    losses: list[float] = []

    def epoch(number: int, stop: int) -> dict[str, float]:
        world.control.barrier()
        before, asked, start = sent_bytes(device), rounds(), time.perf_counter()
        seconds: dict[str, float] = {}
        for _, share in strategy.shares(number, 0, stop):
            report = strategy.backward(share)
            optimizer.step()
            losses.append(report.loss)
            for name, value in report.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + value
        world.control.barrier()
        took = time.perf_counter() - start
        moved = {"sent": sent_bytes(device) - before, "rounds": rounds() - asked}
        return {"seconds": took, **moved, **seconds}

    def rounds() -> int:
        return world.sampling.traffic.rounds + world.features.traffic.rounds

    def rows() -> int:
        return strategy.communication()["features"]["rows"]["remote"]

    epoch(0, min(steps - 1, WARM_UP))  # no whole epoch, so that the next one begins afresh
    rows_before = rows()
    runs = [epoch(1 + number, steps) for number in range(epochs)]
    foreseen = strategy.communication().get("cache")
    return {
        **{k: statistics.median(run[k] for run in runs) / steps for k in runs[0]},
        "losses": losses,
        "rows": (rows() - rows_before) / (steps * epochs),
        "rows_predicted": sum(f["remote_rows_predicted"] for f in foreseen) if foreseen else "",
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    tune_allocator()
    kernels.compile_all()
    dist.init_process_group("gloo")
    world = World.connect(address=job["address"])
    graph = storage.open_partition(Path(job["partition"]))
    found = [measure(world, graph, setting, job["device"]) for setting in job["settings"]]
    Path(job["output"]).write_text(json.dumps(found))
    world.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
