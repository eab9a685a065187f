"""``SnapshotSequence``: an immutable sequence of graphs over one set of nodes.

Node ids are stable over the sequence. An edge ``u -> v`` of a snapshot has the key ``v * N + u``,
so that ascending keys are CSC order. A snapshot's edges are stored as a *keyframe* (all keys) or a
*delta* against the snapshot before (keys added, keys removed); a keyframe is taken wherever the
delta would not be smaller, and at least every ``KEYFRAME_EVERY`` snapshots, so that reading any
snapshot costs a bounded number of merges.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import index_dtype
from gnn_dist.kernels.sorted_keys import apply_delta, difference

KEYFRAME_EVERY = 32


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """One snapshot's edges: all keys, or the difference from the snapshot before.

    Attributes:
        keyframe: whether ``added`` holds all keys (then ``removed`` is empty).
        added: int64[a] keys, ascending.
        removed: int64[r] keys, ascending.
        num_edges: edges of the snapshot.
    """

    keyframe: bool
    added: np.ndarray
    removed: np.ndarray
    num_edges: int

    @property
    def nbytes(self) -> int:
        return self.added.nbytes + self.removed.nbytes


@dataclass(frozen=True, eq=False)
class Csc:
    """One snapshot, decoded: in-neighbours ascending.

    Attributes:
        indptr: int64[N + 1].
        indices: int32[E] (int64 where N does not fit), sources.
        weight: float[E] or None.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None

    def edge_index(self) -> np.ndarray:
        """int64[2, E], sources above destinations, as PyG has it."""
        dst = np.repeat(np.arange(self.indptr.size - 1), np.diff(self.indptr))
        return np.stack((self.indices.astype(np.int64), dst))


@dataclass(frozen=True, eq=False)
class SnapshotSequence:
    """T graphs over N nodes, with features, targets and an active mask.

    Built by ``from_lists`` or ``from_events``, which validate; this constructor does not.

    Attributes:
        num_nodes: N.
        frames: one a snapshot.
        weights: None (edges weigh 1), ``(keys int64[K], values float[K])`` where an edge weighs
            the same in every snapshot, or a list of float[E_t], a value a snapshot, in key order.
        x: float[T, N, F] features.
        y: float[T, N] or int64[T, N] or float[T, N, C] targets, or None.
        active: bool[T, N], or None where every node is there all the time. An inactive node has no
            edges, its features are zero, and it does not enter a loss.
        edge_labels: a list of int64[E_t] classes in key order, or None.
        times: float64[T + 1] borders of the snapshots in the data's unit, or None.
        info: JSON-able facts (``name``, ``task``, ...).
    """

    num_nodes: int
    frames: tuple[Frame, ...]
    weights: tuple[np.ndarray, np.ndarray] | list[np.ndarray] | None
    x: np.ndarray
    y: np.ndarray | None = None
    active: np.ndarray | None = None
    edge_labels: list[np.ndarray] | None = None
    times: np.ndarray | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_snapshots(self) -> int:
        return len(self.frames)

    @property
    def num_features(self) -> int:
        return self.x.shape[2]

    @property
    def per_snapshot_weights(self) -> bool:
        """Whether an edge's weight may differ between snapshots."""
        return isinstance(self.weights, list)

    def num_edges(self, snapshot: int) -> int:
        return self.frames[snapshot].num_edges

    def keys(self, snapshot: int) -> np.ndarray:
        """Edge keys of one snapshot, ascending: int64[E_t]."""
        start = snapshot
        while not self.frames[start].keyframe:
            start -= 1
        keys = self.frames[start].added
        for frame in self.frames[start + 1 : snapshot + 1]:
            keys = apply_delta(keys, frame.added, frame.removed)
        return keys

    def key_range(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Edge keys of snapshots ``start`` to ``stop - 1``, each decoded from the one before."""
        keys = np.empty(0, np.int64)
        for t in range(start, stop):
            frame = self.frames[t]
            if t == start:
                keys = self.keys(t)
            elif frame.keyframe:
                keys = frame.added
            else:
                keys = apply_delta(keys, frame.added, frame.removed)
            yield keys

    def weight(self, snapshot: int, keys: np.ndarray) -> np.ndarray | None:
        """Weights of the edges ``keys`` (all of one snapshot's keys): float[E_t] or None."""
        if self.weights is None:
            return None
        if isinstance(self.weights, list):
            return self.weights[snapshot]
        table, values = self.weights
        return values[np.searchsorted(table, keys)]

    def snapshot(self, snapshot: int) -> Csc:
        """One snapshot as CSC arrays."""
        keys = self.keys(snapshot)
        indptr, indices = csc_of_keys(keys, self.num_nodes)
        return Csc(indptr, indices, self.weight(snapshot, keys))

    def active_at(self, snapshot: int) -> np.ndarray:
        """Nodes that are there in a snapshot: bool[N]."""
        if self.active is None:
            return np.ones(self.num_nodes, bool)
        return self.active[snapshot]

    def nbytes(self) -> dict[str, int]:
        """Stored bytes: ``topology`` (keyframes and deltas), ``weights``, ``features``."""
        weights = 0 if self.weights is None else sum(array.nbytes for array in self.weights)
        return {
            "topology": sum(frame.nbytes for frame in self.frames),
            "weights": weights,
            "features": self.x.nbytes,
        }

    def overlap(self) -> float:
        """Mean over consecutive snapshots of |A and B| / |A or B| (0 where both are empty)."""
        shares = []
        before = np.empty(0, np.int64)
        for t, keys in enumerate(self.key_range(0, self.num_snapshots)):
            if t:
                lost = difference(before, keys).size
                union = keys.size + lost
                shares.append((before.size - lost) / union if union else 0.0)
            before = keys
        return float(np.mean(shares)) if shares else 1.0

    def __getitem__(self, span: slice) -> "SnapshotSequence":
        """The snapshots of a contiguous slice, as a sequence of its own."""
        start, stop, step = span.indices(self.num_snapshots)
        if step != 1 or stop <= start:
            raise InputError(
                f"snapshots[{span.start}:{span.stop}:{span.step}]: give a non-empty slice with "
                f"step 1 inside 0:{self.num_snapshots}"
            )
        frames = list(self.frames[start:stop])
        if not frames[0].keyframe:
            keys = self.keys(start)
            frames[0] = Frame(True, keys, np.empty(0, np.int64), keys.size)
        cut: dict[str, Any] = {
            name: None if value is None else value[start:stop]
            for name, value in (
                ("x", self.x), ("y", self.y), ("active", self.active),
                ("edge_labels", self.edge_labels),
            )
        }  # fmt: skip
        weights = self.weights[start:stop] if isinstance(self.weights, list) else self.weights
        times = None if self.times is None else self.times[start : stop + 1]
        return dataclasses.replace(self, frames=tuple(frames), weights=weights, times=times, **cut)

    @classmethod
    def from_lists(
        cls,
        edges: Sequence[np.ndarray],
        num_nodes: int,
        *,
        weights: Sequence[np.ndarray] | None = None,
        x: np.ndarray | None = None,
        y: np.ndarray | None = None,
        active: np.ndarray | None = None,
        edge_labels: Sequence[np.ndarray] | None = None,
        times: np.ndarray | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> "SnapshotSequence":
        """From a list of graphs, each int[2, E_t] with sources above destinations.

        A parallel edge counts once; its weights are summed and its last label is kept. Weights
        that are the same for every edge in every snapshot it is in are stored once an edge;
        weights that are all 1 are not stored. ``x`` defaults to ``degree_features`` of the
        snapshot. A snapshot without edges is kept. Raises ``InputError`` for a bad id, length,
        shape or value.
        """
        if num_nodes < 1 or not len(edges):
            raise InputError(
                f"snapshots: {len(edges)} graphs over {num_nodes} nodes; give at least one of each"
            )
        for name, parts in (("weights", weights), ("edge_labels", edge_labels)):
            if parts is not None and len(parts) != len(edges):
                raise InputError(
                    f"snapshots.{name}: {len(parts)} lists for {len(edges)} snapshots; give one "
                    "each"
                )
        keys, values, labels = [], [], []
        for t, pairs in enumerate(edges):
            found = _keys_of_pairs(t, np.asarray(pairs), num_nodes)
            unique, inverse = np.unique(found, return_inverse=True)
            keys.append(unique)
            if weights is not None:
                values.append(_merge_weights(t, weights[t], inverse, unique.size))
            if edge_labels is not None:
                labels.append(_last_labels(t, edge_labels[t], inverse, unique.size))
        return _assemble(
            keys,
            num_nodes,
            values if weights is not None else None,
            x,
            y,
            active,
            labels if edge_labels is not None else None,
            times,
            info,
        )

    @classmethod
    def from_keys(
        cls, keys: Sequence[np.ndarray], num_nodes: int, x: np.ndarray, **tensors: Any
    ) -> "SnapshotSequence":
        """From sorted, distinct edge keys (int64[E_t] each) of unweighted graphs.

        ``tensors`` are ``y``, ``active``, ``times`` and ``info``, as in ``from_lists``.
        """
        get = tensors.get
        return _assemble(
            list(keys), num_nodes, None, x, get("y"), get("active"), None, get("times"), get("info")
        )


def csc_of_keys(keys: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """``(indptr int64[N + 1], indices int32/int64[E])`` of ascending keys."""
    dst = keys // num_nodes
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    return indptr, (keys - dst * num_nodes).astype(index_dtype(num_nodes))


def encode(keys: Sequence[np.ndarray]) -> tuple[Frame, ...]:
    """Keyframes and deltas of sorted, distinct keys."""
    none = np.empty(0, np.int64)
    frames: list[Frame] = []
    since = 0
    for t, now in enumerate(keys):
        if t and since < KEYFRAME_EVERY - 1:
            added, removed = difference(now, keys[t - 1]), difference(keys[t - 1], now)
            if added.size + removed.size < now.size:
                frames.append(Frame(False, added, removed, now.size))
                since += 1
                continue
        frames.append(Frame(True, now, none, now.size))
        since = 0
    return tuple(frames)


def degree_features(keys: Sequence[np.ndarray], num_nodes: int) -> np.ndarray:
    """``log(1 + in-degree)`` and ``log(1 + out-degree)`` in each snapshot: float32[T, N, 2]."""
    out = np.empty((len(keys), num_nodes, 2), np.float32)
    for t, now in enumerate(keys):
        dst = now // num_nodes
        out[t, :, 0] = np.log1p(np.bincount(dst, minlength=num_nodes))
        out[t, :, 1] = np.log1p(np.bincount(now - dst * num_nodes, minlength=num_nodes))
    return out


def _keys_of_pairs(t: int, pairs: np.ndarray, num_nodes: int) -> np.ndarray:
    if pairs.size == 0:
        return np.empty(0, np.int64)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise InputError(
            f"snapshots.edges[{t}]: has shape {pairs.shape}; give int[2, E], sources above "
            "destinations"
        )
    if pairs.dtype.kind not in "iu":
        raise InputError(f"snapshots.edges[{t}]: ids must be integers, these are {pairs.dtype}")
    bad = np.flatnonzero(((pairs < 0) | (pairs >= num_nodes)).any(axis=0))
    if bad.size:
        u, v = (int(i) for i in pairs[:, bad[0]])
        raise InputError(
            f"snapshots.edges[{t}]: edge {bad[0]} is {u} -> {v}, which names an unknown node; ids "
            f"run from 0 to {num_nodes - 1}"
        )
    return pairs[1].astype(np.int64) * num_nodes + pairs[0].astype(np.int64)


def _merge_weights(t: int, weights: Any, inverse: np.ndarray, edges: int) -> np.ndarray:
    values = np.asarray(weights)
    if values.shape != inverse.shape:
        raise InputError(
            f"snapshots.weights[{t}]: shape {values.shape} for {inverse.size} edges; give one each"
        )
    values = values.astype(np.float64 if values.dtype == np.float64 else np.float32)
    if not np.isfinite(values).all():
        where = int(np.argmin(np.isfinite(values)))
        raise InputError(
            f"snapshots.weights[{t}]: entry {where} is NaN or infinity; clean the weights first"
        )
    merged = np.bincount(inverse, weights=values, minlength=edges)
    return merged.astype(values.dtype, copy=False)


def _last_labels(t: int, labels: Any, inverse: np.ndarray, edges: int) -> np.ndarray:
    given = np.asarray(labels)
    if given.shape != inverse.shape or given.dtype.kind not in "iub":
        raise InputError(
            f"snapshots.edge_labels[{t}]: {given.dtype}{list(given.shape)} for {inverse.size} "
            "edges; give one integer class each"
        )
    out = np.zeros(edges, np.int64)
    out[inverse] = given  # NumPy keeps the last of repeated positions
    return out


def _assemble(
    keys: list[np.ndarray],
    num_nodes: int,
    values: list[np.ndarray] | None,
    x: np.ndarray | None,
    y: np.ndarray | None,
    active: np.ndarray | None,
    labels: list[np.ndarray] | None,
    times: np.ndarray | None,
    info: Mapping[str, Any] | None,
) -> SnapshotSequence:
    shape = (len(keys), num_nodes)
    if active is not None:
        active = _check("active", np.asarray(active), shape)
        if active.dtype != bool:
            raise InputError(f"snapshots.active: must be booleans, these are {active.dtype}")
        for t, now in enumerate(keys):
            dst = now // num_nodes
            ends = np.concatenate((dst, now - dst * num_nodes))
            if ends.size and not active[t, ends].all():
                node = int(ends[np.argmin(active[t, ends])])
                raise InputError(
                    f"snapshots.active[{t}]: node {node} has edges in this snapshot but is not "
                    "active; mark it, or leave its edges out"
                )
        if active.all():
            active = None
    x = degree_features(keys, num_nodes) if x is None else _check("x", np.asarray(x), shape)
    if x.ndim != 3 or x.dtype.kind != "f":
        raise InputError(
            f"snapshots.x: is {x.dtype}{list(x.shape)}; give float[{shape[0]}, {shape[1]}, F]"
        )
    if active is not None:
        x = np.where(active[:, :, None], x, np.zeros((), x.dtype))
    if y is not None:
        y = _check("y", np.asarray(y), shape)
    if times is not None and len(times) != len(keys) + 1:
        raise InputError(
            f"snapshots.times: {len(times)} borders for {len(keys)} snapshots; give one more"
        )
    weights = None if values is None else _share_weights(keys, values)
    arrays = [x, y, active, times]
    for array in arrays:
        if array is not None and array.flags.owndata:
            array.flags.writeable = False
    return SnapshotSequence(
        num_nodes, encode(keys), weights, x, y, active, labels, times, dict(info or {})
    )


def _check(name: str, array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if array.ndim < 2 or array.shape[:2] != shape:
        raise InputError(
            f"snapshots.{name}: has shape {array.shape}; give {shape[0]} snapshots of {shape[1]} "
            "nodes"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        t, node = np.argwhere(~np.isfinite(array))[0][:2]
        raise InputError(
            f"snapshots.{name}: snapshot {t}, node {node} holds NaN or infinity; clean or impute "
            "the values first"
        )
    return np.array(array)


def _share_weights(
    keys: list[np.ndarray], values: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | list[np.ndarray] | None:
    all_keys, all_values = np.concatenate(keys), np.concatenate(values)
    if (all_values == 1).all():
        return None
    table, first, inverse = np.unique(all_keys, return_index=True, return_inverse=True)
    shared = all_values[first]
    return (table, shared) if (shared[inverse] == all_values).all() else values
