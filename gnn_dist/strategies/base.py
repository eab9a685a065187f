"""The strategy protocol: how the ranks compute one global batch.

A strategy owns everything between "global batch k of epoch e" and "its gradient stands in every
parameter". The trainer above it knows nothing of samplers, blocks or stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph


def model_dtype(job: Config) -> torch.dtype:
    """Of a job's weights; bfloat16 is for the pass alone."""
    return torch.float64 if job.train.precision == "float64" else torch.float32


@dataclass(slots=True)
class StepReport:
    """What one optimiser step did.

    Attributes:
        loss: mean loss over the seeds of the global batch (equal on every rank).
        seeds: seeds of the global batch.
        seconds: seconds by activity on this rank (``sample``, ``fetch``, ``wait``, ``compute``,
            ``synchronise``); sampling and fetching run ahead and may overlap with the others.
    """

    loss: float
    seeds: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a job's global batches hold, counted before anything runs: for an estimate.

    Attributes:
        steps_an_epoch: optimiser steps.
        batch: what a global batch is, for people.
        edges: of a global batch.
        rows: feature rows that the workers read for a global batch, all together. Workers that
            share a global batch may read a row more than once.
        row_bytes: of one of them.
        parameters: numbers in the model.
        batch_bytes: of one worker: a prepared batch.
        activation_bytes: of one worker: what the forward pass keeps for the backward pass.
    """

    steps_an_epoch: int
    batch: str
    edges: float
    rows: float
    row_bytes: int
    parameters: int
    batch_bytes: float
    activation_bytes: float


class Plan(Protocol):
    """What a strategy foresees of a job before it runs: ``gnn-dist plan``."""

    def text(self) -> str:
        """For people: what could be done, at what price, and what would be chosen."""
        ...

    def write(self, folder: Path) -> list[Path]:
        """Write what is worth a file (pictures, traces, tables) into a new or existing folder."""
        ...


class Strategy(Protocol):
    """One way to compute global batches. All give the same loss and gradients."""

    name: str
    model: torch.nn.Module

    @classmethod
    def check(cls, job: Config, graph: PartitionedGraph) -> None:
        """Raise ``InputError`` for what cannot be built, without a world (on the driver)."""
        ...

    @classmethod
    def sizes(cls, job: Config, graph: Graph) -> Sizes:
        """Sizes of the job's first global batches, found in this process alone."""
        ...

    @classmethod
    def plan(cls, job: Config, graph: PartitionedGraph) -> Plan:
        """What the job will do on its ``cluster.workers``, foreseen in this process alone."""
        ...

    @classmethod
    def build(cls, job: Config, world: World, graph: PartitionedGraph) -> "Strategy":
        """The strategy of a job on this rank. Collective."""
        ...

    def num_batches(self) -> int:
        """Global batches in an epoch, the same on every rank."""
        ...

    def shares(self, epoch: int, first: int, stop: int) -> Iterator[tuple[BatchIndex, Any]]:
        """This rank's shares of global batches ``first`` to ``stop - 1``, in order."""
        ...

    def backward(self, share: Any) -> StepReport:
        """Leave the gradient of the global batch in ``.grad`` of every parameter of this rank."""
        ...

    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """(original ids, outputs, targets) of a split, exact, gathered on rank 0; else None."""
        ...

    def communication(self) -> dict[str, Any]:
        """Rows and bytes moved since the start, summed over ranks (collective)."""
        ...
