"""Weights for a partitioner that say what a vertex and an edge cost in a batch.

The weight of a vertex is the mean number of rows and in-edges that its owner works through in a
global batch: 1 and its drawn in-edges for each hop that draws for it, and 1 for its feature row.
The weight of an edge is the mean number of times that it is drawn, which is what cutting it costs
at most: rows that several edges of one rank share travel once.
"""

from typing import Any

import numpy as np

from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import AllParts, Workload, inclusion_probability, seed_probability
from gnn_dist.graph import Graph
from gnn_dist.loading import EpochPlan, rehearse
from gnn_dist.sampling import ALL, LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.data import build_sampler


def partition_weights(job: Config, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Of a job's batches on a graph: vertices float64[N], edges float64[E] in CSC order.

    ``partition.weights`` is ``presample``, which counts batches of epochs that are not trained on,
    or ``vip``, which samples nothing and works with probabilities. ``InputError`` for a sampler
    that does not draw vertex by vertex.
    """
    sampler = _sampler(job)
    if job.partition.weights == "presample":
        return presampled(job, graph, sampler, job.partition.presample_epochs)
    return analysed(job, graph, sampler)


def origin(job: Config) -> dict[str, Any]:
    """What the weights of a job's partition are made from, for its manifest; empty for none."""
    if job.partition.weights is None:
        return {}
    sampler = job.sampler.model_dump(mode="json", exclude={"bulk", "engine"})
    counted = job.partition.weights == "presample"
    return {
        "kind": job.partition.weights,
        **({"epochs": job.partition.presample_epochs} if counted else {}),
        "sampler": sampler,
        "batch_size": job.train.batch_size,
        "drop_last": job.loader.drop_last,
    }


def presampled(
    job: Config, graph: Graph, sampler: NeighborSampler, epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Counted over all batches of ``epochs`` rehearsed epochs. The sampler gives edge ids."""
    whole, plan = _one_process(job, graph)
    place = None  # of an edge, by its id, in CSC order
    if graph.edge_ids is not None:
        place = np.empty(graph.num_edges, np.int64)
        place[graph.edge_ids] = np.arange(graph.num_edges)
    vertices, edges = np.zeros(graph.num_nodes), np.zeros(graph.num_edges)
    topology = LocalTopology(whole.part(0))
    for epoch in range(epochs):
        for batch in rehearse(plan, sampler, topology, -1 - epoch, seed=job.seed, rank=0):
            nodes = batch.input_nodes.numpy()
            vertices[nodes] += 1
            for block in batch.blocks:
                vertices[nodes[: block.num_dst]] += 1 + block.degrees().numpy()
                assert block.edge_ids is not None
                ids = block.edge_ids.numpy()
                np.add.at(edges, ids if place is None else place[ids], 1.0)
    batches = epochs * plan.num_batches
    return vertices / batches, edges / batches


def analysed(job: Config, graph: Graph, sampler: NeighborSampler) -> tuple[np.ndarray, np.ndarray]:
    """From the probability of a vertex to be reached by each hop (see ``features.vip``)."""
    if type(sampler) is not NeighborSampler:
        raise InputError(
            f"config partition.weights: vip knows the draws of the sampler neighbor, not of "
            f"{job.sampler.name!r}; use presample"
        )
    whole, plan = _one_process(job, graph)
    chance = seed_probability(plan.homes, plan.batch_size, 1, 0, plan.drop_last)
    reached = np.zeros(graph.num_nodes)  # as a seed
    reached[plan.global_ids] = chance
    directory = AllParts(whole)
    degrees = graph.in_degrees()
    vertices, edges = np.zeros(graph.num_nodes), np.zeros(graph.num_edges)
    for hop, fanout in enumerate(sampler.fanouts):
        drawn = edge_draws(graph, fanout, sampler.replace, sampler.weights)
        drawn *= np.repeat(reached, degrees)
        edges += drawn
        vertices += reached
        before = np.concatenate([[0.0], np.cumsum(drawn)])
        vertices += before[graph.indptr[1:]] - before[graph.indptr[:-1]]
        workload = Workload(
            plan.global_ids,
            chance,
            sampler.fanouts[: hop + 1],
            sampler.replace,
            sampler.weights,
        )
        reached = inclusion_probability(whole, directory, workload)
    return vertices + reached, edges


def edge_draws(graph: Graph, fanout: int, replace: bool, weights: str | None) -> np.ndarray:
    """How often each edge is drawn when its destination draws: float64[E] in CSC order.

    For unequal weights without replacement, ``fanout`` times the edge's share, at most 1, stands
    for the exact probability.
    """
    degrees = graph.in_degrees()
    if fanout == ALL:
        return np.ones(graph.num_edges)
    choices, share = degrees, 1.0 / np.repeat(np.maximum(degrees, 1), degrees)
    if weights is not None:
        if weights not in graph.edge:
            raise InputError(
                f"config sampler.weights: the graph has no edge tensor {weights!r}; it has: "
                f"{', '.join(graph.edge) or 'none'}"
            )
        value = graph.edge[weights].reshape(-1).astype(np.float64)
        value = value if graph.edge_ids is None else value[graph.edge_ids]
        rows = np.repeat(np.arange(graph.num_nodes), degrees)
        choices = np.bincount(rows, value > 0, graph.num_nodes)
        mass = np.bincount(rows, value, graph.num_nodes)
        share = np.divide(value, mass[rows], out=np.zeros_like(value), where=mass[rows] > 0)
    if replace:
        return fanout * share
    all_taken = np.repeat(choices <= fanout, degrees) & (share > 0)
    return np.where(all_taken, 1.0, np.minimum(1.0, fanout * share))


def _one_process(job: Config, graph: Graph) -> tuple[PartitionedGraph, EpochPlan]:
    """The graph in one part, and the seeds of whole batches."""
    whole = PartitionedGraph.from_graph(graph)
    train, original = whole.split("train")
    homes = np.zeros(train.size, np.int64)
    return whole, EpochPlan(
        train, original, homes, job.train.batch_size, 1, job.seed, job.loader.drop_last
    )


def _sampler(job: Config) -> NeighborSampler:
    sampler = build_sampler(job, edge_ids=True)
    if not isinstance(sampler, NeighborSampler):
        raise InputError(
            f"config partition.weights: a vertex has a cost of its own where a sampler draws "
            f"vertex by vertex; {job.sampler.name!r} does not; use neighbor or labor, or leave "
            "partition.weights out"
        )
    return sampler
