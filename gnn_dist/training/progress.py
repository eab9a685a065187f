"""What people see while a run goes on: one progress line, and TensorBoard."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gnn_dist.strategies.base import StepReport


class Observer(Protocol):
    """Is told what happens."""

    def step(
        self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport
    ) -> None: ...

    def epoch(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Observers:
    """Several observers as one; none at all is the quiet one."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = observers

    def step(self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport) -> None:
        for observer in self._observers:
            observer.step(epoch, batch, num_batches, step, report)

    def epoch(self, record: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.epoch(record)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


class ProgressLine:
    """One line that is rewritten: position, loss, samples/s and the split of time.

    ``show(text)`` puts a text in the place of the last one; ``keep(text)`` writes a line that
    stays.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        keep: Callable[[str], None],
        num_epochs: int,
        label: str = "epoch",
        interval: float = 0.2,
    ) -> None:
        self._show = show
        self._keep = keep
        self._num_epochs = num_epochs
        self._label = label
        self._interval = interval
        self._shown = 0.0
        self._since = time.perf_counter()
        self._seeds = 0
        self._seconds: dict[str, float] = {}

    def step(self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport) -> None:
        self._seeds += report.seeds
        for name, value in report.seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value
        now = time.perf_counter()
        if now - self._shown < self._interval:
            return
        rate = self._seeds / max(now - self._since, 1e-9)
        self._show(
            f"{self._label} {epoch + 1}/{self._num_epochs}  batch {batch + 1}/{num_batches}  "
            f"loss {report.loss:.4f}  {rate:,.0f} seeds/s  {_split(self._seconds)}"
        )
        self._shown = now

    def epoch(self, record: dict[str, Any]) -> None:
        scores = "  ".join(
            f"val {name} {value:.4f}" for name, value in list(record.get("val", {}).items())[:3]
        )
        self._keep(
            f"{self._label} {record['epoch'] + 1}/{self._num_epochs}  loss {record['loss']:.4f}  "
            f"{record['samples_per_second']:,.0f} seeds/s  {record['seconds']:.1f} s  "
            f"{_split(record['time'])}  {scores}".rstrip()
        )
        self._since = time.perf_counter()
        self._seeds = 0
        self._seconds = {}

    def close(self) -> None:
        return None


def _split(seconds: dict[str, float]) -> str:
    """The activities that the model's thread spends time in, as shares."""
    beside = ("sample", "fetch", "wait_features")  # on threads, and a part of ``wait``
    shown = {k: v for k, v in seconds.items() if k not in beside}
    total = sum(shown.values())
    if total <= 0:
        return ""
    return "  ".join(f"{name} {100 * value / total:.0f}%" for name, value in shown.items())


class TensorBoard:
    """Scalars of steps and epochs as TensorBoard events."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def step(self, epoch: int, batch: int, num_batches: int, step: int, report: StepReport) -> None:
        self._writer.add_scalar("step/loss", report.loss, step)
        for name, seconds in report.seconds.items():
            self._writer.add_scalar(f"step_seconds/{name}", seconds, step)

    def epoch(self, record: dict[str, Any]) -> None:
        step = record["step"]
        self._writer.add_scalar("epoch/loss", record["loss"], step)
        self._writer.add_scalar("epoch/samples_per_second", record["samples_per_second"], step)
        for name, value in record.get("val", {}).items():
            self._writer.add_scalar(f"val/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
