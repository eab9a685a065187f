"""What a job's policies would do, for people and for files; and beside it what was done."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnn_dist.strategies.snapshot import Options
from gnn_dist.strategies.snapshot_plan import Plan


@dataclass(frozen=True)
class JobPlan:
    """What ``gnn-dist plan`` says of a job: every policy's counts, and what would be run."""

    options: Options
    plans: list[Plan]

    def text(self) -> str:
        """The table for a terminal."""
        rows = [p.row() for p in self.plans]
        columns = list(rows[0])
        shown = [[f"{v:,}" if isinstance(v, int) else str(v) for v in r.values()] for r in rows]
        cells = [columns, *shown]
        widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(x, widths, strict=True)) for x in cells]
        lines.append(
            f"policy {self.options.policy}, groups of {self.options.group} snapshots, "
            f"{self.options.encoding}"
        )
        return "\n".join(line.rstrip() for line in lines)

    def write(self, folder: Path) -> list[Path]:
        """``policies.json``: the table and the choice."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "policies.json"
        found = {
            "policy": self.options.policy,
            "group": self.options.group,
            "encoding": self.options.encoding,
            "plans": [p.row() for p in self.plans],
        }
        file.write_text(json.dumps(found, indent=1) + "\n")
        return [file]


@dataclass(frozen=True)
class Done:
    """What the training steps did; pairs are of the first epoch and of all later ones.

    Attributes:
        rows: sent, all ranks.
        edges: aggregated, largest rank.
        stored: edges of encoded groups, largest rank.
        memory: bytes, largest rank.
    """

    rows: tuple[int, int]
    edges: tuple[int, int]
    stored: int
    memory: int


def foreseen(plan: Plan, done: Done, later_epochs: int) -> list[dict[str, Any]]:
    """Lines of a table: planned beside measured."""
    lines = [
        ("rows sent, first epoch", plan.rows_once + plan.rows, done.rows[0]),
        ("rows sent, later epochs", later_epochs * plan.rows, done.rows[1]),
        ("edges aggregated, first epoch", plan.edges_once + plan.edges, done.edges[0]),
        ("edges aggregated, later epochs", later_epochs * plan.edges, done.edges[1]),
        ("edges stored", plan.stored_edges, done.stored),
        ("memory (MB)", round(plan.memory / 1e6, 1), round(done.memory / 1e6, 1)),
    ]
    return [{"": name, "planned": planned, "measured": got} for name, planned, got in lines]


class PeakMemory:
    """How far memory rose above what it was before the first step.

    ``bytes`` is the largest rise so far: on a CPU the peak of the process's resident memory (Linux;
    0 elsewhere), on a GPU the peak of what torch allocated.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: int | None = None
        self.bytes = 0

    def _now(self, peak: bool) -> int:
        if self._device.type == "cuda":
            read = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
            return read(self._device)
        status = Path("/proc/self/status")
        if not status.exists():
            return 0
        field = "VmHWM:" if peak else "VmRSS:"
        return 1024 * int(status.read_text().split(field)[1].split()[0])

    def start(self) -> None:
        """Before a step."""
        if self._before is not None:
            return
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with contextlib.suppress(OSError):  # begin the peak again; not everywhere allowed
                Path("/proc/self/clear_refs").write_text("5")
        self._before = self._now(False)

    def stop(self) -> None:
        """After it."""
        assert self._before is not None
        self.bytes = max(self.bytes, self._now(True) - self._before)
