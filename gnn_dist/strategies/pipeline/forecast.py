"""``gnn-dist plan``: the ways to pipeline a job, before it runs."""

from dataclasses import dataclass
from pathlib import Path

from gnn_dist.config import Pipeline
from gnn_dist.strategies.pipeline.generators import generate
from gnn_dist.strategies.pipeline.plan import Candidate, Profile, candidate, candidates, ranked
from gnn_dist.strategies.pipeline.profile import BANDWIDTH, LATENCY
from gnn_dist.strategies.pipeline.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Candidates, the best first.

    Attributes:
        chosen: what the job will run: the configured one, else the best.
        fixed: whether the configuration names it.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    fixed: bool
    ranks: int
    micro_batches: int
    memory_mib: float | None = None

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def text(self) -> str:
        """A table for people."""
        rows = [c.row() for c in self.candidates]
        columns = list(rows[0])
        cells = [[_cell(row[c]) for c in columns] for row in rows]
        width = [max(len(c), *(len(r[k]) for r in cells)) for k, c in enumerate(columns)]

        def line(values: list[str]) -> str:
            return "  ".join(v.ljust(w) for v, w in zip(values, width, strict=True)).rstrip()

        links = (
            f"links: {1e3 * LATENCY:g} ms and {BANDWIDTH / 1e9:g} GB/s are assumed; a run measures "
            "its own"
        )
        return "\n".join(
            [line(columns), *map(line, cells), "", f"chosen: {self._verdict()}", links]
        )

    def _verdict(self) -> str:
        chosen, best = self.chosen, self.best
        text = f"{chosen.name} on {self.ranks} ranks, {self.micro_batches} micro-batches"
        if self.fixed:
            text += ", as configured"
            if best is not chosen and best.fits:
                slower = 100 * (chosen.timeline.makespan / best.timeline.makespan - 1)
                text += f" ({slower:.1f}% slower than {best.name})"
        if not best.fits:
            text += (
                f"; nothing fits the memory limit of {self.memory_mib:g} MiB, {best.name} needs "
                f"the least, {best.peak_mib:.3g} MiB"
            )
        elif not chosen.fits:
            text += (
                f"; it needs {chosen.peak_mib:.3g} MiB, above the memory limit of "
                f"{self.memory_mib:g} MiB"
            )
        return text

    def write(self, folder: Path) -> list[Path]:
        """``gantt.svg``, ``trace.json`` (chrome://tracing, Perfetto) and ``schedule.json`` (a table
        that can be edited and given back as ``pipeline.table``) of the chosen one."""
        folder.mkdir(parents=True, exist_ok=True)
        timeline = self.chosen.timeline
        texts = {
            "gantt.svg": timeline.gantt_svg(),
            "trace.json": timeline.chrome_trace(),
            "schedule.json": self.chosen.schedule.to_json() + "\n",
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        return [folder / name for name in texts]


def foresee(
    profile: Profile, ranks: int, settings: Pipeline, table: Schedule | None = None
) -> PipelinePlan:
    """What the job will run, and every other schedule beside it."""
    considered = consider(profile, ranks, settings, table)
    chosen, fixed = considered[0], table is not None or settings.schedule != "auto"
    others = considered[1:] if len(considered) > 1 else _all(profile, ranks, settings)
    found = ranked([chosen, *(c for c in others if c.schedule != chosen.schedule)])
    return PipelinePlan(tuple(found), chosen, fixed, ranks, profile.num_micro, settings.memory_mib)


def consider(
    profile: Profile, ranks: int, settings: Pipeline, table: Schedule | None = None
) -> list[Candidate]:
    """What a job on ``ranks`` chooses from, the one that it takes first.

    A table or a schedule of the configuration is the only one. One rank has nothing to overlap, so
    ``auto`` takes 1f1b there, which holds least.
    """
    name = "1f1b" if settings.schedule == "auto" and ranks == 1 else settings.schedule
    if table is None and name == "auto":
        return _all(profile, ranks, settings)
    schedule = table or generate(name, ranks, profile.num_micro, settings.chunks)
    return [candidate(profile, schedule, memory_limit=memory_limit(settings))]


def _all(profile: Profile, ranks: int, settings: Pipeline) -> list[Candidate]:
    limit, chunks = memory_limit(settings), sorted({2, 4, settings.chunks})
    return candidates(profile, ranks, memory_limit=limit, chunks=chunks)


def memory_limit(settings: Pipeline) -> float:
    """Bytes of activations that a rank may hold."""
    return float("inf") if settings.memory_mib is None else settings.memory_mib * 2**20


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
