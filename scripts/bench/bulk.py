"""Sampling for many batches and on many ranks: rounds, bytes and vertices, counted.

Bulk: an SBM in two parts on two ranks, each its own host. *Rounds* are request rounds a batch (a
question and an answer for each hop, and for the rows); *agreements* are the small collectives that
only settle sizes. Grid: the same on four ranks with 1, 2 and 4 copies of the graph. LABOR: vertices
a batch against neighbour sampling, on a dense graph. End to end: an epoch over a link of 1 Gbit/s
with everything on, against none, where network namespaces are permitted. Digests of batches and
losses are compared throughout.
"""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _namespaces
import hosts
import numpy as np
import torch
from _common import finish, parser, target
from _graphs import power_law
from torch import Tensor

from gnn_dist import storage
from gnn_dist.batch import BatchIndex, MiniBatch, global_digest
from gnn_dist.cluster import Grid, Placement, Traffic
from gnn_dist.datasets.synthetic import sbm
from gnn_dist.features import FeatureStore
from gnn_dist.loading import EpochPlan, Homes, Horizon, Loader
from gnn_dist.partitioners import partition
from gnn_dist.sampling import (
    LaborSampler,
    LocalTopology,
    NeighborSampler,
    PartitionedTopology,
)
from gnn_dist.storage import PartitionedGraph

FANOUTS = (10, 25)
SEED = 0


class Meeting:
    """An exchange among threads that counts what would cross a network."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._parts: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def rank(self, rank: int) -> "RankExchange":
        return RankExchange(self, rank)

    def swap(self, rank: int, parts: list[Tensor]) -> list[Tensor]:
        self._parts[rank] = parts
        self._barrier.wait(120)
        got = [sent[rank].clone() for sent in self._parts]
        self._barrier.wait(120)
        return got


class RankExchange:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size, self.traffic = rank, meeting.size, Traffic()
        self._meeting = meeting

    def all_to_all(self, parts: Any, *, receive: Any = None) -> list[Tensor]:
        got = self._meeting.swap(self.rank, list(parts))
        self.traffic.rounds += 1
        self.traffic.size_rounds += receive is None
        others = [r for r in range(self.size) if r != self.rank]
        self.traffic.bytes_sent += sum(parts[r].nbytes for r in others)
        self.traffic.bytes_received += sum(got[r].nbytes for r in others)
        return got


def train(
    graph: PartitionedGraph, ranks: int, copies: int, horizon: Horizon, batch: int
) -> tuple[list[str], dict[str, float]]:
    """Digests of an epoch's global batches, and what they cost, on ranks that are threads."""
    names = [f"host{r}" for r in range(ranks)]
    grids = [
        Grid.of(Placement.build(rank=r, hosts=names, num_parts=graph.num_parts), copies)
        for r in range(ranks)
    ]
    meetings = {
        (members, kind): Meeting(len(members)) for members in grids[0].members for kind in "sf"
    }
    train_ids, original = graph.split("train")

    def run(rank: int) -> tuple[list[MiniBatch], Traffic, Traffic]:
        grid = grids[rank]
        members = next(m for m in grid.members if rank in m)
        sampling, rows = (meetings[members, kind].rank(grid.column.rank) for kind in "sf")
        near = Homes.of(graph.offsets, grid.rows)(train_ids)
        loader = Loader(
            EpochPlan(train_ids, original, near, batch, ranks, SEED),
            NeighborSampler(FANOUTS),
            PartitionedTopology(graph, grid.column, sampling),
            FeatureStore(graph, grid.column, rows),
            seed=SEED,
            rank=rank,
            horizon=horizon,
            prefetch=0,
        )
        filled = rows.traffic.copy()
        batches = []
        for loaded, _ in loader.epoch(0):
            loaded.x = None
            batches.append(loaded)
        return batches, sampling.traffic, rows.traffic.since(filled)

    with ThreadPoolExecutor(ranks) as threads:
        done = list(threads.map(run, range(ranks)))
    shares = list(zip(*(batches for batches, _, _ in done), strict=True))
    digests = [global_digest(share, graph.original_ids()) for share in shares]
    count, one = len(digests), done[0]
    moved = sum(s.bytes_sent for _, s, _ in done), sum(f.bytes_sent for _, _, f in done)
    return digests, {
        "rounds a batch": (one[1].rounds + one[2].rounds) / count,
        "agreements a batch": (one[1].size_rounds + one[2].size_rounds) / count,
        "sampling kB a batch": moved[0] / count / 1e3,
        "feature kB a batch": moved[1] / count / 1e3,
    }


def labor(nodes: int, degree: int, batch: int, batches: int) -> tuple[dict[str, Any], float]:
    graph = power_law(nodes, nodes * degree, exponent=3.0)
    topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    order = np.random.default_rng(1).permutation(nodes)
    vertices, edges = {}, {}
    for name, sampler in (
        ("neighbour", NeighborSampler([10, 10, 10])),
        ("LABOR-0", LaborSampler([10, 10, 10])),
    ):
        drawn = [
            sampler.sample(
                topology, order[b * batch : (b + 1) * batch], seed=0, index=BatchIndex(0, b)
            )
            for b in range(batches)
        ]
        vertices[name] = float(np.mean([b.input_nodes.numel() for b in drawn]))
        edges[name] = float(np.mean([b.blocks[-1].num_edges for b in drawn]))
    ratio = vertices["neighbour"] / vertices["LABOR-0"]
    row = {
        "what": f"LABOR-0, {nodes:,} nodes of degree {degree}, batch {batch:,}, fan-out 10-10-10",
        "vertices a batch": round(vertices["LABOR-0"]),
        "by neighbour sampling": round(vertices["neighbour"]),
        "edges of seeds": round(edges["LABOR-0"]),
        "edges of seeds, neighbour": round(edges["neighbour"]),
    }
    return row, ratio


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--work", type=Path, help="folder for the partition of the last part")
    arguments.add_argument("--without-network", action="store_true", help="leave the link out")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    nodes, batch = (8_000, 50) if options.quick else (100_000, 500)
    whole = sbm(
        num_nodes=nodes, num_classes=16, avg_degree=20, homophily=0.7, degree_exponent=2.5,
        num_features=64, seed=SEED,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    targets = []
    hops = len(FANOUTS)
    expected: list[str] | None = None
    cuts = {p: storage.assemble(whole, partition(whole, p, "metis", seed=SEED), p) for p in (2, 4)}
    for k in (1, 4, 16):
        digests, cost = train(cuts[2], 2, 1, Horizon(k, k), batch)
        expected = expected or digests
        assert digests == expected, "batches must not depend on how many are sampled at once"
        rows.append({"what": f"2 ranks, {k} batches in bulk", **cost})
        print(rows[-1], flush=True)
        if k == 1:
            targets.append(target("rounds_alone", cost["rounds a batch"], 2 * hops + 2, "lower"))
        if k == 16:
            calls = -(-len(digests) // 16) / len(digests)  # the last bulk may be a short one
            most = (2 * hops + 2) * calls
            targets.append(target("rounds_bulk_16", cost["rounds a batch"], most, "lower"))
    for copies in (1, 2, 4):
        digests, cost = train(cuts[4], 4, copies, Horizon(4, 4), batch)
        assert digests == expected, "batches must not depend on the grid"
        rows.append({"what": f"4 ranks, {copies} copies of the graph", **cost})
        print(rows[-1], flush=True)
    targets.append(target("replicated_sampling_kb", cost["sampling kB a batch"], 0, "lower"))
    dense = (20_000, 100, 1024, 2) if options.quick else (100_000, 300, 4096, 3)
    row, ratio = labor(*dense)
    rows.append(row)
    targets.append(target("labor_vertices_ratio", ratio, 1.5, "higher"))
    why = "left out" if options.without_network else _namespaces.permitted()
    if why:
        rows.append({"what": f"epoch over 1 Gbit/s: {why}"})
    else:
        with tempfile.TemporaryDirectory() as aside:
            size = (50_000, 1_000_000) if options.quick else (1_000_000, 30_000_000)
            path = hosts.our_partition(options.work or Path(aside), None, *size, "refennel")
            steps, epochs = (5, 1) if options.quick else (hosts.STEPS, 1)
            found = hosts.ours(path, "1gbit", steps, epochs, ["none", "everything"])
        for name, values in found.items():
            rows.append({"what": f"1 Gbit/s, {name}", "s a step": values["s a step"],
                         "MB a step": values["MB a step"],
                         "rounds a batch": values["rounds a step"]})  # fmt: skip
        ratio = found["everything"]["s a step"] / found["none"]["s a step"]
        targets.append(target("epoch_ratio_1gbit", ratio, 0.6, "lower"))
    columns = dict.fromkeys(key for row in rows for key in row)
    finish("bulk", [{c: r.get(c, "") for c in columns} for r in rows], targets, options.json)


if __name__ == "__main__":
    main()
