"""What each policy would move and aggregate, counted before anything is computed.

Counts come from the snapshots' edge sets and the model's declaration of what it aggregates, not
from running it; ``Plan.rows`` is what ``Counts.rows_sent`` of all ranks adds up to.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnn_dist.dynamic.groups import ENCODINGS, Encoding, encode_group, keys_of, shared_sets
from gnn_dist.dynamic.normalise import factors
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.dynamic.windows import WindowBatch
from gnn_dist.nn.recurrent.aggregate import aggregate_group
from gnn_dist.strategies.snapshot import (
    POLICIES,
    Options,
    Policy,
    deal_nodes,
    deal_snapshots,
    deal_windows,
)
from gnn_dist.strategies.snapshot_scope import split_groups


@dataclass(frozen=True)
class Plan:
    """What one policy does in training.

    Attributes:
        policy: which.
        possible: whether it can run this model on this many ranks; else the counts are 0.
        rows_once: rows sent between ranks in the first epoch only (what is kept afterwards).
        rows: rows sent in every epoch besides, forward and backward, all ranks.
        edges_once, edges: edges aggregated, likewise, forward and backward, on the rank that
            aggregates most.
        stored_edges: edges of the encoded groups of an epoch, shared ones once, on the rank that
            has most (without those cut out of them for ``vertices``).
        memory: bytes of activations, kept rows and topology at the largest step, largest rank.
    """

    policy: Policy
    possible: bool
    rows_once: int = 0
    rows: int = 0
    edges_once: int = 0
    edges: int = 0
    stored_edges: int = 0
    memory: int = 0

    def cost(self, width: int) -> float:
        """Floats touched by aggregation in an epoch, and those sent at ``SEND_COST`` times that."""
        return width * (self.edges + SEND_COST * self.rows)

    def row(self) -> dict[str, Any]:
        """For a table."""
        if not self.possible:
            return {"policy": self.policy, **dict.fromkeys(COLUMNS, "-")}
        return {
            "policy": self.policy,
            "rows sent (first epoch)": self.rows_once + self.rows,
            "rows sent (epoch)": self.rows,
            "edges (first epoch)": self.edges_once + self.edges,
            "edges (epoch)": self.edges,
            "edges stored": self.stored_edges,
            "memory (MB)": round(self.memory / 1e6, 1),
        }


COLUMNS = (
    "rows sent (first epoch)", "rows sent (epoch)", "edges (first epoch)", "edges (epoch)",
    "edges stored", "memory (MB)",
)  # fmt: skip

SEND_COST = 8.0
"""One row sent costs as much as so many rows added: loopback gloo moves about 1 GB/s and an
aggregation in cache reads about 8 GB/s a core."""


def plan(
    sequence: SnapshotSequence,
    model: Any,
    batches: Sequence[WindowBatch],
    options: Options,
    ranks: int,
    owner: np.ndarray | None = None,
    pairs: Callable[[WindowBatch], list[np.ndarray] | None] | None = None,
) -> Plan:
    """Count what ``options.policy`` does with these steps on so many ranks.

    Args:
        model: a ``DynamicModel``.
        batches: the steps of an epoch.
        owner: int[N] rank of each node, as the strategy is given.
        pairs: the node pairs of each window that the task scores (``SnapshotStrategy.pairs``);
            rows of their second nodes are fetched where nodes are dealt to ranks.
    """
    policy = options.policy
    single = policy in ("sequential", "grouped")
    if (single and ranks > 1) or (policy == "snapshots" and model.temporal == "graph"):
        return Plan(policy, False)
    owner = deal_nodes(sequence.num_nodes, ranks) if owner is None else owner
    group = 1 if policy == "sequential" else options.group
    end = sequence.num_snapshots
    touched = sorted({t for b in batches for t in b.snapshots})
    whole = _whole(touched, group, end)
    halo = {t: _halo_rows(sequence, t, owner) for t in whole} if policy == "vertices" else {}
    rows_once = rows = 0
    keeps = policy != "sequential" and options.cache_bytes > 0
    again = 2 if options.checkpoint and model.spatial_calls() else 1  # forward passes
    dealer = deal_snapshots(sequence, ranks)
    edges = np.zeros(ranks)
    edges_once = np.zeros(ranks)
    split = _edges_by_owner(sequence, whole, owner, ranks) if policy == "vertices" else None
    encoded: list[set[tuple[int, ...]]] = [set() for _ in range(ranks)]

    def aggregated(t: int, rank: int) -> np.ndarray:
        """Edges of one aggregation of a snapshot, by rank; ``rank`` is asked where one does it."""
        if split is not None:
            return split[t]
        share = np.zeros(ranks)
        share[dealer[t] if policy == "snapshots" else rank] = sequence.num_edges(t)
        return share

    def encode(times: Sequence[int], rank: int, block: int = 0) -> None:
        """Note the groups that an aggregation of these snapshots encodes."""
        for r in (rank,) if policy == "windows" else range(ranks):
            mine = [t for t in times if policy != "snapshots" or dealer[t] == r]
            for i in range(0, len(mine), block or max(len(mine), 1)):
                part = mine[i : i + (block or len(mine))]
                for first, last in split_groups(part, group):
                    encoded[r].add(tuple(part[first:last]))

    def shares_of(batch: WindowBatch) -> list[WindowBatch]:
        if policy == "windows":
            return [batch.only(p) for p in deal_windows(len(batch.starts), ranks)]
        if policy == "sequential":
            return [batch.only([b]) for b in range(len(batch.starts))]
        return [batch]

    apart = policy == "snapshots" and (model.spatial_calls() > 0 or model.temporal == "weights")

    def completed(times: Sequence[int]) -> list[int]:
        """Snapshots of the groups that some are in; a rank that computes its own snapshots apart
        completes the groups of those."""
        if not apart:
            return _whole(times, group, end)
        found: list[int] = []
        for r in range(ranks):
            own = _whole([t for t in times if dealer[t] == r], group, end)
            found += [t for t in own if dealer[t] == r]
        return sorted(found)

    if keeps:
        for rank in range(ranks if policy == "windows" else 1):
            mine = completed(sorted({t for b in batches for t in shares_of(b)[rank].snapshots}))
            if model.prepare_calls():
                encode(mine, rank)
            for t in mine:
                edges_once += model.prepare_calls() * aggregated(t, rank)
                rows_once += model.prepare_calls() * halo.get(t, 0)
    if policy == "snapshots" and model.temporal == "nodes" and model.spatial_calls() == 0 and keeps:
        rows_once += sum(_relaid(sequence, t, owner, dealer[t]) for t in whole)
    passes = again * model.spatial_calls()
    calls = model.recur_calls()
    for batch in batches:
        for rank, part in enumerate(shares_of(batch)):
            if not part.starts:
                continue
            where = rank if policy == "windows" else 0
            times = part.snapshots
            if passes:
                encode(times, where, options.checkpoint)
            for t in times:
                edges += (passes + model.spatial_calls()) * aggregated(t, where)
                rows += (passes + model.spatial_calls()) * halo.get(t, 0)
            if not keeps and model.prepare_calls():
                prepare = times if policy == "sequential" else completed(times)
                encode(prepare, where)
                for t in prepare:
                    edges += model.prepare_calls() * aggregated(t, where)
                    rows += model.prepare_calls() * halo.get(t, 0)
            for step in range(1, part.length) if calls else ():
                encode([start + step for start in part.starts], where)
                for start in part.starts:
                    edges += 2 * calls * aggregated(start + step, where)
                    rows += 2 * calls * halo.get(start + step, 0)
        if policy == "snapshots" and model.temporal == "nodes":
            if model.spatial_calls():
                passed = sum(_relaid(sequence, t, owner, dealer[t]) for t in batch.snapshots)
                rows += 2 * passed
            elif not keeps:
                every = _whole(batch.snapshots, group, end)
                rows += sum(_relaid(sequence, t, owner, dealer[t]) for t in every)
        if policy == "snapshots" and model.temporal == "weights" and _summarised(model):
            rows += 2 * (ranks - 1) * model.in_features * len(batch.snapshots)
        if policy == "vertices" and model.temporal == "weights" and _summarised(model):
            offered = np.minimum(np.bincount(owner, minlength=ranks), model.in_features).sum()
            rows += int(2 * (ranks - 1) * offered * len(batch.snapshots))
        dealt = policy == "vertices" or (policy == "snapshots" and model.temporal == "nodes")
        scored = pairs(batch) if pairs is not None and dealt else None
        if scored is not None:
            rows += 2 * _foreign_ends(scored, owner)
    return Plan(
        policy,
        True,
        int(rows_once),
        int(rows),
        int((edges_once + edges).max() - edges.max()),
        int(edges.max()),
        _stored_edges(sequence, encoded, options),
        _memory(sequence, model, batches, options, ranks),
    )


def _whole(times: Sequence[int], group: int, end: int) -> list[int]:
    numbers = sorted({t // group for t in times})
    return [t for g in numbers for t in range(g * group, min(end, (g + 1) * group))]


def _ends(sequence: SnapshotSequence, t: int) -> tuple[np.ndarray, np.ndarray]:
    keys = sequence.keys(t)
    dst = keys // sequence.num_nodes
    return keys - dst * sequence.num_nodes, dst


def _halo_rows(sequence: SnapshotSequence, t: int, owner: np.ndarray) -> int:
    """Distinct (source, rank) with an edge into another rank's node, in one snapshot."""
    src, dst = _ends(sequence, t)
    foreign = owner[src] != owner[dst]
    return np.unique(src[foreign] * (owner.max() + 1) + owner[dst[foreign]]).size


def _edges_by_owner(
    sequence: SnapshotSequence, times: Iterable[int], owner: np.ndarray, ranks: int
) -> dict[int, np.ndarray]:
    return {
        t: np.bincount(owner[_ends(sequence, t)[1]], minlength=ranks).astype(float) for t in times
    }


def _relaid(sequence: SnapshotSequence, t: int, owner: np.ndarray, computes: int) -> int:
    """Active rows of a snapshot whose owner is not the rank that computes it."""
    return int((owner[sequence.active_at(t)] != computes).sum())


def _foreign_ends(pairs: Sequence[np.ndarray], owner: np.ndarray) -> int:
    """Distinct (second node, window, rank of the first node) on different ranks."""
    total = 0
    for ends in pairs:
        foreign = owner[ends[0]] != owner[ends[1]]
        total += np.unique(ends[1][foreign] * (owner.max() + 1) + owner[ends[0][foreign]]).size
    return total


def _summarised(model: Any) -> bool:
    return getattr(model, "variant", None) == "H" or getattr(model, "summarises", False)


def _stored_edges(
    sequence: SnapshotSequence, encoded: Sequence[set[tuple[int, ...]]], options: Options
) -> int:
    """Edges of the groups that the rank with most of them encodes."""
    encoding = "blockdiag" if options.policy == "sequential" else options.encoding
    sizes: dict[tuple[int, ...], int] = {}
    for chosen in set().union(*encoded):
        straight = chosen[-1] - chosen[0] == len(chosen) - 1
        sets = shared_sets(keys_of(sequence, chosen), encoding, chosen[0] if straight else 0)
        sizes[chosen] = sum(keys.size for _, _, keys in sets)
    return max(sum(sizes[chosen] for chosen in mine) for mine in encoded)


def _memory(
    sequence: SnapshotSequence,
    model: Any,
    batches: Sequence[WindowBatch],
    options: Options,
    ranks: int,
) -> int:
    """Estimate: kept rows, the step's spatial rows and their gradients, recurrent states."""
    item = next(model.parameters()).element_size()
    nodes = sequence.num_nodes
    own = -(-nodes // ranks) if options.policy in ("vertices", "snapshots") else nodes
    hidden = getattr(model, "hidden", model.out_features)
    most = 0
    for batch in batches:
        windows, snapshots = len(batch.starts), len(batch.snapshots)
        if options.policy == "windows":
            windows = -(-windows // ranks)
            snapshots = min(snapshots, windows + batch.length - 1)
        if options.policy == "sequential":
            windows, snapshots = 1, batch.length
        gates = 4 if hasattr(model, "lstm") else 3
        layers = 2 if hasattr(model, "lstm") else 1
        rows = 2 * own * snapshots * (model.spatial_width() + gates * hidden)
        steps = 1 if options.checkpoint else batch.length
        states = own * windows * steps * layers * (gates + 2) * hidden
        most = max(most, rows + states)
    kept = own * sequence.num_snapshots * model.spatial_width() if options.cache_bytes else 0
    return int(item * (most + kept) + sequence.nbytes()["topology"])


def table(
    sequence: SnapshotSequence,
    model: Any,
    batches: Sequence[WindowBatch],
    options: Options,
    ranks: int,
    owner: np.ndarray | None = None,
    pairs: Callable[[WindowBatch], list[np.ndarray] | None] | None = None,
) -> list[Plan]:
    """Every policy's plan, impossible ones included."""
    each = [dataclasses.replace(options, policy=policy) for policy in POLICIES]
    return [plan(sequence, model, batches, o, ranks, owner, pairs) for o in each]


def choose(plans: Sequence[Plan], width: int) -> Policy:
    """The possible policy of lowest cost; ``sequential`` only where nothing else can run."""
    possible = [p for p in plans if p.possible and p.policy != "sequential"]
    if not possible:
        return "sequential"
    return min(possible, key=lambda p: p.cost(width)).policy


def choose_group(
    sequence: SnapshotSequence,
    width: int,
    *,
    sizes: Sequence[int] = (1, 4, 8, 16),
    encodings: Sequence[Encoding] = ENCODINGS,
    dtype: torch.dtype = torch.float32,
    repeats: int = 3,
    sample: int = 16,
) -> tuple[int, Encoding, list[dict[str, Any]]]:
    """Group size and encoding by measurement: an aggregation forward and back on a sample.

    A group of one snapshot is ``blockdiag``, whatever the encoding. A larger group must win by
    more than 5% to be chosen, so that snapshots that do not overlap are not grouped. Returns the
    choice and the measurements, seconds and stored edges a snapshot.
    """
    number = min(sample, sequence.num_snapshots)
    start = (sequence.num_snapshots - number) // 2
    scalar = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    part = sequence[start : start + number]
    f = factors(part, "gcn", scalar)
    candidates: set[tuple[int, Encoding]] = {(1, "blockdiag")}
    candidates |= {
        (size, encoding) for size in sizes if 1 < size <= number for encoding in encodings
    }
    runs: dict[tuple[int, Encoding], list[Any]] = {}
    for size, encoding in sorted(candidates):
        groups = []
        for first in range(0, number, size):
            span = range(first, min(number, first + size))
            segments = encode_group(part, span, encoding)
            if segments.weight is not None:
                object.__setattr__(segments, "weight", segments.weight.astype(scalar))
            x = torch.zeros(part.num_nodes, len(span), width, dtype=dtype, requires_grad=True)
            groups.append((x, segments, f.columns(slice(first, span.stop))))
        runs[size, encoding] = groups
    best: dict[tuple[int, Encoding], float] = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats + 1):  # the first round compiles and transposes
        for key, groups in runs.items():
            begin = time.perf_counter()
            for x, segments, diagonals in groups:
                aggregate_group(x, segments, diagonals).sum().backward()
            best[key] = min(best[key], time.perf_counter() - begin)
    rows = [
        {
            "size": size,
            "encoding": encoding,
            "seconds": best[size, encoding] / number,
            "stored_edges": sum(s.stored_edges for _, s, _ in groups) / number,
        }
        for (size, encoding), groups in runs.items()
    ]
    chosen = min(best, key=lambda k: best[k])
    if best[chosen] > 0.95 * best[1, "blockdiag"]:
        chosen = (1, "blockdiag")
    return *chosen, rows
