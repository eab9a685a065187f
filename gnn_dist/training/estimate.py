"""What a run will take, before anything is started: ``gnn-dist train --dry-run``.

Sizes of batches are measured on the first batches of the run itself, which can be drawn without a
worker; the rest is arithmetic on them.
"""

from dataclasses import dataclass

import numpy as np
import torch

from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.config import Config
from gnn_dist.graph import Graph
from gnn_dist.loading import EpochPlan, batch_bytes
from gnn_dist.sampling import LocalTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.data import INPUTS, build_parts, width_of

_BATCHES = 4  # global batches that are drawn for the estimate


@dataclass(frozen=True)
class Estimate:
    """Numbers of one run; bytes are of one worker, rows and edges of one global batch.

    Attributes:
        steps_an_epoch, steps: optimiser steps.
        edges: sampled edges of a global batch.
        nodes: nodes of a global batch by layer, the seeds last.
        rows: feature rows that the workers read for a global batch, all together. Workers that
            share a global batch may read a row more than once.
        feature_bytes: bytes of those rows.
        parameters: numbers in the model.
        batch_bytes: of one prepared batch.
        activation_bytes: of the forward pass, kept for the backward pass.
        model_bytes: weights, gradients and the optimiser's state.
        storage_bytes: of the partition on disk, which is mapped and not held.
    """

    steps_an_epoch: int
    steps: int
    edges: float
    nodes: list[float]
    rows: float
    feature_bytes: float
    parameters: int
    batch_bytes: float
    activation_bytes: float
    model_bytes: int
    storage_bytes: int

    @property
    def memory_bytes(self) -> float:
        """Peak of one worker above an idle process."""
        return self.batch_bytes + self.activation_bytes + self.model_bytes

    def text(self, job: Config, graph: Graph) -> str:
        """Lines for people."""
        layers = " -> ".join(f"{n:,.0f}" for n in self.nodes)
        workers = max(job.cluster.workers, 1)
        ahead = min(job.loader.prefetch * self.batch_bytes, job.loader.max_bytes)
        return "\n".join(
            [
                f"graph        {graph!r}",
                f"partition    {job.num_parts} parts by {job.partition.name}, "
                f"{_size(self.storage_bytes)} on disk",
                f"steps        {self.steps_an_epoch:,} an epoch, {self.steps:,} in all",
                f"a batch      {job.train.batch_size:,} seeds on {workers} workers: nodes "
                f"{layers}; {self.edges:,.0f} edges",
                f"rows         {self.rows:,.0f} feature rows a batch ({_size(self.feature_bytes)})",
                f"model        {self.parameters:,} parameters",
                f"memory       about {_size(self.memory_bytes + ahead)} a worker: batch "
                f"{_size(self.batch_bytes)}, {_size(ahead)} ahead, activations "
                f"{_size(self.activation_bytes)}, weights and optimiser "
                f"{_size(self.model_bytes)}; besides the process itself",
            ]
        )


def estimate(job: Config, graph: Graph) -> Estimate:
    """Draw the first batches of a job and count. ``InputError`` where the job cannot be built."""
    whole = PartitionedGraph.from_graph(graph)
    parts = build_parts(job, whole)
    model = parts.model
    workers = max(job.cluster.workers, 1)
    train, original = whole.split("train")
    homes = np.arange(train.size) % workers
    plan = EpochPlan(
        train, original, homes, job.train.batch_size, workers, job.seed, job.loader.drop_last
    )
    topology = LocalTopology(whole.part(0))
    order = plan.order(0)
    shares: list[MiniBatch] = []
    batches = min(_BATCHES, plan.num_batches)
    for number in range(batches):
        positions = plan.batch(order, number)
        for rank in range(workers):
            shares.append(
                parts.sampler.sample(
                    topology,
                    plan.share(positions, rank),
                    seed=job.seed,
                    index=BatchIndex(0, number),
                    global_seeds=len(positions),
                )
            )
    width = width_of(whole, INPUTS)
    item = 8 if job.train.precision == "float64" else 4
    activation = [_activation_numbers(model, share, width) * item for share in shares]
    rows = sum(share.input_nodes.numel() for share in shares) / batches
    parameters = sum(p.numel() for p in model.parameters())
    copies = {"adam": 4, "adamw": 4, "sgd": 3}[job.train.optimizer]  # weights, gradient, state
    steps = plan.num_batches * job.train.epochs
    return Estimate(
        steps_an_epoch=plan.num_batches,
        steps=min(steps, job.train.max_steps or steps),
        edges=sum(b.num_edges for s in shares for b in s.blocks) / batches,
        nodes=_nodes_by_layer(shares, batches),
        rows=rows,
        feature_bytes=rows * width * item,
        parameters=parameters,
        batch_bytes=max(batch_bytes(s) + s.input_nodes.numel() * width * item for s in shares),
        activation_bytes=max(activation),
        model_bytes=parameters * item * copies,
        storage_bytes=_storage_bytes(graph, job.partition.half),
    )


def _nodes_by_layer(shares: list[MiniBatch], batches: int) -> list[float]:
    depth = len(shares[0].blocks)
    counts = [sum(s.blocks[k].num_src for s in shares) / batches for k in range(depth)]
    return [*counts, sum(s.seeds.numel() for s in shares) / batches]


def _activation_numbers(model: torch.nn.Module, share: MiniBatch, in_features: int) -> float:
    """Numbers that a layer keeps: its aggregated input, twice as wide, and its output."""
    widths = [p.shape[0] for p in model.parameters() if p.ndim == 2]
    hidden = max(widths, default=in_features)
    total, inputs = 0.0, in_features
    for block in share.blocks:
        total += block.num_dst * (2 * inputs + 2 * hidden)
        inputs = hidden
    return total


def _storage_bytes(graph: Graph, half: list[str]) -> int:
    tensors = {**graph.node, **graph.edge}
    sizes = [a.nbytes // (2 if name in half else 1) for name, a in tensors.items()]
    topology = graph.indptr.nbytes + graph.indices.nbytes + 8 * graph.num_edges
    return topology + 8 * graph.num_nodes + sum(sizes)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"
