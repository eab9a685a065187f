"""The ``pipeline`` section of a job."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gnn_dist.config import Section


class PipelineSettings(Section):
    schedule: Literal["auto", "gpipe", "1f1b", "interleaved", "zb-h1", "chimera"] = "auto"
    """the schedule; `auto` measures a batch and takes the fastest that fits"""
    chunks: int = Field(2, ge=1)
    """stages a rank, for the schedule interleaved"""
    table: Path | None = None
    """a JSON file with a schedule of your own, used instead"""
    memory_mib: float | None = Field(None, gt=0)
    """activations that a rank may hold, in MiB"""
    replan: bool = True
    """move layers between stages when the slowest rank is 15% above the mean"""
