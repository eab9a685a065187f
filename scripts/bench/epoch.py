"""A whole training step (sample, fetch, forward, backward, optimiser) against DGL and PyG.

GraphSAGE with three layers on the same batches for all, at one and at two threads. Each candidate
is a process of its own, bound to as many cores as it has threads; they take turns, and ratios are
taken turn by turn. DGL samples for itself, with the same seeds and fan-outs. PyG's own loader needs
a compiled library, so its layers get our batches and our sampling time is charged.

``default`` is the allocator as glibc has it, ``tuned`` what our workers set (on by default), which
DGL and PyG are given too; ``huge pages`` adds transparent huge pages (``glibc.malloc.hugetlb`` and
torch's ``THP_MEM_ALLOC_ENABLE``). The floor is the matrix products of the same batches alone into
warm buffers, plus a copy of the bytes of their input rows. Each target is for the worse of the
thread counts.

DGL wants a Python of its own if it is not installed beside this package: ``--dgl-python``.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, median_ratio, parser, target
from _graphs import power_law

from gnn_dist.cluster.tuning import allocator_environment

HERE = Path(__file__).parent
FEATURES, CLASSES, HIDDEN, FANOUTS = 100, 47, 256, [15, 10, 5]
DEFAULT = allocator_environment(keep_freed=False, huge_pages=False)
TUNED = allocator_environment(keep_freed=True, huge_pages=False)
CANDIDATES = {
    "gnn-dist": ("ours", TUNED),
    "gnn-dist, default allocator": ("ours", DEFAULT),
    "gnn-dist, huge pages": ("ours", allocator_environment(keep_freed=True, huge_pages=True)),
    "dgl": ("dgl", DEFAULT),
    "dgl, tuned allocator": ("dgl", TUNED),
    "pyg": ("pyg", DEFAULT),
    "pyg, tuned allocator": ("pyg", TUNED),
    "floor": ("floor", TUNED),
}
TARGETS = (
    ("epoch_vs_dgl", "dgl", 2.0),
    ("epoch_vs_pyg", "pyg", 2.2),
    ("epoch_vs_dgl_same_allocator", "dgl, tuned allocator", 1.2),
)


class Worker:
    """A candidate's process."""

    def __init__(self, python: str, allocator: dict[str, str], settings: dict[str, Any]) -> None:
        threads = settings["threads"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        environment |= allocator
        environment["OMP_NUM_THREADS"] = str(threads)
        path = [str(HERE.parent.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        cores = sorted(os.sched_getaffinity(0))[:threads]
        self._process = subprocess.Popen(
            [python, str(HERE / "_epoch_worker.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.answers: list[dict[str, Any]] = []

    def ready(self) -> bool:
        return bool(self._read())

    def turn(self, first: int, last: int, count: bool) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{first} {last}\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer:
            raise SystemExit("a worker of the bench has ended; its error is above")
        if count:
            self.answers.append(answer)

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {}

    def per_batch(self, key: str, batches: int) -> list[float]:
        return [answer[key] / batches for answer in self.answers]


def make_data(folder: Path, nodes: int, edges: int, batch_size: int) -> None:
    rng = np.random.default_rng(0)
    graph = power_law(nodes, edges)
    np.save(folder / "indptr.npy", graph.indptr)
    np.save(folder / "indices.npy", graph.indices)
    np.save(folder / "x.npy", rng.standard_normal((nodes, FEATURES), dtype=np.float32))
    np.save(folder / "y.npy", rng.integers(0, CLASSES, nodes))
    np.save(folder / "order.npy", np.random.default_rng(1).permutation(nodes))


def measure(options: Any, threads: int, folder: Path) -> tuple[list[dict[str, Any]], dict]:
    """Rows for the table and the workers by name."""
    workers: dict[str, Worker] = {}
    for name in options.only or CANDIDATES:
        candidate, allocator = CANDIDATES[name]
        settings = {
            "candidate": candidate,
            "threads": threads,
            "folder": str(folder),
            "batch_size": options.batch_size,
            "fanouts": FANOUTS,
            "hidden": HIDDEN,
            "classes": CLASSES,
        }
        python = options.dgl_python if candidate == "dgl" else sys.executable
        worker = Worker(python, allocator, settings)
        if worker.ready():
            workers[name] = worker
        else:
            worker.close()
            print(f"without {name}: it did not start; its error is above")
    for turn in range(-1, options.repeats):
        first = max(turn, 0) * options.batches
        for worker in workers.values():
            worker.turn(first, first + options.batches, count=turn >= 0)
    rows = []
    for name, worker in workers.items():
        seconds = worker.per_batch("seconds", options.batches)
        rows.append(
            {
                "candidate": name,
                "threads": threads,
                "ms a step": statistics.median(seconds) * 1e3,
                "fastest": min(seconds) * 1e3,
                "slowest": max(seconds) * 1e3,
                "cpu ms": statistics.median(worker.per_batch("cpu", options.batches)) * 1e3,
                "peak MB": worker.answers[-1]["peak"] / 1e6,
                "above data MB": worker.answers[-1]["above_data"] / 1e6,
            }
        )
        worker.close()
    return rows, workers


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=1_000_000)
    arguments.add_argument("--degree", type=int, default=30, help="mean in-degree")
    arguments.add_argument("--batch-size", type=int, default=1024)
    arguments.add_argument("--batches", type=int, default=4, help="batches a turn")
    arguments.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments.add_argument("--only", nargs="+", choices=list(CANDIDATES), help="leave others out")
    arguments.add_argument("--dgl-python", default=sys.executable, help="a Python that has dgl")
    options = arguments.parse_args()
    if options.quick:
        options.nodes, options.batch_size = min(options.nodes, 100_000), 256
        options.batches, options.repeats = 3, min(options.repeats, 3)
    cores = len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gnn-dist-epoch-") as name:
        folder = Path(name)
        make_data(folder, options.nodes, options.nodes * options.degree, options.batch_size)
        for threads in [t for t in options.threads if t <= cores]:
            more, workers = measure(options, threads, folder)
            rows += more
            seconds = {n: w.per_batch("seconds", options.batches) for n, w in workers.items()}
            mine = seconds.get("gnn-dist", [])
            for label, other, _ in TARGETS:
                if mine and other in seconds:
                    ratio = median_ratio(seconds[other], mine)
                    worst[label] = min(worst.get(label, ratio), ratio)
            if mine and "floor" in seconds:
                ratio = median_ratio(mine, seconds["floor"])
                worst["epoch_vs_floor"] = max(worst.get("epoch_vs_floor", ratio), ratio)
    wanted = [target(n, worst[n], t, "higher") for n, _, t in TARGETS if n in worst]
    if "epoch_vs_floor" in worst:
        wanted.append(target("epoch_vs_floor", worst["epoch_vs_floor"], 1.35, "lower"))
    finish("epoch", rows, wanted, options.json)


if __name__ == "__main__":
    main()
