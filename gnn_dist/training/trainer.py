"""``Trainer``: the loop of a run. A newcomer reads this and then one strategy."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_dist import config
from gnn_dist.cluster import Exchange
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import StepReport, Strategy
from gnn_dist.training import checkpoints, metrics
from gnn_dist.training.checkpoints import Checkpoint, Position
from gnn_dist.training.progress import Observer


@dataclass
class History:
    """What a run has done so far; travels in its checkpoints.

    Attributes:
        epochs: one record an epoch: ``epoch, step, loss, seconds, samples_per_second, time``
            (seconds by activity, mean over ranks) and, where evaluated, ``val`` (metric → value).
        best: value of the monitored metric of the best epoch so far.
        stale: evaluations since then.
        strategy: what computed the steps.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    stale: int = 0
    strategy: str = ""


class Trainer:
    """Runs epochs of a strategy: steps, evaluations, checkpoints, early stopping.

    Every rank runs the same loop; rank 0 evaluates metrics, writes and decides.

    Args:
        strategy: computes global batches.
        optimizer: steps on the gradients that the strategy leaves.
        settings: the ``train`` section.
        score: metrics of the task, the first one monitored.
        target_names: names of regression targets.
        exchange: carries decisions from rank 0; used by this thread alone.
        folder: where checkpoints go, or None for none.
        observer: is told what happens, on rank 0.
        graph: what is trained on; its files must stay as they are.
        fingerprint: ``Config.fingerprint()``.
        evaluate: whether there is a validation split.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        settings: config.Train,
        score: Mapping[str, metrics.Metric],
        target_names: list[str],
        exchange: Exchange,
        folder: Path | None,
        observer: Observer,
        graph: PartitionedGraph,
        fingerprint: str,
        evaluate: bool,
    ) -> None:
        self.strategy = strategy
        self.optimizer = optimizer
        self.history = History()
        self._settings = settings
        self._score = score
        self._target_names = target_names
        self._exchange = exchange
        self._folder = folder
        self._observer = observer
        self._graph = graph
        self._fingerprint = fingerprint
        self._evaluate = evaluate and settings.evaluate_every > 0

    def fit(self, start: Position | None = None) -> History:
        """Train from ``start`` (default: the beginning) to the configured end."""
        position = start or Position()
        last_step = self._settings.max_steps or math.inf
        while position.epoch < self._settings.epochs and position.step < last_step:
            if self._patience_is_out():
                break
            position = self._epoch(position, last_step)
        return self.history

    def _epoch(self, position: Position, last_step: float) -> Position:
        epoch, step = position.epoch, position.step
        num_batches = self.strategy.num_batches()
        stop = int(min(num_batches, position.batch + last_step - step))
        totals = _Totals()
        for index, share in self.strategy.shares(epoch, position.batch, stop):
            report = self.strategy.backward(share)
            self._check_loss(report, epoch, step)
            if self._settings.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(
                    self.strategy.model.parameters(), self._settings.clip_norm
                )
            started = time.perf_counter()
            self.optimizer.step()
            report.seconds["optimise"] = time.perf_counter() - started
            step += 1
            totals.add(report)
            self._observer.step(epoch, index.batch, num_batches, step, report)
            every = self._settings.checkpoint_every
            if every is not None and step % every == 0 and index.batch + 1 < stop:
                self._save(Position(epoch, index.batch + 1, step))
        if stop < num_batches:  # max_steps ends inside the epoch
            position = Position(epoch, stop, step)
        else:
            position = Position(epoch + 1, 0, step)
        self._finish(epoch, position, totals)
        return position

    def _check_loss(self, report: StepReport, epoch: int, step: int) -> None:
        if not math.isfinite(report.loss):
            raise FloatingPointError(
                f"the loss is {report.loss} at epoch {epoch}, step {step}; lower train.lr, set "
                "train.clip_norm, or look for extreme values in the features and targets"
            )

    def _finish(self, epoch: int, position: Position, totals: "_Totals") -> None:
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": position.step,
            **totals.summary(self._exchange),
        }
        last = position.epoch >= self._settings.epochs or position.step == self._settings.max_steps
        due = last or (epoch + 1) % max(self._settings.evaluate_every, 1) == 0
        improved = False
        if self._evaluate and due:
            started = time.perf_counter()
            record["val"] = self.evaluate("val")
            record["evaluate_seconds"] = time.perf_counter() - started
            improved = self._compare(record["val"])
        self.history.epochs.append(record)
        if improved:  # first: a run that goes on after this epoch must find its best
            self._save(position, name="best")
        self._save(position)
        self._observer.epoch(record)

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics of a split by exact inference; the same values on every rank."""
        predictions = self.strategy.predict(split)
        values = {} if predictions is None else self.score(predictions)
        return self._exchange.all_gather_object(values)[0]

    def score(self, predictions: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
        """Metrics of (original ids, outputs, targets)."""
        _, output, target = predictions
        return metrics.compute(self._score, output, target, self._target_names)

    def _compare(self, values: Mapping[str, float]) -> bool:
        name = next(iter(self._score))
        value = values[name]
        sign = -1.0 if name in metrics.LOWER_IS_BETTER else 1.0
        best = self.history.best
        if math.isfinite(value) and (best is None or sign * value > sign * best):
            self.history.best, self.history.stale = value, 0
            return True
        self.history.stale += 1
        return False

    def _patience_is_out(self) -> bool:
        patience = self._settings.patience
        return patience is not None and self.history.stale >= patience

    def _save(self, position: Position, name: str | None = None) -> None:
        """Rank 0 writes; the others wait, so that no rank is ahead of the newest checkpoint."""
        self._graph.check_files()
        if self._folder is None:
            return
        if self._exchange.rank == 0:
            checkpoints.save(
                self._folder,
                position,
                {
                    "model": self.strategy.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                },
                graph=self._graph.digest,
                config=self._fingerprint,
                model=checkpoints.shapes(self.strategy.model),
                extra={
                    "epochs": self.history.epochs,
                    "best": self.history.best,
                    "stale": self.history.stale,
                    "strategy": getattr(self.strategy, "name", ""),
                },
                name=name,
            )
            checkpoints.prune(self._folder, self._settings.keep_checkpoints)
        self._exchange.barrier()

    def resume(self, checkpoint: Checkpoint) -> Position:
        """Restore weights, optimiser and history; returns where to go on."""
        checkpoint.check(
            graph=self._graph.digest,
            config=self._fingerprint,
            model=checkpoints.shapes(self.strategy.model),
        )
        state = checkpoint.load()
        self.strategy.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = History(**checkpoint.extra)
        return checkpoint.position


class _Totals:
    """Sums over the steps of an epoch on this rank."""

    def __init__(self) -> None:
        self.steps = 0
        self.seeds = 0
        self.loss = 0.0
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()

    def add(self, report: StepReport) -> None:
        self.steps += 1
        self.seeds += report.seeds
        self.loss += report.loss * report.seeds
        for name, value in report.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def summary(self, exchange: Exchange) -> dict[str, Any]:
        elapsed = time.perf_counter() - self.started
        everyone = exchange.all_gather_object(self.seconds)
        return {
            "loss": self.loss / max(self.seeds, 1),
            "seconds": elapsed,
            "samples_per_second": self.seeds / elapsed,
            "time": {
                name: sum(rank.get(name, 0.0) for rank in everyone) / len(everyone)
                for name in everyone[0]
            },
        }
