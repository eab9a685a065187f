"""What a run will take, before anything is started: ``gnn-dist train --dry-run``.

Sizes of batches are what the job's strategy counts on its first ones; the rest is arithmetic.
"""

from dataclasses import dataclass

from gnn_dist import strategies
from gnn_dist.config import Config
from gnn_dist.graph import Graph
from gnn_dist.strategies import Sizes


@dataclass(frozen=True)
class Estimate:
    """Numbers of one run.

    Attributes:
        sizes: of its global batches.
        steps: optimiser steps in all.
        model_bytes: of one worker: weights, gradients and the optimiser's state.
        storage_bytes: of the partition on disk, which is mapped and not held.
    """

    sizes: Sizes
    steps: int
    model_bytes: int
    storage_bytes: int

    @property
    def memory_bytes(self) -> float:
        """Peak of one worker above an idle process, without the batches that are ahead."""
        return self.sizes.batch_bytes + self.sizes.activation_bytes + self.model_bytes

    def text(self, job: Config, graph: Graph) -> str:
        """Lines for people."""
        sizes = self.sizes
        ahead = min(job.loader.prefetch * sizes.batch_bytes, job.loader.max_bytes)
        return "\n".join(
            [
                f"graph        {graph!r}",
                f"partition    {job.num_parts} parts by {job.partition.name}, "
                f"{_size(self.storage_bytes)} on disk",
                f"steps        {sizes.steps_an_epoch:,} an epoch, {self.steps:,} in all",
                f"a batch      {sizes.batch}",
                f"rows         {sizes.rows:,.0f} feature rows a batch "
                f"({_size(sizes.rows * sizes.row_bytes)})",
                f"model        {sizes.parameters:,} parameters",
                f"memory       about {_size(self.memory_bytes + ahead)} a worker: batch "
                f"{_size(sizes.batch_bytes)}, {_size(ahead)} ahead, activations "
                f"{_size(sizes.activation_bytes)}, weights and optimiser "
                f"{_size(self.model_bytes)}; besides the process itself",
            ]
        )


def estimate(job: Config, graph: Graph) -> Estimate:
    """Count the first batches of a job. ``InputError`` where it cannot be built."""
    sizes = strategies.sizes(job, graph)
    item = 8 if job.train.precision == "float64" else 4
    copies = {"adam": 4, "adamw": 4, "sgd": 3}[job.train.optimizer]  # weights, gradient, state
    steps = sizes.steps_an_epoch * job.train.epochs
    return Estimate(
        sizes,
        steps=min(steps, job.train.max_steps or steps),
        model_bytes=sizes.parameters * item * copies,
        storage_bytes=_storage_bytes(graph, job.partition.half),
    )


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
