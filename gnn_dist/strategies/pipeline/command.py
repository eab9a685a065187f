"""``gnn-dist plan``: the ways to pipeline a job, before it runs."""

from dataclasses import dataclass
from pathlib import Path

from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.pipeline.plan import Candidate, candidates
from gnn_dist.strategies.pipeline.profile import measure
from gnn_dist.strategies.pipeline.strategy import PipelineStrategy


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates, the chosen one first."""

    candidates: tuple[Candidate, ...]
    ranks: int
    micro_batches: int

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

        verdict = f"{self.best.name} on {self.ranks} ranks, {self.micro_batches} micro-batches"
        if not self.best.fits:
            verdict += "; nothing fits the memory limit, this needs the least time"
        return "\n".join([line(columns), *map(line, cells), "", f"chosen: {verdict}"])

    def write(self, folder: Path) -> None:
        """``gantt.svg``, ``trace.json`` (chrome://tracing) and ``schedule.json`` (a table that can
        be edited and given back) of the chosen one."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gantt.svg").write_text(self.best.timeline.gantt_svg())
        (folder / "trace.json").write_text(self.best.timeline.chrome_trace())
        (folder / "schedule.json").write_text(self.best.schedule.to_json() + "\n")


def plan_job(
    job: Config, graph: PartitionedGraph, ranks: int, memory_mib: float | None = None
) -> Plan:
    """Measure a job's first global batch in this process and simulate every schedule on ``ranks``.

    memory_mib: activations that a rank may hold; None for no limit.
    """
    PipelineStrategy.check(job, graph)
    strategy = PipelineStrategy.build(job, World.local(), graph)
    _, share = next(iter(strategy.shares(0, 0, 1)))
    profile = measure(strategy.model, share.micros, strategy.loss_sum)
    limit = float("inf") if memory_mib is None else memory_mib * 2**20
    found = candidates(profile, ranks, memory_limit=limit)
    return Plan(tuple(found), ranks, len(share.micros))


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
