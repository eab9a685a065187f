"""``gnn-dist plan`` of the strategy ``split``: its first batches, counted in one process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.config import Config
from gnn_dist.loading import EpochPlan, Homes, Sampler
from gnn_dist.sampling import PartitionedTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.access import epoch_plan
from gnn_dist.strategies.split.counts import LayerCounts, count

BATCHES = 4
"""Global batches that are counted; fewer where an epoch has fewer."""


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """What each rank will do, layer by layer, in the mean of the first batches."""

    counts: LayerCounts

    def text(self) -> str:
        lines = [
            f"{'layer':5}  {'vertices':>9}  {'edges':>11}  {'cross edges':>11}  "
            f"{'rows shuffled':>13}  {'imbalance':>9}  vertices by rank"
        ]
        for row in self.counts.table():
            lines.append(
                f"{row['layer']:5}  {row['vertices']:9,.0f}  {row['edges']:11,.0f}  "
                f"{row['cross edges']:11,.0f}  {row['rows shuffled']:13,.0f}  "
                f"{row['imbalance']:9.2f}  {' '.join(f'{n:,}' for n in row['vertices by rank'])}"
            )
        batches = len(self.counts.values)
        lines.append(
            f"a batch, in the mean of the first {batches}; imbalance: most of a rank over the "
            f"mean of ranks ({self.counts.work_imbalance():.2f} in all)"
        )
        return "\n".join(lines)

    def write(self, folder: Path) -> list[Path]:
        return []


def first_batches(
    job: Config, graph: PartitionedGraph, sampler: Sampler, plan: EpochPlan, epoch: int = 0
) -> Iterator[tuple[np.ndarray, MiniBatch]]:
    """The first global batches of an epoch, whole: (positions of the seeds, batch). For graphs
    that this process can read all parts of."""
    topology = PartitionedTopology(graph, Placement.single(graph.num_parts), LocalExchange())
    order = plan.order(epoch)
    for number in range(min(BATCHES, plan.num_batches)):
        positions = plan.batch(order, number)
        yield (
            positions,
            sampler.sample(
                topology,
                plan.global_ids[positions],
                seed=job.seed,
                index=BatchIndex(epoch, number),
                global_seeds=len(positions),
            ),
        )


def planned_placement(job: Config, graph: PartitionedGraph) -> Placement:
    """Of rank 0 of ``cluster.workers``: on one host with a Ray of our own, else each on one."""
    hosts = [f"host{0 if job.cluster.address is None else r}" for r in range(num_ranks(job))]
    return Placement.build(
        rank=0, hosts=hosts, num_parts=graph.num_parts, mode=job.cluster.placement
    )


def num_ranks(job: Config) -> int:
    return max(job.cluster.workers, 1)


def plan_split(job: Config, graph: PartitionedGraph, sampler: Sampler) -> SplitPlan:
    """Count what ``cluster.workers`` ranks would do."""
    placement = planned_placement(job, graph)
    return SplitPlan(count_first(job, graph, sampler, placement, job.split.data_parallel_layers))


def count_first(
    job: Config,
    graph: PartitionedGraph,
    sampler: Sampler,
    placement: Placement,
    data_parallel: int,
) -> LayerCounts:
    """The first batches of a job, counted on every rank of ``placement`` by this process."""
    homes = Homes.of(graph.offsets, placement)
    plan = epoch_plan(job, graph, placement)
    found = []
    for positions, batch in first_batches(job, graph, sampler, plan):
        takers = plan.takers(positions) if data_parallel else plan.homes[positions]
        owners = homes(batch.input_nodes.numpy())
        found.append(count(batch, owners, takers, placement.size, data_parallel))
    return LayerCounts.of(found)
