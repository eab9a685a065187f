"""What a worker function is given."""

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gnn_dist.cluster.placement import PlacementMode
from gnn_dist.cluster.world import World
from gnn_dist.storage import read_manifest, stage


class Terminal:
    """Writes progress for a person: one line that is rewritten, and lines that stay.

    The line that is rewritten is shown on a terminal only.
    """

    def __init__(self) -> None:
        self._shown = 0

    def show(self, text: str) -> None:
        """Put ``text`` in the place of the last text shown."""
        if not sys.stderr.isatty():
            return
        first = (text.splitlines() or [""])[0][: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + first.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(first)

    def keep(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the last text shown away."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0


@dataclass(frozen=True)
class Voices:
    """Where a run's words go: see ``WorkerContext``."""

    show: Callable[[str], None]
    keep: Callable[[str], None]
    warn: Callable[[str], None]


def _nothing(metrics: Mapping[str, Any]) -> None:
    return None


@dataclass
class WorkerContext:
    """One rank of a run: its world, its device, and the ways to speak to the driver.

    ``attempt`` counts how often the group of workers has been restarted after a failure: 0 at
    first. ``show``, ``keep`` and ``warn`` reach the driver: ``show(text)`` replaces the last text
    shown, ``keep(text)`` writes a line that stays, and so does ``warn(text)``, for what a person
    must know even where no terminal is watched. Only rank 0 should speak.
    """

    world: World
    attempt: int = 0
    show: Callable[[str], None] = field(default_factory=lambda: Terminal().show)
    keep: Callable[[str], None] = field(default_factory=lambda: Terminal().keep)
    warn: Callable[[str], None] = field(default_factory=lambda: Terminal().keep)
    report: Callable[[Mapping[str, Any]], None] = _nothing
    """Hand metrics to Ray Train. A barrier: every rank calls it equally often."""

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.world.hosts

    @property
    def device(self) -> torch.device:
        return self.world.device

    def stage(self, path: Path, local_dir: Path, mode: PlacementMode = "auto") -> Path:
        """Copy this host's partitions under ``local_dir``; the folder of the copy.

        One rank of each host copies while its others wait, however long it takes.
        """
        placement = self.world.placement(read_manifest(path).num_parts, mode)
        done = self.world.once_per_host(
            f"staging {path}",
            lambda: str(stage(path, local_dir, placement.local_parts)),
            placement,
        )
        return Path(done)
