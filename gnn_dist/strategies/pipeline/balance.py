"""Layers to stages: a model of a layer's time, and the cut that makes the slowest stage fast."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from gnn_dist.errors import InputError

REPLAN = 1.15
"""Measured maximum over mean of the ranks' busy time from which a new cut is worth its while."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer for a micro-batch of N nodes and E edges: ``a N + b E + c``."""

    a: float
    b: float
    c: float

    def __call__(self, nodes: float, edges: float) -> float:
        return self.a * nodes + self.b * edges + self.c

    @classmethod
    def fit(
        cls, nodes: Sequence[float], edges: Sequence[float], seconds: Sequence[float]
    ) -> "LayerTime":
        """Least squares with coefficients that are not negative, relative errors weighing alike.

        Where batches do not tell N from E (all of one shape), the time goes to N.
        """
        n, e, t = (np.asarray(v, np.float64) for v in (nodes, edges, seconds))
        if n.size == 0 or n.size != e.size or n.size != t.size or (t <= 0).any():
            raise InputError(
                f"pipeline.balance: {n.size} measured batches with {t.size} times; give at least "
                "one batch and a positive time for each"
            )
        columns = np.stack((n, e, np.ones(n.size)), axis=1) / t[:, None]
        scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
        solution, _ = nnls(columns / scale, np.ones(n.size))
        return cls(*(solution / scale).tolist())


def partition(
    seconds: Sequence[float],
    stages: int,
    *,
    memory: Sequence[float] | None = None,
    limit: float | Sequence[float] = float("inf"),
) -> list[int]:
    """Contiguous layers to stages so that the slowest stage is as fast as can be.

    seconds, memory: of each layer. limit: bytes that a stage may hold (one number, or one a
    stage). Returns ``stages + 1`` ascending boundaries from 0 to the number of layers; every stage
    has a layer. By dynamic programming over (stages, layers).
    """
    layers = len(seconds)
    if not 1 <= stages <= layers:
        raise InputError(
            f"pipeline: {layers} layers cannot be cut into {stages} stages; give each a layer"
        )
    time = np.concatenate(([0.0], np.cumsum(seconds)))
    held = np.concatenate(([0.0], np.cumsum(memory if memory is not None else [0.0] * layers)))
    limits = [limit] * stages if isinstance(limit, int | float) else list(limit)
    best = np.full((stages + 1, layers + 1), np.inf)
    cut = np.zeros((stages + 1, layers + 1), np.int64)
    best[0, 0] = 0.0
    for s in range(1, stages + 1):
        for stop in range(s, layers - (stages - s) + 1):
            first = np.arange(s - 1, stop)
            cost = np.maximum(best[s - 1, first], time[stop] - time[first])
            cost = np.where(held[stop] - held[first] <= limits[s - 1], cost, np.inf)
            at = int(np.argmin(cost))
            best[s, stop], cut[s, stop] = cost[at], first[at]
    if not np.isfinite(best[stages, layers]):
        raise InputError(
            f"pipeline.memory: no cut of {layers} layers into {stages} stages fits "
            f"{min(limits):,.0f} bytes a stage; use more stages, smaller micro-batches or "
            "model.mode: reversible"
        )
    bounds = [layers]
    for s in range(stages, 0, -1):
        bounds.append(int(cut[s, bounds[-1]]))
    return bounds[::-1]


def imbalance(busy: Sequence[float]) -> float:
    """Maximum over mean of the ranks' busy seconds."""
    return float(np.max(busy) / np.mean(busy))


def worth_replanning(busy: Sequence[float]) -> bool:
    return imbalance(busy) > REPLAN
