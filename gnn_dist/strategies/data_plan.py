"""``gnn-dist plan`` of the strategy ``data``: rows that will cross the network, and those saved."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnn_dist.cluster import Grid, Placement
from gnn_dist.config import Config
from gnn_dist.features import CachePolicy, Prediction
from gnn_dist.loading import Sampler
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import epoch_plan, foresee, workload


@dataclass(frozen=True)
class DataPlan:
    """What each rank is foreseen to ask of other hosts, each worker taken as a host of its own.

    Attributes:
        ranks: one prediction a rank; none where no row of another host is asked for, or where that
            depends on what is drawn.
        rounds: rounds of requests a batch, for neighbours and rows.
        why: what to say where there is nothing to predict.
    """

    ranks: tuple[Prediction, ...]
    rounds: float
    why: str = ""

    def text(self) -> str:
        if not self.ranks:
            return self.why
        head = "rank  halo rows  cached  needed a batch  sent a batch  hit rate  saved  MB a batch"
        lines = [
            f"{rank:4}  {p.halo:9,}  {p.kept:6,}  {p.needed:14,.0f}  {p.remote:12,.0f}  "
            f"{_percent(p.hit_rate):7.1f}%  {_percent(p.saved):4.1f}%  "
            f"{p.remote * p.row_bytes / 1e6:10.3f}"
            for rank, p in enumerate(self.ranks)
        ]
        note = f"rounds of requests a batch: {self.rounds:.3g}; each worker is taken as a host"
        return "\n".join([head, *lines, note])

    def write(self, folder: Path) -> list[Path]:
        return []


def _percent(fraction: float) -> float:
    return round(100 * fraction, 1) + 0.0  # no -0.0


def plan_data(
    job: Config, graph: PartitionedGraph, sampler: Sampler, policy: Callable[[], CachePolicy]
) -> DataPlan:
    """Predict every rank of ``cluster.workers`` from inclusion probabilities, in this process.

    ``policy`` makes the cache of one rank.
    """
    size = max(job.cluster.workers, 1)
    rounds = 2 * len(job.sampler.fanouts) / job.sampler.bulk + 2 / job.cache.window
    found = []
    for rank in range(size):
        hosts = [f"host{r}" for r in range(size)]
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=graph.num_parts)
        grid = Grid.of(placement, job.cluster.replication)
        if grid.column.all_local:
            return DataPlan((), 0.0, "every rank holds the whole graph: nothing is asked of others")
        seeds = epoch_plan(job, graph, grid.rows)
        own = workload(job, seeds, sampler, rank)
        forecast = foresee(job, graph, grid.column, seeds, sampler, policy(), own)
        if forecast is None:
            why = (
                f"the sampler {job.sampler.name!r} with the cache {job.cache.name!r}: what is "
                "asked for depends on what is drawn; train, and read it in the report"
            )
            return DataPlan((), rounds, why)
        found.append(forecast)
    return DataPlan(tuple(found), rounds)
