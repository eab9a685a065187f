"""Every partitioner on one graph: edge cut, seconds, peak memory.

Each run is a process of its own, on one thread, so that its peak resident memory is its own; what
is quoted is the peak above what the process held with the graph loaded and the kernels compiled.
The graph is a degree-corrected stochastic block model (or R-MAT) whose node order says nothing of
its blocks.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import finish, parser, target

from gnn_dist import datasets, partitioners
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.kernels import partition as kernels

EDGES_OF_TARGET = 30_000_000
SECONDS_OF_TARGET = 10.0


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=1_000_000)
    arguments.add_argument("--degree", type=float, default=31.6, help="mean in-degree")
    arguments.add_argument("--parts", type=int, default=8)
    arguments.add_argument("--graph", choices=("sbm", "rmat"), default="sbm")
    arguments.add_argument(
        "--partitioners",
        nargs="+",
        # A hypergraph's partitioner is for netlists: a million wide nets take it half an hour.
        default=[name for name in partitioners.BUILTIN if name != "mtkahypar"],
        metavar="NAME",
    )
    arguments.add_argument("--child", help="(internal) run this partitioner", default=None)
    arguments.add_argument("--folder", type=Path, help="(internal) where the graph lies")
    options = arguments.parse_args()
    if options.child:
        print(json.dumps(_measure(options.folder, options.child, options.parts)))
        return
    if options.quick:
        options.nodes, options.repeats = min(options.nodes, 30_000), 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = datasets.load(
            options.graph,
            {
                "num_nodes": options.nodes,
                "avg_degree": options.degree,
                "num_classes": 64,
                "num_features": 1,
                **({"degree_exponent": 2.5} if options.graph == "sbm" else {}),
            },
        )
        np.savez(
            folder / "graph.npz",
            indptr=graph.indptr,
            indices=graph.indices,
            train=graph.splits["train"],
        )
        print(f"{options.graph}: {graph!r}, {options.parts} parts, one thread", flush=True)
        del graph
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.partitioners}
        # METIS takes minutes at full size: once is enough for what is no target.
        for turn in range(options.repeats):
            for partitioner in options.partitioners:
                if turn == 0 or options.quick or partitioner == "fennel":
                    result = _child(folder, partitioner, options.parts)
                    if result is not None:
                        runs[partitioner].append(result)
    rows = []
    for partitioner, results in runs.items():
        if not results:
            print(f"{partitioner}: left out, it is not installed")
            continue
        middle = {key: statistics.median(r[key] for r in results) for key in results[0]}
        rows.append({"partitioner": partitioner, "runs": len(results), **middle})
    targets = []
    fennel = runs.get("fennel")
    if fennel:
        # At other sizes the figure is scaled by the number of edges.
        scale = EDGES_OF_TARGET / fennel[0]["edges"]
        seconds = statistics.median(r["seconds"] for r in fennel) * scale
        targets.append(target("fennel_seconds_30m", seconds, SECONDS_OF_TARGET, "lower"))
    finish("partitioners", rows, targets, options.json)


def _child(folder: Path, partitioner: str, parts: int) -> dict[str, float] | None:
    command = [sys.executable, __file__, "--child", partitioner, "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--parts", str(parts)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        return None
    if done.returncode:
        sys.exit(f"{partitioner}: {done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(folder: Path, partitioner: str, parts: int) -> dict[str, float]:
    with np.load(folder / "graph.npz") as arrays:
        graph = Graph(arrays["indptr"], arrays["indices"], splits={"train": arrays["train"]})
    kernels.warmup()
    tiny = Graph.from_edges(np.arange(64), (np.arange(64) + 1) % 64, 64)
    try:
        partitioners.partition(tiny, 2, partitioner, seed=0)  # imports and loads what it needs
    except InputError:
        sys.exit(3)
    _reset_peak()
    held = _memory("VmRSS")
    processor, start = time.process_time(), time.perf_counter()
    assignment = partitioners.partition(graph, parts, partitioner, seed=0)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    peak = _memory("VmHWM")
    found = partitioners.quality(graph, assignment)
    return {
        "edges": graph.num_edges,
        "cut": found.cut_edges,
        "cut_percent": 100 * found.cut_fraction,
        "replication": found.replication,
        "node_balance": found.node_balance,
        "edge_balance": found.edge_balance,
        "seconds": seconds,
        "cpu_seconds": processor,
        "peak_extra_mb": (peak - held) / 1024,
        "peak_mb": peak / 1024,
    }


def _reset_peak() -> None:
    """Forget the peak so far, where the system allows it (Linux, proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("the peak includes that of loading and compiling", file=sys.stderr)


def _memory(field: str) -> int:
    """A line of ``/proc/self/status``, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


if __name__ == "__main__":
    main()
