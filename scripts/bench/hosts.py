"""Training on two hosts joined by a network: ours plain, ours with everything on, and DistDGL.

Each host is a network namespace with one rank of one thread; both share this machine's cores. The
graph has skewed degrees and no communities: 1 M nodes, 30 M edges, 100 features, 47 classes, a
tenth are training nodes; 3-layer GraphSAGE, hidden 256, 15-10-5 neighbours, 1,024 seeds a step over
both. Seconds a step are the medians of whole epochs after a warm-up; megabytes a step are what both
ends of the link sent; rounds are collectives that ask or answer for neighbours and rows. Rows are
those of other hosts that were sent for a step, to both, beside what was predicted before anything
was sampled. ``none`` has no cache, window or bulk, but samples and fetches on threads beside the
model, which waits for what is left of it; ``in line`` does not even that. With ``--distdgl`` and
``--python``, the peer's own script runs DistDGL on the same graph, over the same kind of link, in
the same run; it samples and fetches in line, so that a step of a shorter epoch takes as long.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import _namespaces
import numpy as np
from _common import finish, parser, target

from gnn_dist import storage
from gnn_dist.graph import Graph
from gnn_dist.partitioners import partition

PLAIN = {
    "model.args": {"hidden": 256},
    "sampler.fanouts": [15, 10, 5],
    "train.batch_size": 1024,
    "cluster.placement": "per-rank",
}
IN_LINE = {**PLAIN, "loader.prefetch": 0}
EVERYTHING = {
    **PLAIN,
    "sampler.bulk": 8,
    "cache.window": 8,
    "cache.ahead": 8,
    "cache.name": "lookahead",
    "cache.fraction": 0.25,
}
STEPS = 98  # a whole epoch
TARGETS = {"none": 0.5, "1gbit": 0.35}


def make_graph(nodes: int, edges: int, file: Path | None) -> Graph:
    """Of ``file`` (CSC ``indptr`` and ``indices``), or drawn as the peer's script draws it."""
    if file is not None:
        arrays = np.load(file)
        indptr, indices = arrays["indptr"], arrays["indices"]
    else:
        draw = np.random.default_rng(0)
        source = (nodes * draw.random(edges) ** 2.5).astype(np.int32)
        place = draw.permutation(nodes).astype(np.int32)
        drawn = Graph.from_edges(
            place[source], place[(nodes * draw.random(edges) ** 1.5).astype(np.int32)], nodes
        )
        indptr, indices = drawn.indptr, drawn.indices
    count = indptr.size - 1
    draw = np.random.default_rng(1)
    train = np.sort(draw.permutation(count)[: count // 10])
    return Graph(
        indptr,
        indices,
        node={
            "x": draw.standard_normal((count, 100), np.float32),
            "y": draw.integers(0, 47, count),
        },
        splits={"train": train, "val": train[:0], "test": train[:0]},
        info={"name": "hosts", "num_classes": 47},
    )


def our_partition(work: Path, graph_file: Path | None, nodes: int, edges: int, how: str) -> Path:
    path = work / f"ours-{how}-{nodes}"
    if not (path / "manifest.json").exists():
        graph = make_graph(nodes, edges, graph_file)
        cut = storage.assemble(graph, partition(graph, 2, how, seed=0), 2)
        storage.write(cut, path, partitioner={"name": how, "args": {}, "seed": 0}, overwrite=True)
    return path


def ours(path: Path, rate: str, steps: int, epochs: int, names: list[str]) -> dict[str, Any]:
    known = {"in line": IN_LINE, "none": PLAIN, "everything": EVERYTHING}
    run = {"bench.steps": steps, "bench.epochs": epochs, "train.epochs": epochs}
    settings = [{**known[name], **run} for name in names]
    limit = 180 + 5 * steps * (1 + epochs) * len(names)
    per_host = _namespaces.run(path, settings, rate, limit)
    found = {}
    for k, name in enumerate(names):
        one, other = (host[k] for host in per_host)
        assert one["losses"] == other["losses"], "a loss must be equal on both ranks"
        found[name] = {
            "s a step": max(one["seconds"], other["seconds"]),
            "MB a step": (one["sent"] + other["sent"]) / 1e6,
            "sample": one["sample"],
            "fetch": one["fetch"],
            "compute": one["compute"],
            "synchronise": one["synchronise"],
            "wait": one["wait"],
            "wait for features": one["wait_features"],
            "rounds a step": one["rounds"],
            "rows a step": round(one["rows"]),
            "rows predicted": one["rows_predicted"] and round(one["rows_predicted"]),
            "peak MB a host": max(one["peak_mb"], other["peak_mb"]),
            "losses": one["losses"],
        }
    first = found[names[0]]["losses"]
    assert all(values["losses"] == first for values in found.values()), "losses must be equal"
    return found


def distdgl(options: Any, rate: str, steps: int, epochs: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            str(options.python), str(options.distdgl / "run.py"), "--python", str(options.python),
            "--graph", str(options.graph), "--work", str(options.work), "--rate", rate,
            "--max-steps", str(steps), "--epochs", str(epochs),
        ],
        capture_output=True, text=True, timeout=480 + 8 * steps * (1 + epochs), check=True,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    return {
        "s a step": result["step_ms"] / 1e3,
        "MB a step": result["veth_mb_per_step"],
        "sample": result["split_s"]["sample"] / steps,
        "fetch": result["split_s"]["fetch"] / steps,
        "compute": (result["split_s"]["forward"] + result["split_s"]["backward"]) / steps,
        "wait": (result["split_s"]["sample"] + result["split_s"]["fetch"]) / steps,
        "wait for features": result["split_s"]["fetch"] / steps,
        "peak MB a host": max(result["host_peak_mb"]),
    }


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--distdgl", type=Path, help="folder of the peer's run.py")
    arguments.add_argument("--python", type=Path, help="interpreter that has DGL 1.1.3")
    arguments.add_argument("--graph", type=Path, help="the peer's graph (.npz)")
    arguments.add_argument("--work", type=Path, help="folder for partitions, kept between runs")
    arguments.add_argument("--rates", nargs="+", default=["none", "1gbit"])
    arguments.add_argument("--systems", nargs="+", default=["in line", "none", "everything"])
    arguments.add_argument("--steps", type=int, default=STEPS, help="an epoch of ours")
    arguments.add_argument("--peer-steps", type=int, default=25, help="an epoch of DistDGL's")
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--partitioner", default="refennel")
    options = arguments.parse_args()
    nodes, edges = (50_000, 1_000_000) if options.quick else (1_000_000, 30_000_000)
    steps, epochs = (5, 2) if options.quick else (options.steps, options.epochs)
    why = _namespaces.permitted()
    if why:
        print(f"nothing measured: {why}")
        finish("hosts", [{"system": "none", "measured": why}], [], options.json)
        return
    rows: list[dict[str, Any]] = []
    targets = []
    with tempfile.TemporaryDirectory() as aside:
        work = options.work or Path(aside)
        graph_file = None if options.quick else options.graph
        path = our_partition(work, graph_file, nodes, edges, options.partitioner)
        for rate in options.rates:
            found = ours(path, rate, steps, epochs, options.systems)
            if options.distdgl is not None and not options.quick:
                found["distdgl"] = distdgl(options, rate, options.peer_steps, epochs)
            for name, values in found.items():
                values.pop("losses", None)
                rows.append({"link": rate, "system": name, **values})
                print(rows[-1], flush=True)
            if "distdgl" in found and "everything" in found:
                peer, mine = found["distdgl"], found["everything"]
                if rate in TARGETS:
                    ratio = mine["s a step"] / peer["s a step"]
                    targets.append(target(f"distdgl_ratio_{rate}", ratio, TARGETS[rate], "lower"))
                if rate == options.rates[0]:
                    ratio = mine["MB a step"] / peer["MB a step"]
                    targets.append(target("distdgl_ratio_bytes", ratio, 0.4, "lower"))
            if rate == "1gbit" and {"none", "everything"} <= found.keys():
                ratio = found["everything"]["s a step"] / found["none"]["s a step"]
                targets.append(target("epoch_ratio_1gbit", ratio, 0.6, "lower"))
    finish("hosts", rows, targets, options.json)


if __name__ == "__main__":
    main()
