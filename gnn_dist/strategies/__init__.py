"""Ways to compute one global batch; all give the same loss and the same gradients."""

from gnn_dist import plugins
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import StepReport, Strategy

BUILTIN = {"data": "gnn_dist.strategies.data.build"}
"""Name → a function ``(job, world, graph) -> Strategy``; a dotted path names one of yours."""

__all__ = ["BUILTIN", "StepReport", "Strategy", "build"]


def build(job: Config, world: World, graph: PartitionedGraph) -> Strategy:
    """The strategy that ``train.strategy`` names, built on this rank. Collective."""
    return plugins.resolve("strategy", job.train.strategy, BUILTIN)(job, world, graph)
