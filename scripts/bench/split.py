"""Split parallelism against data parallelism: exact counts, the partition's part, and time.

Two graphs, 10% of the nodes train: a community graph (degree-corrected block model, 64 communities,
80% of the edges within) and an R-MAT graph. Global batch 1,024, fan-out 15-15-15, GraphSAGE.

    counts      4 ranks, no clock: feature rows loaded and edges sampled by all ranks for the first
                batches. Both strategies use one partition, METIS weighted by `vip`.
    partitions  rows shuffled by `split` before all its layers, and the busiest rank's work over the
                mean, by partitioner; the target takes the worse of the two kinds of weights.
    epochs      the community graph, 256 features, hidden 256: epochs of both in turn, one thread a
                rank, all ranks on this machine and rows through shared memory. Ratios turn by turn.
    auto        settings of ranks, fan-out, hidden width and link: memory, sockets (each rank taken
                as a host), and sockets that a rank holds as long as its bytes would take at a rate.
                `auto` is right where it takes the faster one, or where the two are within 5%.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, median_ratio, parser, target, wait_for

from gnn_dist import config, kernels, storage
from gnn_dist.cluster import Placement
from gnn_dist.config import Config
from gnn_dist.datasets.synthetic import rmat, sbm
from gnn_dist.graph import Graph
from gnn_dist.partitioners import partition
from gnn_dist.sampling import NeighborSampler
from gnn_dist.strategies.split.counts import (
    EDGES,
    ROWS_SHUFFLED,
    SOURCES,
    VERTICES,
    LayerCounts,
)
from gnn_dist.strategies.split.plan import count_first
from gnn_dist.strategies.split.weights import partition_weights

HERE = Path(__file__).resolve().parent
FANOUTS = [15, 15, 15]
RANKS = 4
SPLIT = {"train": 0.1, "val": 0.0, "test": 0.0}
PARTITIONERS: dict[str, dict[str, Any]] = {
    "random": {"partition.name": "random"},
    "METIS": {},
    "METIS, training nodes": {"partition.args": {"balance": "train"}},
    "METIS, presample": {"partition.weights": "presample"},
    "METIS, vip": {"partition.weights": "vip"},
}


def job(changes: Mapping[str, Any]) -> Config:
    values = {
        "dataset.name": "made here",
        "sampler.fanouts": FANOUTS,
        "train.batch_size": 1024,
        "cluster.workers": RANKS,
    }
    return config.load(None, {**values, **changes})


def make_graphs(quick: bool) -> dict[str, Graph]:
    nodes = 20_000 if quick else 100_000
    shape: dict[str, Any] = {"avg_degree": 30, "num_features": 256, "split": SPLIT}
    return {
        "community": sbm(num_nodes=nodes, num_classes=64, degree_exponent=3.0, **shape),
        "R-MAT": rmat(num_nodes=nodes, num_classes=8, **{**shape, "num_features": 8}),
    }


def cut(graph: Graph, ranks: int, changes: Mapping[str, Any]) -> storage.PartitionedGraph:
    one = job(changes)
    weights = None, None
    if one.partition.weights is not None:
        weights = partition_weights(one, graph)
    assignment = partition(
        graph,
        ranks,
        one.partition.name,
        one.partition.args,
        seed=one.seed,
        node_weights=weights[0],
        edge_weights=weights[1],
        max_imbalance=100.0,  # an unweighted partition may be as uneven as it is
    )
    return storage.assemble(graph, assignment, ranks)


def counted(graph: storage.PartitionedGraph, data_parallel: int) -> LayerCounts:
    hosts = [f"host{rank}" for rank in range(RANKS)]
    placement = Placement.build(rank=0, hosts=hosts, num_parts=RANKS)
    return count_first(job({}), graph, NeighborSampler(FANOUTS), placement, data_parallel)


def counts(graphs: Mapping[str, Graph]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, saved, ratios, shuffled = [], [], [], {}
    for name, graph in graphs.items():
        for how, changes in PARTITIONERS.items():
            parts = cut(graph, RANKS, changes)
            split = counted(parts, 0)
            shuffled[name, how] = float(split.a_batch(ROWS_SHUFFLED).sum()), split.work_imbalance()
            row = {
                "measured": "partitions",
                "setting": f"{name}: {how}",
                "data": "",
                "split": f"{shuffled[name, how][0]:,.0f} rows shuffled",
                "ratio": shuffled[name, how][0] / shuffled[name, "random"][0],
                "note": f"imbalance {split.work_imbalance():.3f}",
            }
            rows.append(row)
            print(row, flush=True)
        data = counted(parts, len(FANOUTS))  # of the last partition, as that of split
        loaded = data.a_batch(SOURCES)[:, 1].sum(), split.a_batch(VERTICES)[:, 0].sum()
        sampled = data.a_batch(EDGES).sum(), split.a_batch(EDGES).sum()
        saved.append(100 * (1 - loaded[1] / loaded[0]))
        ratios.append(sampled[0] / sampled[1])
        for what, (one, other) in (("feature rows", loaded), ("edges", sampled)):
            rows.append(
                {
                    "measured": "counts",
                    "setting": f"{name}: {what}",
                    "data": f"{one:,.0f}",
                    "split": f"{other:,.0f}",
                    "ratio": float(other / one),
                    "note": "a batch, 4 ranks",
                }
            )
            print(rows[-1], flush=True)
    weighted = [shuffled["community", how] for how in ("METIS, presample", "METIS, vip")]
    random = shuffled["community", "random"][0]
    return rows, [
        target("rows_saved_percent", float(min(saved)), 55, "higher"),
        target("edges_ratio", float(min(ratios)), 1.3, "higher"),
        target("shuffle_weighted_vs_random", max(w[0] for w in weighted) / random, 0.5, "lower"),
        target("weighted_imbalance", max(w[1] for w in weighted), 1.2, "lower"),
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_ranks(
    settings: Sequence[Mapping[str, Any]], ranks: int, work: Path
) -> list[dict[str, Any]]:
    """What rank 0 of ``_split_worker.py`` measured under each setting."""
    file, output = work / "job.json", work / "found.json"
    file.write_text(json.dumps({"settings": list(settings), "output": str(output)}))
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    command = [sys.executable, str(HERE / "_split_worker.py"), str(file)]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)
    ]
    wait_for(processes, 540)
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def setting(path: Path, quick: bool, **changes: Any) -> dict[str, Any]:
    return {
        "partition.path": str(path),
        "sampler.fanouts": FANOUTS,
        "model.args": {"hidden": 64 if quick else 256},
        "train.batch_size": 1024,
        **changes,
    }


def epochs(
    paths: Mapping[int, Path], quick: bool, repeats: int, work: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, targets = [], []
    for ranks, path in paths.items():
        steps = {"bench.steps": 2 if quick else 1000, "bench.repeats": repeats}  # a whole epoch
        (found,) = run_ranks([setting(path, quick, **steps)], ranks, work)
        ratio = median_ratio(found["seconds split"], found["seconds data"])
        busy = median_ratio(found["cpu split"], found["cpu data"])
        rows.append(
            {
                "measured": "epochs",
                "setting": f"{ranks} ranks",
                "data": f"{statistics.median(found['seconds data']):.2f} s",
                "split": f"{statistics.median(found['seconds split']):.2f} s",
                "ratio": ratio,
                "note": f"ratio of processor time {busy:.3f}",
            }
        )
        print(rows[-1], flush=True)
        if ranks == RANKS:
            targets.append(target("epoch_ratio_4_ranks", ratio, 0.85, "lower"))
    return rows, targets


def sweep(quick: bool) -> list[tuple[int, dict[str, Any], str]]:
    """(ranks, changes, what they are) of every setting that ``auto`` decides on."""
    sockets = {"cluster.placement": "per-rank"}
    slow, slower = {**sockets, "bench.rate": 40e6}, {**sockets, "bench.rate": 10e6}
    links = {"memory": {}, "sockets": sockets, "40 MB/s": slow, "10 MB/s": slower}
    chosen = [
        (2, [15, 15, 15], 256, "memory"),
        (2, [15, 15, 15], 256, "sockets"),
        (2, [15, 15, 15], 256, "10 MB/s"),
        (2, [5, 5], 256, "memory"),
        (2, [10, 10], 32, "40 MB/s"),
        (2, [10, 10], 512, "10 MB/s"),
        (4, [15, 15, 15], 256, "memory"),
        (4, [15, 15, 15], 64, "sockets"),
        (4, [15, 15, 15], 64, "40 MB/s"),
        (4, [3, 3], 512, "memory"),
        (4, [10, 10], 256, "40 MB/s"),
        (4, [5, 5], 512, "10 MB/s"),
    ]
    if quick:
        chosen = [one for one in chosen if one[0] == 2][2:5]
    return [
        (
            ranks,
            {"sampler.fanouts": fanouts, "model.args": {"hidden": hidden}, **links[link]},
            f"{ranks} ranks, {'-'.join(map(str, fanouts))}, hidden {hidden}, {link}",
        )
        for ranks, fanouts, hidden, link in chosen
    ]


def decisions(
    paths: Mapping[int, Path], quick: bool, work: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, right = [], []
    every = sweep(quick)
    for ranks in sorted({one[0] for one in every}):
        mine = [one for one in every if one[0] == ranks]
        steps = {"bench.steps": 2 if quick else 4, "bench.repeats": 1 if quick else 3}
        settings = [
            setting(paths[ranks], quick, **changes, **steps, **{"bench.auto": True})
            for _, changes, _ in mine
        ]
        for (_, _, what), found in zip(mine, run_ranks(settings, ranks, work), strict=True):
            data, split = (statistics.median(found[f"seconds {n}"]) for n in ("data", "split"))
            faster = "split" if split < data else "data"
            close = max(data, split) < 1.05 * min(data, split)
            right.append(found["auto"] == faster or close)
            rows.append(
                {
                    "measured": "auto",
                    "setting": what,
                    "data": f"{data:.2f} s",
                    "split": f"{split:.2f} s",
                    "ratio": split / data,
                    "note": f"takes {found['auto']}{'' if right[-1] else ', wrongly'}",
                }
            )
            print(rows[-1], found["choice"], sep="\n", flush=True)
    return rows, [target("auto_right", float(np.mean(right)), 0.9, "higher")]


def main() -> None:
    arguments = parser(__doc__ or "")
    names = ("counts", "epochs", "auto")
    arguments.add_argument("--only", nargs="+", choices=names, default=names)
    options = arguments.parse_args()
    kernels.compile_all()
    graphs = make_graphs(options.quick)
    rows: list[dict[str, Any]] = []
    targets: list[dict[str, Any]] = []

    def add(found: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        rows.extend(found[0])
        targets.extend(found[1])

    if "counts" in options.only:
        add(counts(graphs))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        paths = {ranks: work / f"{ranks}-parts" for ranks in (2, RANKS)}
        if {"epochs", "auto"} & set(options.only):
            for ranks, path in paths.items():
                parts = cut(graphs["community"], ranks, PARTITIONERS["METIS, vip"])
                storage.write(parts, path, partitioner={"name": "metis", "args": {}, "seed": 0})
        if "epochs" in options.only:
            add(epochs(paths, options.quick, 2 if options.quick else options.repeats, work))
        if "auto" in options.only:
            add(decisions(paths, options.quick, work))
    finish("split", rows, targets, options.json)


if __name__ == "__main__":
    main()
