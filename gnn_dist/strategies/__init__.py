"""Ways to compute one global batch; all give the same loss and the same gradients."""

from collections.abc import Callable
from typing import Any

from gnn_dist import plugins
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import Plan, Sizes, StepReport, Strategy

BUILTIN = {
    "auto": "gnn_dist.strategies.auto.AutoStrategy",
    "data": "gnn_dist.strategies.data.DataStrategy",
    "snapshot": "gnn_dist.strategies.snapshot_job.SnapshotJob",
    "split": "gnn_dist.strategies.split.SplitStrategy",
    "pipeline": "gnn_dist.strategies.pipeline.PipelineStrategy",
}
"""Name → a class of the ``Strategy`` protocol; a dotted path names one of yours."""

__all__ = ["BUILTIN", "Plan", "Sizes", "StepReport", "Strategy", "build", "check", "plan", "sizes"]


def build(job: Config, world: World, graph: PartitionedGraph) -> Strategy:
    """The strategy that ``train.strategy`` names, built on this rank. Collective."""
    strategy: Strategy = _named(job).build(job, world, graph)
    return strategy


def check(job: Config, graph: PartitionedGraph) -> None:
    """Raise ``InputError`` for whatever of a job cannot be built, before any worker starts."""
    _named(job).check(job, graph)


def plan(job: Config, graph: PartitionedGraph) -> Plan:
    """What a checked job will do, foreseen in this process."""
    found: Plan = _offered(job, "plan")(job, graph)
    return found


def sizes(job: Config, graph: Graph) -> Sizes:
    """What the global batches of a checked job hold."""
    found: Sizes = _offered(job, "sizes")(job, graph)
    return found


def _offered(job: Config, name: str) -> Callable[..., Any]:
    """A class method that a strategy of the user's own may lack."""
    method = getattr(_named(job), name, None)
    if method is None:
        raise InputError(
            f"config train.strategy: {job.train.strategy!r} offers no {name} (a class method "
            f"`{name}` of the Strategy protocol); use another strategy, or train without it"
        )
    found: Callable[..., Any] = method
    return found


def _named(job: Config) -> type[Strategy]:
    strategy: type[Strategy] = plugins.resolve("strategy", job.train.strategy, BUILTIN)
    plugins.check_has("strategy", job.train.strategy, strategy, ("check", "build"))
    return strategy
