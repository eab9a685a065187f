"""One rank of ``split.py``: epochs of several strategies in turn, under each of several settings.

``python _split_worker.py JOB``, JOB a JSON file. A setting is a configuration with keys of its own:
``bench.steps`` an epoch, ``bench.repeats`` epochs that are timed, data and split in turn, after one
of each that is not; ``bench.auto``, whether ``auto`` is asked too; and ``bench.rate`` of a link
in bytes a second that is slower than this machine's, or none.
"""

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnn_dist import config, kernels, storage, strategies
from gnn_dist.cluster import CollectiveExchange, Exchange, World, tune_allocator

STRATEGIES = ("data", "split")
_LINK = threading.Lock()  # a rank has one


class SlowExchange(CollectiveExchange):
    """Holds the rank's link as long as its bytes would take at ``rate`` bytes a second."""

    rate: float

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        before = self.traffic.copy()
        got = super().all_to_all(parts, receive=receive)
        self._hold(before)
        return got

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        before = self.traffic.copy()
        super().all_reduce_sum(tensor)
        self._hold(before)
        return tensor

    def _hold(self, before: Any) -> None:
        moved = self.traffic.since(before)
        with _LINK:
            time.sleep(max(moved.bytes_sent, moved.bytes_received) / self.rate)


class SlowWorld(World):
    """A world whose ranks are joined by slow links."""

    rate: float

    @classmethod
    def over(cls, world: World, rate: float) -> "SlowWorld":
        names = [f.name for f in dataclasses.fields(World)]
        slow = cls(**{name: getattr(world, name) for name in names})
        slow.rate = rate
        for name in ("gradients", "sampling", "features"):
            setattr(slow, name, slow.slowed(getattr(world, name)))
        return slow

    def exchange(self, name: str) -> Exchange:
        return self.slowed(super().exchange(name))

    def slowed(self, exchange: Any) -> SlowExchange:
        slow = SlowExchange(exchange.group, name=exchange.name)
        slow.rate = self.rate
        return slow


def measure(world: World, setting: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every epoch, and seconds of processors of all ranks, by strategy."""
    rate, asks = setting.pop("bench.rate", None), setting.pop("bench.auto", False)
    steps, repeats = setting.pop("bench.steps"), setting.pop("bench.repeats")
    graph = storage.open_partition(Path(setting["partition.path"]))
    if rate is not None:
        world = SlowWorld.over(world, rate)

    def build(name: str) -> Any:
        job = config.load(None, {**setting, "train.strategy": name})
        return strategies.build(job, world, graph)

    built = {name: build(name) for name in STRATEGIES}
    optimizers = {
        name: torch.optim.Adam(strategy.model.parameters(), lr=1e-3, fused=True)
        for name, strategy in built.items()
    }
    losses: dict[str, list[float]] = {name: [] for name in STRATEGIES}

    def epoch(name: str, number: int) -> tuple[float, float]:
        strategy = built[name]
        world.control.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        for _, share in strategy.shares(number, 0, min(steps, strategy.num_batches())):
            losses[name].append(strategy.backward(share).loss)
            optimizers[name].step()
        world.control.barrier()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return seconds, sum(world.control.all_gather_object(cpu))

    found: dict[str, Any] = {f"{kind} {n}": [] for kind in ("seconds", "cpu") for n in STRATEGIES}
    for turn in range(repeats + 1):
        for name in STRATEGIES if turn % 2 else STRATEGIES[::-1]:
            seconds, cpu = epoch(name, turn)
            if turn:
                found[f"seconds {name}"].append(seconds)
                found[f"cpu {name}"].append(cpu)
    for one, other in zip(*losses.values(), strict=True):
        assert abs(one - other) < 1e-3 * abs(one), "losses must be equal to rounding"
    if asks:
        strategy = build("auto")
        found["auto"], found["choice"] = strategy.name, strategy.choice
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    tune_allocator()
    kernels.compile_all()
    dist.init_process_group("gloo")
    world = World.connect()
    found = [measure(world, setting) for setting in job["settings"]]
    if world.rank == 0:
        Path(job["output"]).write_text(json.dumps(found))
    world.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
