"""How a rank reaches the graph: seeds, neighbours and rows, and what that is foreseen to cost."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_dist.cluster import Exchange, Grid, Placement, World
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import (
    CachePolicy,
    FeatureStore,
    NoCache,
    Prediction,
    Score,
    Workload,
    predict,
    seed_probability,
)
from gnn_dist.loading import EpochPlan, Homes, Horizon, Loader, Sampler, draws_in_bulk, rehearse
from gnn_dist.sampling import ALL, MatrixTopology, NeighborSampler, PartitionedTopology, Topology
from gnn_dist.storage import PartitionedGraph


@dataclass(eq=False)
class Access:
    """What one rank trains through.

    Attributes:
        loader: this rank's shares of every batch.
        features: rows for the loader.
        sampling: the exchange that asks for neighbours.
        forecast: what the cache and the windows are foreseen to save; None where no row of another
            host is asked for, or where that depends on what is drawn.
    """

    loader: Loader
    features: FeatureStore
    sampling: Exchange
    forecast: Prediction | None

    def __post_init__(self) -> None:
        self._before = self.sampling.traffic.copy()

    def counts(self) -> dict[str, Any]:
        """Rows and bytes of this rank's training batches, and of filling its cache."""
        traffic = self.sampling.traffic.since(self._before)
        return {
            "features": self.features.counts.as_dict(),
            "sampling_bytes": traffic.bytes_sent,
            "sampling_rounds": traffic.rounds,
        }

    def foreseen(self) -> dict[str, float] | None:
        """Predicted beside measured, in numbers a batch; None where nothing was foreseen."""
        if self.forecast is None or not self.loader.batches:
            return None
        counts, batches = self.loader.counts, self.loader.batches
        return {
            "cached_rows": self.forecast.kept,
            "needed_rows_predicted": self.forecast.needed,
            "needed_rows": counts.needed / batches,
            "remote_rows_predicted": self.forecast.remote,
            "remote_rows": counts.rows["remote"] / batches,
            "hit_rate_predicted": self.forecast.hit_rate,
            "hit_rate": counts.hit_rate,
        }


def open_access(
    job: Config,
    world: World,
    graph: PartitionedGraph,
    sampler: Sampler,
    cache: CachePolicy | None,
) -> Access:
    """Everything between the partitions and the batches of this rank. Collective."""
    grid = Grid.of(world.placement(graph.num_parts, job.cluster.placement), job.cluster.replication)
    sampling, fetching = world.sampling, world.features
    if job.cluster.replication > 1:
        sampling = world.split("sampling in columns", grid.members)
        fetching = world.split("features in columns", grid.members)
    plan = epoch_plan(job, graph, grid.rows)
    topology = topology_of(job, graph, grid.column, sampling)
    own = workload(job, plan, sampler, world.rank, topology)
    policy = cache or NoCache()
    features = FeatureStore(
        graph,
        grid.column,
        fetching,
        policy,
        fraction=job.cache.fraction,
        max_bytes=job.cache.max_bytes,
        window_bytes=job.cache.window_bytes,
        cached=INPUTS,
        workload=own,
    )
    loader = Loader(
        plan,
        sampler,
        topology,
        features,
        seed=job.seed,
        rank=world.rank,
        inputs=INPUTS,
        targets=(job.task.target,),
        horizon=_horizon(job, sampler),
        prefetch=job.loader.prefetch,
        max_bytes=job.loader.max_bytes,
        threads=_threads(job, topology),
        leave=reads_in_place(job, world),
    )
    forecast = None
    useful = cache is not None and (job.cache.name != "none" or job.cache.window > 1)
    if useful and not grid.column.all_local:
        forecast = foresee(job, graph, grid.column, plan, sampler, policy, own, features)
        features.count_planning()
    return Access(loader, features, sampling, forecast)


INPUTS = "x"
"""The node tensor that models read."""


def reads_in_place(job: Config, world: World) -> bool:
    """Whether a model may read rows where they are stored: on a CPU, in their own precision."""
    return world.device.type == "cpu" and job.train.precision == "float32"


def epoch_plan(job: Config, graph: PartitionedGraph, near: Placement) -> EpochPlan:
    """The seeds of every batch; ``near`` says which rank is near to which partition."""
    train, original = graph.split("train")
    return EpochPlan(
        train,
        original,
        Homes.of(graph.offsets, near)(train),
        job.train.batch_size,
        near.size,
        job.seed,
        job.loader.drop_last,
    )


def topology_of(
    job: Config, graph: PartitionedGraph, placement: Placement, exchange: Exchange
) -> Topology:
    """Where neighbours come from, by ``sampler.engine``."""
    if job.sampler.engine == "matrix":
        if not placement.all_local:
            raise InputError(
                "config sampler.engine: matrix reads the whole graph in one host; use fused, or "
                "let each host hold all of it with cluster.replication"
            )
        return MatrixTopology(graph)
    return PartitionedTopology(graph, placement, exchange)


def workload(
    job: Config,
    plan: EpochPlan,
    sampler: Sampler,
    rank: int,
    topology: Topology | None = None,
) -> Workload:
    """What ``rank`` is going to ask for, as policies and predictions want it.

    Inclusion is known of neighbour sampling; of other samplers, the whole neighbourhood is taken as
    what they may need. Only with a ``topology`` can a policy rehearse.
    """
    probability = seed_probability(
        plan.homes, plan.batch_size, plan.num_ranks, rank, plan.drop_last
    )
    may = np.flatnonzero(probability)
    fanouts = (ALL,) * len(job.sampler.fanouts)
    node_wise = isinstance(sampler, NeighborSampler)
    if isinstance(sampler, NeighborSampler):
        fanouts = sampler.fanouts

    def epoch(number: int) -> Iterator[np.ndarray]:
        assert topology is not None
        for batch in rehearse(plan, sampler, topology, number, seed=job.seed, rank=rank):
            yield batch.input_nodes.numpy()

    return Workload(
        plan.global_ids[may],
        probability[may],
        fanouts,
        job.sampler.replace,
        job.sampler.weights if node_wise else None,
        None if topology is None else epoch,
    )


def foresee(
    job: Config,
    graph: PartitionedGraph,
    placement: Placement,
    plan: EpochPlan,
    sampler: Sampler,
    policy: CachePolicy,
    own: Workload,
    features: FeatureStore | None = None,
) -> Prediction | None:
    """What the cache and the windows of a rank will save; None where that cannot be told.

    Collective with ``features``; else one process reads every part.
    """
    if type(sampler) is not NeighborSampler or isinstance(policy, Score):
        return None
    batches = plan.num_batches
    try:
        return predict(
            graph,
            placement,
            own,
            policy,
            fraction=job.cache.fraction,
            max_bytes=job.cache.max_bytes,
            batches=batches,
            epochs=job.train.epochs,
            window=min(job.cache.window, batches),  # a loader's window ends with its epoch
            ahead=min(job.cache.ahead, batches),
            across_epochs=job.cache.ahead > 0,
            cached=INPUTS,
            directory=None if features is None else features.directory,
        )
    except InputError:  # a policy of somebody's own, which has no scores
        return None


def _horizon(job: Config, sampler: Sampler) -> Horizon | None:
    horizon = Horizon(job.sampler.bulk, job.cache.window, job.cache.ahead)
    if horizon.bulk > 1 and not draws_in_bulk(sampler):
        warnings.warn(
            f"sampler.bulk: the sampler {job.sampler.name!r} draws one batch at a time; ignored",
            stacklevel=2,
        )
    return None if horizon == Horizon() else horizon


def _threads(job: Config, topology: Topology) -> int:
    threads = job.loader.sampling_threads
    if topology.collective and threads > 1:
        warnings.warn(
            f"loader.sampling_threads: {threads} threads cannot sample where other hosts are "
            "asked; using 1",
            stacklevel=2,
        )
        return 1
    return threads
