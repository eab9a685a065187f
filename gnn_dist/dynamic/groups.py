"""A group of snapshots, encoded so that what they share is stored and aggregated once.

An encoding is a list of segments: the edges that all of the snapshots ``first .. last - 1`` of the
group have. Three of them:

- ``blockdiag``: a segment a snapshot, nothing shared (the baseline, and the best where nothing is);
- ``flat``: one segment of the edges common to the whole group, and one a snapshot of the rest
  (PiPAD, PPoPP 2023, section 4);
- ``dyadic``: every edge is stored once for each maximal aligned block of 2^k snapshots in which it
  is present throughout, so that an edge that lives in half of the group is shared there.

Whichever is used, an edge of a snapshot lies in exactly one segment that covers the snapshot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.errors import InputError
from gnn_dist.graph import index_dtype
from gnn_dist.kernels.sorted_keys import difference, intersection

Encoding = Literal["flat", "dyadic", "blockdiag"]
ENCODINGS: tuple[Encoding, ...] = ("flat", "dyadic", "blockdiag")


@dataclass(frozen=True, eq=False)
class Segments:
    """The CSC rows of a group's segments, ready for ``kernels.grouped.aggregate_rows``.

    Attributes:
        snapshots: S, snapshots of the group.
        first, last: int64[G].
        indptr: int64[G, rows + 1] positions in ``indices``.
        indices: int32/int64[E] sources.
        weight, position: as ``aggregate_rows`` takes them.
        cols: number of source rows.
    """

    snapshots: int
    first: np.ndarray
    last: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None
    position: np.ndarray | None
    cols: int
    _transposed: list["Segments"] = field(default_factory=list, repr=False)

    @property
    def rows(self) -> int:
        return self.indptr.shape[1] - 1

    @property
    def stored_edges(self) -> int:
        """Edges stored, each shared one once."""
        return self.indices.size

    @property
    def edges(self) -> int:
        """Edges of all snapshots: what one graph at a time would aggregate."""
        return int((np.diff(self.indptr[:, [0, -1]])[:, 0] * (self.last - self.first)).sum())

    @property
    def nbytes(self) -> int:
        arrays = [self.first, self.last, self.indptr, self.indices]
        arrays += [a for a in (self.weight, self.position) if a is not None]
        return sum(a.nbytes for a in arrays)

    def destinations(self) -> np.ndarray:
        """Row of each stored edge: int64[E]."""
        counts = np.diff(self.indptr, axis=1)
        rows = np.broadcast_to(np.arange(self.rows), counts.shape)
        return np.repeat(rows.reshape(-1), counts.reshape(-1))

    def transposed(self) -> "Segments":
        """The same edges by source, each source's in order of destination; computed once."""
        if not self._transposed:
            dst = self.destinations()
            per_segment = self.indptr[:, -1] - self.indptr[:, 0]
            segment = np.repeat(np.arange(self.first.size), per_segment)
            place = segment * self.cols + self.indices
            order = np.argsort(place, kind="stable")
            counts = np.bincount(place, minlength=self.first.size * self.cols)
            bounds = np.zeros(counts.size + 1, np.int64)
            np.cumsum(counts, out=bounds[1:])
            indptr = bounds[
                np.arange(self.first.size)[:, None] * self.cols + np.arange(self.cols + 1)
            ]
            weight, position = self.weight, self.position
            if position is not None:
                position = position[order]
            elif weight is not None:
                weight = weight[order]
            self._transposed.append(
                Segments(
                    self.snapshots, self.first, self.last, indptr,
                    dst[order].astype(index_dtype(self.rows)), weight, position, self.rows,
                )
            )  # fmt: skip
        return self._transposed[0]


def shared_sets(
    keys: Sequence[np.ndarray], encoding: Encoding, first: int = 0
) -> list[tuple[int, int, np.ndarray]]:
    """``(first, last, keys)`` of every non-empty segment, in the group's own snapshot numbers.

    ``first`` is the number of the group's first snapshot in the sequence: dyadic blocks are
    aligned to the sequence, not to the group.
    """
    if encoding == "blockdiag":
        sets = [(s, s + 1, now) for s, now in enumerate(keys)]
    elif encoding == "flat":
        common = keys[0]
        for now in keys[1:]:
            common = intersection(common, now)
        sets = [(0, len(keys), common)] if len(keys) > 1 else []
        rest = [difference(now, common) for now in keys] if len(keys) > 1 else keys
        sets += [(s, s + 1, now) for s, now in enumerate(rest)]
    elif encoding == "dyadic":
        sets = _dyadic(keys, first)
    else:
        raise InputError(f"encoding: is {encoding!r}; use one of {', '.join(ENCODINGS)}")
    return [entry for entry in sets if entry[2].size]


def _dyadic(keys: Sequence[np.ndarray], first: int) -> list[tuple[int, int, np.ndarray]]:
    levels = [{(first + s): now for s, now in enumerate(keys)}]
    while True:
        below, size = levels[-1], 1 << (len(levels) - 1)
        above = {}
        for start, now in below.items():
            if start % (2 * size) == 0 and start + size in below:
                both = intersection(now, below[start + size])
                if both.size:
                    above[start] = both
        if not above:
            break
        levels.append(above)
    sets = []
    for level, blocks in enumerate(levels):
        size = 1 << level
        for start, now in blocks.items():
            parent = start - start % (2 * size)
            if level + 1 < len(levels) and parent in levels[level + 1]:
                now = difference(now, levels[level + 1][parent])
            sets.append((start - first, start - first + size, now))
    return sets[::-1]


def encode_group(
    sequence: SnapshotSequence, snapshots: Sequence[int], encoding: Encoding = "flat"
) -> Segments:
    """The given snapshots (ascending numbers, usually consecutive) as segments over all nodes."""
    keys = keys_of(sequence, snapshots)
    first = snapshots[0] if snapshots[-1] - snapshots[0] == len(snapshots) - 1 else 0
    return segments_of_sets(sequence, snapshots, keys, shared_sets(keys, encoding, first))


def keys_of(sequence: SnapshotSequence, snapshots: Sequence[int]) -> list[np.ndarray]:
    """Edge keys of each of the snapshots; runs are decoded one from the other."""
    out: list[np.ndarray] = []
    start = 0
    for i in range(1, len(snapshots) + 1):
        if i == len(snapshots) or snapshots[i] != snapshots[i - 1] + 1:
            out += sequence.key_range(snapshots[start], snapshots[i - 1] + 1)
            start = i
    return out


def segments_of_sets(
    sequence: SnapshotSequence,
    snapshots: Sequence[int],
    keys: Sequence[np.ndarray],
    sets: Sequence[tuple[int, int, np.ndarray]],
) -> Segments:
    """``Segments`` of edge sets as ``shared_sets`` returns them."""
    num_nodes = sequence.num_nodes
    indptr = np.zeros((len(sets), num_nodes + 1), np.int64)
    parts, weights, positions = [], [], []
    edges = values = 0
    for g, (a, b, now) in enumerate(sets):
        dst = now // num_nodes
        np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[g, 1:])
        indptr[g] += edges
        parts.append((now - dst * num_nodes).astype(index_dtype(num_nodes)))
        edges += now.size
        if sequence.per_snapshot_weights:
            columns = [
                sequence.weights[snapshots[s]][np.searchsorted(keys[s], now)]  # type: ignore[index]
                for s in range(a, b)
            ]
            weights.append(np.stack(columns, axis=1).reshape(-1))
            positions.append(values + np.arange(now.size) * (b - a))
            values += now.size * (b - a)
        elif sequence.weights is not None:
            shared = sequence.weight(snapshots[a], now)
            assert shared is not None
            weights.append(shared)
    none = np.empty(0, index_dtype(num_nodes))
    dtype = sequence.weights[1].dtype if sequence.weights is not None else np.float32
    return Segments(
        len(keys),
        np.array([a for a, _, _ in sets], np.int64),
        np.array([b for _, b, _ in sets], np.int64),
        indptr,
        np.concatenate(parts) if parts else none,
        None
        if sequence.weights is None
        else np.concatenate([*weights, np.empty(0, dtype)]).astype(dtype, copy=False),
        np.concatenate([*positions, np.empty(0, np.int64)]).astype(np.int64)
        if sequence.per_snapshot_weights
        else None,
        num_nodes,
    )
