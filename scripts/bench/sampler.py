"""Sampled edges a second against DGL's ``NeighborSampler``, one thread each, and on two threads.

Both draw the same sizes from the same power-law graph and both build blocks: drawing, numbering
and tensors are all in the time. Turns are interleaved and ratios are taken turn by turn. The
memory allocator is the process's, so both have the same: first as glibc has it, then as our
workers set it. Targets are for the smaller of the two ratios.
"""

import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from _common import finish, interleave, median_ratio, parser, target
from _graphs import power_law

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.cluster.tuning import tune_allocator
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.interop.dgl import import_dgl
from gnn_dist.sampling import LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph

TARGET, TWO_THREADS = 4.0, 1.7
DIGESTS = 4  # batches whose digests are compared


class Candidate(Protocol):
    def turn(self) -> int:
        """Sample the next batches; returns their number of edges."""
        ...


class Seeds:
    """Batches of distinct seeds, one after the other."""

    def __init__(self, num_nodes: int, batch_size: int) -> None:
        self._order = np.random.default_rng(1).permutation(num_nodes)
        self._size = min(batch_size, num_nodes)

    def __call__(self, batch: int) -> np.ndarray:
        first = batch % (self._order.size // self._size) * self._size
        return self._order[first : first + self._size]


class Ours:
    def __init__(
        self, graph: Graph, fanouts: list[int], seeds: Seeds, batches: int, threads: int = 1
    ) -> None:
        self._topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
        self._sampler = NeighborSampler(fanouts)
        self._seeds, self._batches, self._next = seeds, batches, 0
        self._pool = ThreadPoolExecutor(threads)

    def sample(self, batch: int) -> MiniBatch:
        index = BatchIndex(0, batch)
        return self._sampler.sample(self._topology, self._seeds(batch), seed=0, index=index)

    def _edges(self, batch: int) -> int:
        return sum(block.num_edges for block in self.sample(batch).blocks)

    def turn(self) -> int:
        first = self._next
        self._next += self._batches
        return sum(self._pool.map(self._edges, range(first, self._next)))

    def digests(self, original_ids: np.ndarray) -> list[str]:
        return list(self._pool.map(lambda b: self.sample(b).digest(original_ids), range(DIGESTS)))


class Dgl:
    def __init__(self, graph: Graph, fanouts: list[int], seeds: Seeds, batches: int) -> None:
        dgl = import_dgl()
        indices = torch.from_numpy(graph.indices.astype(np.int64))
        csc = ("csc", (torch.from_numpy(graph.indptr), indices, indices[:0]))
        self._graph = dgl.graph(csc, num_nodes=graph.num_nodes).formats(["csc"])
        self._sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])  # the input layer's first
        self._seeds, self._batches, self._next = seeds, batches, 0

    def turn(self) -> int:
        edges = 0
        for batch in range(self._next, self._next + self._batches):
            _, _, blocks = self._sampler.sample(self._graph, torch.from_numpy(self._seeds(batch)))
            edges += sum(block.num_edges() for block in blocks)
        self._next += self._batches
        return edges


def measure(
    candidates: dict[str, Candidate], allocator: str, batches: int, repeats: int
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Rows for the table, and edges a second of each candidate, turn by turn."""
    edges: dict[str, list[int]] = {name: [] for name in candidates}

    def run(name: str) -> None:
        edges[name].append(candidates[name].turn())

    seconds = interleave({name: lambda name=name: run(name) for name in candidates}, repeats)
    rows, rates = [], {}
    for name, took in seconds.items():
        counted = edges[name][-repeats:]
        rates[name] = [e / s for e, s in zip(counted, took, strict=True)]
        rows.append(
            {
                "sampler": name,
                "allocator": allocator,
                "edges a batch": round(statistics.mean(counted) / batches),
                "ms a batch": statistics.median(took) / batches * 1e3,
                "M edges/s": statistics.median(rates[name]) / 1e6,
                "slowest": min(rates[name]) / 1e6,
                "fastest": max(rates[name]) / 1e6,
            }
        )
    return rows, rates


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=1_000_000)
    arguments.add_argument("--degree", type=float, default=30.0, help="mean in-degree")
    arguments.add_argument("--exponent", type=float, default=3.0, help="of the degrees")
    arguments.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    arguments.add_argument("--batch-size", type=int, default=1024)
    arguments.add_argument("--batches", type=int, default=20, help="batches a turn")
    options = arguments.parse_args()
    if options.quick:
        options.nodes, options.batch_size = min(options.nodes, 100_000), 256
        options.batches, options.repeats = 5, min(options.repeats, 3)
    torch.set_num_threads(1)
    graph = power_law(options.nodes, int(options.nodes * options.degree), options.exponent)
    degrees = graph.in_degrees()
    print(f"{graph}, in-degrees up to {degrees.max():,}, median {int(np.median(degrees))}")
    seeds = Seeds(options.nodes, options.batch_size)
    arguments_of_all = (graph, options.fanouts, seeds, options.batches)
    ours, ours_on_two = Ours(*arguments_of_all), Ours(*arguments_of_all, threads=2)
    candidates: dict[str, Candidate] = {"gnn-dist": ours}
    try:
        candidates["dgl"] = Dgl(*arguments_of_all)
    except InputError as error:
        print(f"without a peer: {error}")
    candidates["gnn-dist, 2 threads"] = ours_on_two

    rows, ratios, on_two = [], [], []
    for allocator, tune in (("glibc", False), ("tuned", True)):
        if tune and not tune_allocator():
            break
        more, rates = measure(candidates, allocator, options.batches, options.repeats)
        rows += more
        on_two.append(median_ratio(rates["gnn-dist, 2 threads"], rates["gnn-dist"]))
        if "dgl" in rates:
            ratios.append(median_ratio(rates["gnn-dist"], rates["dgl"]))
            print(f"allocator {allocator}: {ratios[-1]:.2f} times DGL")
    book = np.arange(graph.num_nodes)
    digests = ours.digests(book)
    same = digests == ours_on_two.digests(book)
    print(f"digests of {DIGESTS} batches on 1 and 2 threads: {'equal' if same else 'DIFFERENT'}")
    assert same, digests
    targets = [target("sampler_vs_dgl", min(ratios), TARGET, "higher")] if ratios else []
    targets.append(target("sampler_two_threads", min(on_two), TWO_THREADS, "higher"))
    finish("sampler", rows, targets, options.json)


if __name__ == "__main__":
    main()
