"""Sizes of sampled batches, counted on the first ones, which can be drawn without a worker."""

import numpy as np
from torch import nn

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.config import Config
from gnn_dist.loading import EpochPlan, Sampler, batch_bytes
from gnn_dist.sampling import LocalTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import Sizes, model_dtype

_BATCHES = 4  # global batches that are drawn


def sampled_sizes(
    job: Config,
    graph: PartitionedGraph,
    model: nn.Module,
    sampler: Sampler,
    width: int,
    *,
    shared: bool = False,
) -> Sizes:
    """Of a graph in one part. ``width``: numbers in a feature row. Each worker has blocks of its
    own or, with ``shared``, all have an even share of those of one process."""
    workers = max(job.cluster.workers, 1)
    owners = 1 if shared else workers  # of blocks
    train, original = graph.split("train")
    homes = np.arange(train.size) % owners
    plan = EpochPlan(
        train, original, homes, job.train.batch_size, owners, job.seed, job.loader.drop_last
    )
    topology = LocalTopology(graph.part(0))
    order = plan.order(0)
    shares: list[MiniBatch] = []
    batches = min(_BATCHES, plan.num_batches)
    for number in range(batches):
        positions = plan.batch(order, number)
        for rank in range(owners):
            shares.append(
                sampler.sample(
                    topology,
                    plan.share(positions, rank),
                    seed=job.seed,
                    index=BatchIndex(0, number),
                    global_seeds=len(positions),
                )
            )
    item = model_dtype(job).itemsize
    layers = " -> ".join(f"{n:,.0f}" for n in _nodes_by_layer(shares, batches))
    edges = sum(b.num_edges for s in shares for b in s.blocks) / batches
    held = max(batch_bytes(s) + s.input_nodes.numel() * width * item for s in shares)
    kept = item * max(_activation_numbers(model, s, width) for s in shares)
    return Sizes(
        steps_an_epoch=plan.num_batches,
        batch=f"{job.train.batch_size:,} seeds on {workers} workers: nodes {layers}; "
        f"{edges:,.0f} edges",
        edges=edges,
        rows=sum(share.input_nodes.numel() for share in shares) / batches,
        row_bytes=width * item,
        parameters=sum(p.numel() for p in model.parameters()),
        batch_bytes=held * owners / workers,
        activation_bytes=kept * owners / workers,
    )


def _nodes_by_layer(shares: list[MiniBatch], batches: int) -> list[float]:
    depth = len(shares[0].blocks)
    counts = [sum(s.blocks[k].num_src for s in shares) / batches for k in range(depth)]
    return [*counts, sum(s.seeds.numel() for s in shares) / batches]


def _activation_numbers(model: nn.Module, share: MiniBatch, in_features: int) -> float:
    """Numbers that a layer keeps: its aggregated input, twice as wide, and its output."""
    widths = [p.shape[0] for p in model.parameters() if p.ndim == 2]
    hidden = max(widths, default=in_features)
    total, inputs = 0.0, in_features
    for block in share.blocks:
        total += block.num_dst * (2 * inputs + 2 * hidden)
        inputs = hidden
    return total
