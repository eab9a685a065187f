"""What one rank does in a run, top to bottom: open, build, train, evaluate, give the result."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_dist import strategies
from gnn_dist.cluster import WorkerContext
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.storage import PartitionedGraph, open_partition
from gnn_dist.training import baselines, checkpoints
from gnn_dist.training.build import build_trainer, has_nodes
from gnn_dist.training.checkpoints import Checkpoint
from gnn_dist.training.progress import Observer, Observers, ProgressLine, TensorBoard
from gnn_dist.training.trainer import Trainer

Predictions = dict[str, tuple[Tensor, Tensor, Tensor]]
"""Split → (original ids int64[n], outputs, targets)."""


@dataclass(frozen=True)
class Payload:
    """What the driver tells every worker.

    Attributes:
        config: the resolved configuration.
        partition: the partition directory, reachable from every host.
        folder: the run's folder.
        resume: go on from the newest checkpoint; a group of workers that is restarted after a
            failure does so in any case.
    """

    config: Config
    partition: Path
    folder: Path
    resume: bool = False


@dataclass
class Result:
    """What rank 0 gives back: parts of ``metrics.json``, and predictions."""

    metrics: dict[str, Any]
    predictions: Predictions


def train(context: WorkerContext, payload: Payload) -> Result:
    """Train, then evaluate the best weights (the last ones where no validation picked any)."""
    with contextlib.closing(_observer(context, payload)) as observer:
        return _train(context, payload, observer)


def _train(context: WorkerContext, payload: Payload, observer: Observer) -> Result:
    clock = _Clock()
    job, world = payload.config, context.world
    graph = _open(context, payload)
    folder = payload.folder / "checkpoints"
    warn = context.warn if context.rank == 0 else checkpoints.quiet
    goes_on = payload.resume or context.attempt > 0
    newest = checkpoints.newest(folder, warn) if goes_on else None
    strategy = strategies.build(_as_before(job, newest, world.size), world, graph)
    choice = getattr(strategy, "choice", None)  # what it chose from, where it chose
    if choice is not None and context.rank == 0:
        context.keep(choice)
    trainer = build_trainer(job, world, graph, strategy, folder, observer)
    clock.lap("open")

    position = None
    if newest is not None:
        position = trainer.resume(newest)
        if context.rank == 0:
            left = position.epoch < job.train.epochs
            at = f"going on at epoch {position.epoch + 1}, step {position.step}"
            context.keep(at if left else "all epochs are trained: evaluating again")
    history = trainer.fit(position)
    clock.lap("train")

    if history.best is not None:
        _take_best(trainer, folder / "best", warn)
    scores, predictions = _evaluate(trainer, graph, ["test", "val"])
    clock.lap("evaluate")

    below = baselines.evaluate(job, world, graph, predictions.get("test"))
    clock.lap("baselines")
    return Result(
        {
            **scores,
            "strategy": getattr(strategy, "name", job.train.strategy),
            **({"choice": choice} if choice is not None else {}),
            "baselines": below,
            "epochs": history.epochs,
            "time": clock.seconds,
            "communication": strategy.communication(),
        },
        predictions,
    )


def _as_before(job: Config, newest: Checkpoint | None, ranks: int) -> Config:
    """The job, with the strategy that ``auto`` has taken for it already: the two sum in another
    order."""
    before = "" if newest is None else str(newest.extra.get("strategy", ""))
    if job.train.strategy != "auto" or not before or ranks == 1:
        return job
    return job.model_copy(update={"train": job.train.model_copy(update={"strategy": before})})


def evaluate(context: WorkerContext, payload: Payload, checkpoint: Path, split: str) -> Result:
    """Metrics and predictions of one split with the weights of a checkpoint."""
    job, world = payload.config, context.world
    graph = _open(context, payload)
    strategy = strategies.build(job, world, graph)
    trainer = build_trainer(job, world, graph, strategy, None, Observers())
    trainer.resume(checkpoints.read(checkpoint))
    return Result(*_evaluate(trainer, graph, [split]))


def _take_best(trainer: Trainer, path: Path, warn: Callable[[str], None]) -> None:
    try:
        trainer.resume(checkpoints.read(path))
    except InputError as error:
        warn(f"{error}; the last weights are evaluated instead")


def _open(context: WorkerContext, payload: Payload) -> PartitionedGraph:
    """This host's partitions, copied to a local folder first where configured."""
    path, cluster = payload.partition, payload.config.cluster
    if cluster.stage_dir is not None:
        path = context.stage(path, cluster.stage_dir, cluster.placement)
    return open_partition(path)


def _evaluate(
    trainer: Trainer, graph: PartitionedGraph, splits: list[str]
) -> tuple[dict[str, Any], Predictions]:
    scores: dict[str, Any] = {}
    kept: Predictions = {}
    for split in splits:
        if not has_nodes(graph, split):
            continue
        predictions = trainer.strategy.predict(split)
        if predictions is not None:
            kept[split] = predictions
            scores[split] = trainer.score(predictions)
    return scores, kept


def _observer(context: WorkerContext, payload: Payload) -> Observer:
    if context.rank != 0:
        return Observers()
    line = ProgressLine(context.show, context.keep, payload.config.train.epochs)
    return Observers([line, TensorBoard(payload.folder / "tensorboard")])


class _Clock:
    """Seconds of each part of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
