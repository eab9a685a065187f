"""Rows of other hosts that feature caches save: exact counts, no clock.

A degree-corrected block model is cut into four parts by METIS, one host each. Every host trains on
a tenth of its own nodes, in batches of 500 seeds of its own, fan-out 10-25. Seeds are *clustered*
(whole communities of a part) or *uniform*. The batches are those of the library's sampler; what is
kept and what is sent is decided by the object that the feature store uses (``features.holder``),
for every host, with nothing left out but the copying of rows.

    needed  distinct rows of other hosts that a batch needs, summed over batches and hosts:
            what is sent without cache and window
    sent    rows sent, the fill of a cache and all replacements included
    saved   1 - sent / needed
    peak    most rows of other hosts on a host at once, as a share of its halo: the cache, the rows
            of the round, and rows held for batches that are known to need them
    predicted  ``saved`` from inclusion probabilities alone, before anything is sampled

The cache of 5% or 25% of the halo is what a policy may keep; a window of 16 batches is fetched as
a union, and ``+ 16 known`` says that 16 further batches are sampled already, so that rows which
they need are not given up. Such rows are held beyond the cache (see ``peak``). As a check on that,
the last row of each setting is a plain cache given as many rows as that peak.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import _common
import numpy as np

from gnn_dist import rng
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.datasets.synthetic import sbm
from gnn_dist.features import (
    AllParts,
    CacheContext,
    CachePolicy,
    Degree,
    Lookahead,
    NoCache,
    Presample,
    Ranked,
    Score,
    Vip,
    Workload,
    predict,
)
from gnn_dist.features.halo import halo_of_host
from gnn_dist.features.holder import Holder
from gnn_dist.features.tables import RowType
from gnn_dist.partitioners import partition
from gnn_dist.sampling import NeighborSampler, PartitionedTopology
from gnn_dist.storage import PartitionedGraph, assemble

HOSTS = 4
FANOUTS = (10, 25)
WINDOW = 16
SEED = 0


@dataclass(frozen=True)
class Size:
    nodes: int
    communities: int
    degree: float
    batch: int
    epochs: int


FULL = Size(400_000, 64, 20.0, 500, 30)
QUICK = Size(10_000, 16, 20.0, 25, 15)


class BestStatic(Ranked):
    """Keeps the nodes that the trace needs most often: no fixed set can save more."""

    def __init__(self, trace: Sequence[np.ndarray]) -> None:
        self._trace = trace

    def scores(self, context: CacheContext) -> tuple[np.ndarray, np.ndarray]:
        count = np.zeros(context.graph.num_nodes, np.int64)
        for ids in self._trace:
            count[ids] += 1
        ids = np.flatnonzero(count)
        return ids, count[ids].astype(float)


@dataclass(frozen=True, eq=False)
class Host:
    """One host: what it will ask for, and the rows that every batch of the run needs of others."""

    placement: Placement
    workload: Workload
    halo: np.ndarray
    batches: int
    trace: list[np.ndarray]

    def context(self, graph: PartitionedGraph, capacity: int) -> CacheContext:
        return CacheContext(
            graph, self.placement, AllParts(graph), self.halo, capacity, self.workload
        )


def choose_seeds(graph: PartitionedGraph, clustered: bool) -> list[np.ndarray]:
    """A tenth of the nodes of each part, global ids: at random, or whole communities."""
    generator = np.random.default_rng(SEED)
    chosen = []
    for index in range(graph.num_parts):
        part = graph.part(index)
        count = part.num_nodes // 10
        order = generator.permutation(part.num_nodes)
        if clustered:
            community = part.node["y"]
            sizes = np.bincount(community)
            rank = np.empty(sizes.size, np.int64)
            # Communities in random order; those of which the part has a few nodes only come last.
            stray = sizes < sizes.max() / 10
            rank[np.lexsort((generator.random(sizes.size), stray))] = np.arange(sizes.size)
            order = order[np.argsort(rank[community[order]], kind="stable")]
        chosen.append(np.sort(part.first + order[:count]))
    return chosen


def make_hosts(graph: PartitionedGraph, size: Size, clustered: bool) -> list[Host]:
    sampler = NeighborSampler(FANOUTS)
    topology = PartitionedTopology(graph, Placement.single(graph.num_parts), LocalExchange())
    hosts = []
    for rank, seeds in enumerate(choose_seeds(graph, clustered)):
        names = [f"host{r}" for r in range(HOSTS)]
        placement = Placement.build(rank=rank, hosts=names, num_parts=graph.num_parts)
        original = graph.original_ids()[seeds]

        def epoch(
            number: int, seeds: np.ndarray = seeds, original: np.ndarray = original
        ) -> Iterator[np.ndarray]:
            key = rng.fold(SEED, rng.Stream.SHUFFLE, number)
            order = rng.permutation(key, original)
            for batch, start in enumerate(range(0, seeds.size, size.batch)):
                yield sampler.sample(
                    topology,
                    seeds[order[start : start + size.batch]],
                    seed=SEED,
                    index=BatchIndex(number, batch),
                ).input_nodes.numpy()

        first, last = graph.offsets[rank], graph.offsets[rank + 1]
        trace = [
            np.sort(nodes[(nodes < first) | (nodes >= last)])
            for number in range(size.epochs)
            for nodes in epoch(number)
        ]
        probability = np.full(seeds.size, min(1.0, size.batch / seeds.size))
        workload = Workload(seeds, probability, FANOUTS, epoch=epoch)
        halo = halo_of_host(graph, placement)
        hosts.append(Host(placement, workload, halo, len(trace) // size.epochs, trace))
    return hosts


@dataclass(frozen=True)
class Plan:
    """One way to fetch: a policy, and how many batches are fetched together and known beyond."""

    name: str
    policy: type[CachePolicy]
    window: int = 1
    ahead: int = 0
    window_rows: int | None = None

    def make(self, host: Host) -> CachePolicy:
        return BestStatic(host.trace) if self.policy is BestStatic else self.policy()

    @property
    def predictable(self) -> bool:
        return self.policy not in (BestStatic, Score) and self.window_rows is None


@dataclass
class Result:
    sent: int = 0
    needed: int = 0
    peak: float = 0.0
    predicted_sent: float = 0.0
    predicted_needed: float = 0.0

    @property
    def saved(self) -> float:
        return 100 * (1 - self.sent / self.needed)

    @property
    def predicted(self) -> float:
        return 100 * (1 - self.predicted_sent / self.predicted_needed)


def measure(
    graph: PartitionedGraph, hosts: Sequence[Host], plan: Plan, share: float, epochs: int
) -> Result:
    """Replay and predict every host, with a cache of ``share`` of its halo."""
    result = Result()
    for host in hosts:
        replay(graph, host, plan, int(share * host.halo.size), result)
        if plan.predictable:
            guess = predict(
                graph,
                host.placement,
                host.workload,
                plan.make(host),
                fraction=share,
                batches=host.batches,
                epochs=epochs,
                window=plan.window,
                ahead=plan.ahead,
            )
            run = host.batches * epochs
            result.predicted_sent += guess.remote * run + guess.kept
            result.predicted_needed += guess.needed * run
    return result


def replay(graph: PartitionedGraph, host: Host, plan: Plan, capacity: int, result: Result) -> None:
    """Run the host's batches past a cache; add to ``result``."""
    byte = np.dtype(np.uint8)
    policy = plan.make(host)
    holder = Holder(policy, RowType(byte, byte, (0,)), capacity, plan.window_rows)
    ids = np.sort(policy.start(host.context(graph, capacity)))
    holder.fill(ids, np.empty((ids.size, 0), np.uint8))
    result.sent += ids.size
    for start in range(0, len(host.trace), plan.window):
        stop = start + plan.window
        ids = holder.plan(host.trace[start:stop], host.trace[stop : stop + plan.ahead])
        holder.finish(ids, np.empty((ids.size, 0), np.uint8))
        result.sent += ids.size
    result.needed += sum(ids.size for ids in host.trace)
    result.peak = max(result.peak, holder.peak_rows / host.halo.size)


WITHOUT_CACHE = (
    Plan("union of 16", NoCache, WINDOW),
    Plan("union of 16 + 16 known", NoCache, WINDOW, WINDOW),
)
BEST = Plan("lookahead over vip, union of 16 + 16 known", Lookahead, WINDOW, WINDOW)
WITH_CACHE = (
    Plan("degree", Degree),
    Plan("score", Score),
    Plan("presample", Presample),
    Plan("vip", Vip),
    Plan("best static set", BestStatic),
    Plan("lookahead over vip, 16 known, nothing held beyond the cache", Lookahead, 1, WINDOW, 0),
    Plan("vip, union of 16", Vip, WINDOW),
    Plan("vip, union of 16 + 16 known", Vip, WINDOW, WINDOW),
    BEST,
)
TARGETS = {
    "saved_clustered_25": 70,
    "saved_clustered_5": 58,
    "saved_uniform_25": 65,
    "saved_uniform_5": 55,
}


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0]).parse_args()
    size = QUICK if arguments.quick else FULL
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:6.1f} s] {text}", flush=True)

    whole = sbm(
        num_nodes=size.nodes,
        num_classes=size.communities,
        avg_degree=size.degree,
        homophily=0.7,
        degree_exponent=2.5,
        num_features=1,
        seed=SEED,
    )
    graph = assemble(whole, partition(whole, HOSTS, "metis", seed=SEED), HOSTS)
    say(f"{graph!r}")
    rows: list[dict[str, object]] = []
    found: dict[str, float] = {}
    static_gaps, plan_gaps = [], []
    for kind in ("clustered", "uniform"):
        hosts = make_hosts(graph, size, kind == "clustered")
        batches = sum(len(host.trace) for host in hosts)
        say(f"{kind} seeds: {batches:,} batches sampled")

        def add(plan: Plan, share: float, hosts: list[Host] = hosts, kind: str = kind) -> Result:
            result = measure(graph, hosts, plan, share, size.epochs)
            batches = sum(len(host.trace) for host in hosts)
            row = {
                "seeds": kind,
                "cache %": round(100 * share, 1),
                "policy": plan.name,
                "saved %": round(result.saved, 2),
                "predicted %": round(result.predicted, 2) if plan.predictable else "",
                "needed a batch": round(result.needed / batches),
                "sent a batch": round(result.sent / batches),
                "rounds a batch": 1 / plan.window,
                "peak % of halo": round(100 * result.peak, 1),
            }
            if plan.predictable:
                plan_gaps.append(abs(result.predicted - result.saved))
            rows.append(row)
            say(", ".join(f"{key} {value}" for key, value in row.items()))
            return result

        for plan in WITHOUT_CACHE:
            add(plan, 0.0)
        for percent in (5, 25):
            results = {plan.name: add(plan, percent / 100) for plan in WITH_CACHE}
            add(Plan(f"vip, the rows of that peak ({percent}%)", Vip), results[BEST.name].peak)
            static_gaps.append(results["best static set"].saved - results["vip"].saved)
            found[f"saved_{kind}_{percent}"] = results[BEST.name].saved
    _common.finish(
        "cache",
        rows,
        [
            _common.target("vip_gap_to_oracle_points", max(static_gaps), 1, "lower"),
            *(_common.target(name, found[name], TARGETS[name], "higher") for name in TARGETS),
            _common.target("plan_gap_points", max(plan_gaps), 2, "lower"),
        ],
        arguments.json,
    )


if __name__ == "__main__":
    main()
