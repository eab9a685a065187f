"""Snapshots from timed edges."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.errors import InputError

Merge = Literal["last", "sum", "count"]


def from_events(
    src: np.ndarray,
    dst: np.ndarray,
    time: np.ndarray,
    num_nodes: int,
    *,
    every: float,
    life: int | None = 1,
    weight: np.ndarray | None = None,
    merge: Merge = "last",
    labels: np.ndarray | None = None,
    x: np.ndarray | None = None,
    info: Mapping[str, Any] | None = None,
) -> SnapshotSequence:
    """Cut timed edges ``src -> dst`` into snapshots of ``every`` time units.

    Snapshot ``t`` covers the times ``[t0 + t·every, t0 + (t + 1)·every)``, where ``t0`` is the
    first event's. An edge is in the snapshot it happened in and in the ``life - 1`` after it; with
    ``life=None`` it stays forever. A time in which nothing happens gives a snapshot without new
    edges (it may be empty). A node is active from its first event on.

    Args:
        src, dst: int[M] node ids.
        time: float or int [M], not decreasing.
        num_nodes: N.
        every: length of a snapshot, in the unit of ``time``.
        life: snapshots an edge lives, or None.
        weight: float[M]; None gives weight 1 (or, with ``merge="count"``, counts).
        merge: the weight of an edge that happened several times while alive: its last, the sum,
            or how often it happened.
        labels: int[M] classes; the last one alive is kept.
        x: float[T, N, F]; ``degree_features`` where left out.

    Raises:
        InputError: unequal lengths, no events, times that are not finite or go backwards, an
            unknown node, or lengths below 1.
    """
    src, dst, time = np.asarray(src), np.asarray(dst), np.asarray(time)
    if not (src.ndim == 1 and src.shape == dst.shape == time.shape) or src.size == 0:
        raise InputError(
            f"events: src, dst and time have shapes {src.shape}, {dst.shape}, {time.shape}; give "
            "three equally long arrays with at least one event"
        )
    if not every > 0:
        raise InputError(f"events.every: is {every}; give a length above 0")
    if life is not None and life < 1:
        raise InputError(f"events.life: is {life}; give at least 1 snapshot, or None for forever")
    if merge not in ("last", "sum", "count"):
        raise InputError(f"events.merge: is {merge!r}; use last, sum or count")
    if not np.isfinite(time).all():
        where = int(np.argmin(np.isfinite(time)))
        raise InputError(f"events.time: event {where} has time {time[where]}; give finite times")
    back = np.flatnonzero(np.diff(time) < 0)
    if back.size:
        row = int(back[0]) + 1
        raise InputError(
            f"events.time: event {row} has time {time[row]} after {time[row - 1]}: time goes "
            "backwards; sort the events by time (np.argsort(time, kind='stable'))"
        )
    for name, ids in (("src", src), ("dst", dst)):
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= num_nodes:
            bad = np.flatnonzero((ids < 0) | (ids >= num_nodes))
            shown = f"event {bad[0]} is {ids[bad[0]]}" if bad.size else f"dtype {ids.dtype}"
            raise InputError(
                f"events.{name}: {shown}, an unknown node; give integer ids from 0 to "
                f"{num_nodes - 1}"
            )
    for name, values in (("weight", weight), ("labels", labels)):
        if values is not None and np.shape(values) != src.shape:
            raise InputError(
                f"events.{name}: has shape {np.shape(values)} for {src.size} events; give one each"
            )
    bucket = np.floor((time - time[0]) / every).astype(np.int64)
    num_snapshots = int(bucket[-1]) + 1
    starts = np.searchsorted(bucket, np.arange(num_snapshots + 1))
    pairs = np.stack((src, dst)).astype(np.int64)
    values = np.ones(src.size, np.float32) if weight is None else np.asarray(weight)
    edges, weights, classes = [], [], []
    for t in range(num_snapshots):
        begin = 0 if life is None else starts[max(0, t + 1 - life)]
        alive = slice(int(begin), int(starts[t + 1]))
        keep, counts = _merge(pairs[:, alive], num_nodes)
        edges.append(pairs[:, alive][:, keep])
        if merge == "count":
            weights.append(counts.sums(np.ones(counts.inverse.size)).astype(np.float32))
        elif merge == "sum":
            weights.append(counts.sums(values[alive]).astype(values.dtype, copy=False))
        else:
            weights.append(values[alive][keep])
        if labels is not None:
            classes.append(np.asarray(labels)[alive][keep])
    born = np.full(num_nodes, num_snapshots, np.int64)
    np.minimum.at(born, src, bucket)
    np.minimum.at(born, dst, bucket)
    active = born[None, :] <= np.arange(num_snapshots)[:, None]
    weighted = merge != "last" or weight is not None
    return SnapshotSequence.from_lists(
        edges,
        num_nodes,
        weights=weights if weighted else None,
        x=x,
        active=active,
        edge_labels=classes if labels is not None else None,
        times=float(time[0]) + every * np.arange(num_snapshots + 1, dtype=np.float64),
        info=info,
    )


class _Counts:
    def __init__(self, inverse: np.ndarray, edges: int) -> None:
        self.inverse, self.edges = inverse, edges

    def sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.inverse, weights=values, minlength=self.edges)


def _merge(pairs: np.ndarray, num_nodes: int) -> tuple[np.ndarray, _Counts]:
    """Positions of the last event of each distinct edge, by ascending edge, and the groups."""
    keys = pairs[1] * num_nodes + pairs[0]
    unique, inverse = np.unique(keys, return_inverse=True)
    last = np.zeros(unique.size, np.int64)
    last[inverse] = np.arange(keys.size)
    return last, _Counts(inverse, unique.size)
