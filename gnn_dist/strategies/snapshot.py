"""Strategy ``snapshot``: the windows of a dynamic graph, one optimiser step at a time.

A step takes B windows. Every policy gives the loss and gradients of ``sequential``, to
reassociation of sums:

- ``sequential``: window by window, snapshot by snapshot; nothing is shared (the reference).
- ``grouped``: every snapshot of the step once for all windows that contain it, groups of snapshots
  aggregated together, aggregations without parameters kept across steps and epochs.
- ``windows``: windows dealt to ranks, each ``grouped`` (what is called accumulation over P windows:
  a step's windows are the same whatever P).
- ``snapshots``: snapshots dealt to ranks by edges; rows of active nodes change from a layout by
  snapshot to one by node before the recurrence, and gradients back (Chakaravarthy et al., SC 2021).
- ``vertices``: nodes dealt to ranks by a partition; rows of neighbours are exchanged.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from gnn_dist.cluster.exchange import Exchange, LocalExchange
from gnn_dist.dynamic.groups import Encoding
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.dynamic.windows import WindowBatch, segments
from gnn_dist.errors import InputError
from gnn_dist.nn.recurrent.protocol import State, check_model
from gnn_dist.strategies.snapshot_scope import (
    Counts,
    Draws,
    Groups,
    LocalScope,
    VertexScope,
    gather_rows,
    shuffle,
)
from gnn_dist.strategies.snapshot_tasks import Embeddings

Policy = Literal["sequential", "grouped", "windows", "snapshots", "vertices"]
POLICIES: tuple[Policy, ...] = ("sequential", "grouped", "windows", "snapshots", "vertices")


@dataclass(frozen=True)
class Options:
    """How a step is computed; none of it changes what is computed.

    Attributes:
        policy: see the module.
        group: snapshots a group at most.
        encoding: of a group.
        cache_bytes: bytes of aggregations without parameters that are kept (0: none).
        group_bytes: bytes of encoded groups that are kept.
        checkpoint: 0 keeps everything for the backward pass; otherwise the spatial part is computed
            again in blocks of so many snapshots, and the recurrence keeps no states.
        prefetch: encode the next step's groups on a thread.
    """

    policy: Policy = "grouped"
    group: int = 8
    encoding: Encoding = "flat"
    cache_bytes: int = 1 << 30
    group_bytes: int = 1 << 30
    checkpoint: int = 0
    prefetch: bool = True

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"policy: is {self.policy!r}; use one of {', '.join(POLICIES)}")
        if self.group < 1 or self.checkpoint < 0:
            raise InputError(
                f"group {self.group}, checkpoint {self.checkpoint}; a group has at least 1 "
                "snapshot, a block of checkpointing at least 0"
            )


def deal_snapshots(sequence: SnapshotSequence, ranks: int) -> np.ndarray:
    """The rank of each snapshot, in time order to the rank with the fewest edges: int64[T]."""
    load = np.zeros(ranks)
    owner = np.zeros(sequence.num_snapshots, np.int64)
    for t in range(sequence.num_snapshots):
        owner[t] = int(np.argmin(load))
        load[owner[t]] += sequence.num_edges(t) + 1
    return owner


def deal_nodes(num_nodes: int, ranks: int) -> np.ndarray:
    """Equal ranges of nodes: int64[N]."""
    return np.arange(num_nodes) * ranks // num_nodes


def deal_windows(number: int, ranks: int) -> list[tuple[int, ...]]:
    """Runs of windows that stand side by side, as even as can be, by rank."""
    borders = [number * r // ranks for r in range(ranks + 1)]
    return [tuple(range(a, b)) for a, b in itertools.pairwise(borders)]


class _Kept:
    """Rows of aggregations without parameters: float[rows, T, A], filled as they are needed."""

    def __init__(self, snapshots: int, max_bytes: int) -> None:
        self.done = np.zeros(snapshots, bool)
        self.max_bytes = max_bytes
        self.rows: Tensor | None = None

    def admits(self, rows: Tensor) -> bool:
        size = rows.shape[0] * self.done.size * rows.shape[2] * rows.element_size()
        return size <= self.max_bytes

    def store(self, snapshots: Sequence[int], rows: Tensor) -> None:
        if self.rows is None:
            self.rows = rows.new_empty((rows.shape[0], self.done.size, rows.shape[2]))
        self.rows[:, list(snapshots)] = rows
        self.done[list(snapshots)] = True

    def read(self, snapshots: Sequence[int]) -> Tensor:
        assert self.rows is not None
        first, last = snapshots[0], snapshots[-1]
        if last - first == len(snapshots) - 1:
            return self.rows[:, first : last + 1].contiguous()
        return self.rows[:, list(snapshots)]


class SnapshotStrategy:
    """Computes steps of a dynamic model over a sequence.

    Args:
        sequence: the snapshots; every rank has all of them.
        model: an ``nn.Module`` that is a ``DynamicModel``, the same on every rank.
        task: an ``nn.Module`` that is a ``Task``.
        options: how.
        exchange: between the ranks.
        owner: the rank of each node, for ``vertices``; equal ranges where left out.
        seed: of dropout and negatives.
        device: where the model is.
    """

    def __init__(
        self,
        sequence: SnapshotSequence,
        model: nn.Module,
        task: nn.Module,
        options: Options | None = None,
        exchange: Exchange | None = None,
        owner: np.ndarray | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        check_model(model)
        self.sequence, self.options = sequence, options or Options()
        self.model: Any = model  # a Module that is a DynamicModel
        self.task: Any = task
        self.exchange = exchange or LocalExchange()
        self.seed, self.device = seed, torch.device(device)
        self.counts = Counts()
        policy, size = self.options.policy, self.exchange.size
        if policy in ("sequential", "grouped") and size > 1:
            raise InputError(
                f"policy: {policy!r} runs on one rank, there are {size}; use windows, snapshots or "
                "vertices"
            )
        if policy == "snapshots" and model.temporal == "graph":
            raise InputError(
                f"policy: 'snapshots' cannot run {type(model).__name__}, whose recurrence reads "
                "neighbours at every step; use vertices or windows"
            )
        if owner is not None and (owner.shape != (sequence.num_nodes,) or owner.max() >= size):
            raise InputError(
                f"owner: shape {owner.shape}, largest {owner.max()}; give one rank below {size} "
                f"for each of {sequence.num_nodes} nodes"
            )
        self.owner = deal_nodes(sequence.num_nodes, size) if owner is None else owner
        self.dealer = deal_snapshots(sequence, size)
        self.dtype = next(model.parameters()).dtype
        group = 1 if policy == "sequential" else self.options.group
        self.groups = Groups(
            sequence, group, self.options.encoding, self.dtype, self.options.group_bytes,
            self.device,
        )  # fmt: skip
        keep = 0 if policy == "sequential" else self.options.cache_bytes
        self.kept = _Kept(sequence.num_snapshots, keep)
        self.own_nodes = np.flatnonzero(self.owner == self.exchange.rank)
        self._x: Tensor | None = None

    # -- features -----------------------------------------------------------------------------

    def _features(self, snapshots: Sequence[int], nodes: np.ndarray | None) -> Tensor:
        """float[rows, S, F] of some snapshots."""
        x = self.sequence.x[list(snapshots)]
        if nodes is not None:
            x = x[:, nodes]
        rows = torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))
        return rows.to(self.device, self.dtype)

    def _whole_groups(self, snapshots: Sequence[int], mine: bool) -> tuple[int, ...]:
        """All snapshots (of this rank, where ``mine``) of the groups that these are in.

        What is aggregated together decides the order of sums, so it must not depend on which of a
        group's snapshots a step happens to need.
        """
        size, end = self.groups.size, self.sequence.num_snapshots
        numbers = sorted({t // size for t in snapshots})
        every = [t for g in numbers for t in range(g * size, min(end, (g + 1) * size))]
        if mine:
            every = [t for t in every if self.dealer[t] == self.exchange.rank]
        return tuple(every)

    def _keep(self, snapshots: tuple[int, ...], mine: bool, compute: Any) -> Tensor:
        """``compute`` (without parameters) of some snapshots; kept across steps and epochs."""
        missing = [t for t in snapshots if not self.kept.done[t]]
        if missing:
            whole = self._whole_groups(missing, mine)
            with torch.no_grad():
                rows = compute(whole)
            if not self.kept.admits(rows):
                columns = np.searchsorted(np.array(whole), np.array(snapshots))
                return rows[:, torch.from_numpy(columns).to(rows.device)]
            self.kept.store(whole, rows)
        return self.kept.read(snapshots)

    def _prepared(self, snapshots: tuple[int, ...], scope: LocalScope) -> Tensor:
        """``model.prepare`` of some snapshots."""
        nodes = scope.ids if isinstance(scope, VertexScope) else None

        def compute(whole: tuple[int, ...]) -> Tensor:
            return self.model.prepare(self._features(whole, nodes), whole, scope)

        return self._keep(snapshots, self.options.policy == "snapshots", compute)

    def _spatial(self, snapshots: tuple[int, ...], scope: LocalScope) -> Tensor:
        """Everything window-independent before ``project``: float[rows, S, D]."""
        prepared = self._prepared(snapshots, scope)
        block = self.options.checkpoint
        if not block or self.model.spatial_calls() == 0 or not torch.is_grad_enabled():
            return self.model.spatial(prepared, snapshots, scope)
        parts = []
        for i in range(0, len(snapshots), block):
            part = prepared[:, i : i + block]
            now = snapshots[i : i + block]
            parts.append(recompute(self.model.spatial, part, now, scope, use_reentrant=False))
        return torch.cat(parts, dim=1)

    # -- policies -----------------------------------------------------------------------------

    def embed(self, batch: WindowBatch, draws: Draws, state: State | None = None) -> Embeddings:
        """Output rows after the last step of every window, as far as this rank holds them."""
        out, _, windows, ids, owner = self._compute(batch, draws, state, every=False)
        return Embeddings(out[-1], windows, ids, owner, self.exchange, self.counts)

    def _compute(
        self, batch: WindowBatch, draws: Draws, state: State | None, every: bool
    ) -> tuple[Tensor, State | None, tuple[int, ...], np.ndarray, np.ndarray | None]:
        policy = self.options.policy
        everything = np.arange(self.sequence.num_nodes)
        whole = tuple(range(len(batch.starts)))
        again = bool(self.options.checkpoint)
        if policy == "vertices":
            scope = VertexScope(self.groups, draws, self.counts, self.owner, self.exchange)
            projected = self.model.project(self._spatial(batch.snapshots, scope))
            out, state = self.model.recur(
                projected, batch.slots, batch.snapshots, scope, state, every=every,
                checkpoint=again,
            )  # fmt: skip
            return out, state, whole, scope.ids, self.owner
        local = LocalScope(self.groups, draws, self.counts)
        if policy == "snapshots":
            if self.model.temporal == "weights":
                return self._deal_weights(batch, local, state, every)
            rows = self._by_node(batch.snapshots, local)
            own = LocalScope(self.groups, draws, self.counts)
            own.ids, own.rows = self.own_nodes, self.own_nodes.size
            out, state = self.model.recur(
                self.model.project(rows), batch.slots, batch.snapshots, own, state, every=every,
                checkpoint=again,
            )  # fmt: skip
            return out, state, whole, self.own_nodes, self.owner
        if policy == "windows":
            whole = deal_windows(len(batch.starts), self.exchange.size)[self.exchange.rank]
            if not whole:
                empty = sum(p.sum() * 0 for p in self.model.parameters())
                shape = (1, self.sequence.num_nodes, 0, self.model.out_features)
                return empty * self._zeros(shape), None, (), everything, None
            batch = batch.only(whole)
            local.draws = Draws(
                draws.seed, draws.epoch, draws.step, batch.starts, batch.length, draws.training
            )
        if policy == "sequential":
            each = [self.model.project(self._spatial((t,), local)) for t in batch.snapshots]
            projected = torch.cat(each, dim=1)
        else:
            projected = self.model.project(self._spatial(batch.snapshots, local))
        out, state = self.model.recur(
            projected, batch.slots, batch.snapshots, local, state, every=every, checkpoint=again
        )
        return out, state, whole, everything, None

    def _by_node(self, snapshots: tuple[int, ...], scope: LocalScope) -> Tensor:
        """Spatial rows of this rank's nodes in all snapshots, computed by the snapshots' ranks."""
        if self.model.spatial_calls():
            return self._exchange_rows(snapshots, scope, self._spatial)

        def compute(whole: tuple[int, ...]) -> Tensor:
            return self._exchange_rows(whole, scope, self._prepare_only)

        return self.model.spatial(self._keep(snapshots, False, compute), snapshots, scope)

    def _prepare_only(self, snapshots: tuple[int, ...], scope: LocalScope) -> Tensor:
        return self.model.prepare(self._features(snapshots, None), snapshots, scope)

    def _exchange_rows(self, snapshots: tuple[int, ...], scope: LocalScope, compute: Any) -> Tensor:
        rank, size = self.exchange.rank, self.exchange.size
        dealt = self.dealer[list(snapshots)]
        mine = tuple(t for t, d in zip(snapshots, dealt, strict=True) if d == rank)
        if mine:
            rows = compute(mine, scope)
            flat = rows.reshape(-1, rows.shape[2])
            width = rows.shape[2]
        else:
            width = self._width(compute)
            flat = self._zeros((0, width)).requires_grad_(torch.is_grad_enabled())
        send, receive = [], []
        position = np.full(self.sequence.num_nodes, -1, np.int64)
        position[self.own_nodes] = np.arange(self.own_nodes.size)
        for other in range(size):
            theirs = np.flatnonzero(self.owner == other)
            send.append(self._flat_positions(theirs, theirs, mine, range(len(mine)), len(mine)))
            columns = np.flatnonzero(dealt == other)
            times = [snapshots[c] for c in columns]
            local = position[self.own_nodes]
            receive.append(
                self._flat_positions(self.own_nodes, local, times, columns, len(snapshots))
            )
        size_out = self.own_nodes.size * len(snapshots)
        out = shuffle(flat, self.exchange, send, receive, size_out, self.counts)
        return out.view(self.own_nodes.size, len(snapshots), width)

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _width(self, compute: Any) -> int:
        if compute == self._spatial:
            return self.model.spatial_width()
        scope = _NoNeighbours()
        x = self._zeros((1, 1, self.sequence.num_features))
        return self.model.prepare(x, (0,), scope).shape[2]

    def _flat_positions(
        self, nodes: np.ndarray, rows: np.ndarray, times: Sequence[int], columns: Any, total: int
    ) -> Tensor:
        """``row · total + column`` for the active ``nodes`` of each time, time by time."""
        found = [np.empty(0, np.int64)]
        for t, column in zip(times, columns, strict=True):
            active = self.sequence.active_at(t)[nodes]
            found.append(rows[active] * total + column)
        return torch.from_numpy(np.concatenate(found))

    def _deal_weights(
        self, batch: WindowBatch, scope: LocalScope, state: State | None, every: bool
    ) -> tuple[Tensor, State | None, tuple[int, ...], np.ndarray, None]:
        """EvolveGCN and its like: a window's output is computed where its last snapshot is."""
        if every:
            raise InputError(
                "policy: 'snapshots' with a recurrence over weights gives outputs of last "
                "snapshots only; use windows or vertices for outputs after every step"
            )
        rank = self.exchange.rank
        snapshots, slots = batch.snapshots, batch.slots
        dealt = self.dealer[list(snapshots)]
        own = np.flatnonzero(dealt == rank)
        mine = tuple(snapshots[i] for i in own)
        if mine:
            projected = self.model.project(self._spatial(mine, scope))
        else:
            width = self.model.spatial_width()
            projected = self._zeros((scope.rows, 0, width))
        summary = self.model.summary(projected, mine, scope) if mine else None
        if self.model.summary(projected[:, :0], (), scope) is not None:
            inner = self.model.in_features
            if summary is None:
                summary = self._zeros((0, inner, inner)).requires_grad_()
            whole = gather_rows(summary, self.exchange, self.counts)
            order = np.argsort(np.concatenate([np.flatnonzero(dealt == r) for r in
                                               range(self.exchange.size)]))  # fmt: skip
            summary = whole[torch.from_numpy(order).to(whole.device)]
        weights, state = self.model.evolve(summary, slots, state, False)
        windows = tuple(int(b) for b in np.flatnonzero(dealt[slots[-1]] == rank))
        place = np.full(len(snapshots), -1)
        place[own] = np.arange(own.size)
        weight = weights[-1]
        if weight.shape[0] > 1:
            weight = weight[list(windows)]
        out = self.model.apply_weights(projected, place[slots[-1][list(windows)]], weight)
        if not windows:  # keep the collective of the gradient on every rank
            out = out + weights[-1].sum() * 0
        if summary is not None:
            out = out + summary.sum() * 0
        return out[None], state, windows, np.arange(self.sequence.num_nodes), None

    # -- steps --------------------------------------------------------------------------------

    def draws(self, batch: WindowBatch, training: bool = True) -> Draws:
        """The keys of a step's random choices."""
        return Draws(self.seed, batch.epoch, batch.index, batch.starts, batch.length, training)

    def modules(self) -> Iterator[nn.Module]:
        yield self.model
        yield self.task

    def parameters(self) -> list[nn.Parameter]:
        """Of model and task, in a fixed order."""
        return [p for module in self.modules() for p in module.parameters()]

    def accumulate(self, batch: WindowBatch) -> float:
        """Add the gradient of the step's mean loss to ``.grad`` of every parameter, summed over
        ranks; returns the loss. Every rank calls it with the same batch."""
        draws = self.draws(batch)
        number = self.task.count(batch, self.sequence, draws)
        total = 0.0
        for part in self._parts(batch):
            embeddings = self.embed(part, self.draws(part))
            loss = self.task.loss(embeddings, part, self.sequence, draws) / number
            if loss.requires_grad:
                loss.backward()
            total += float(loss.detach())
        return self._reduce(total)

    def _parts(self, batch: WindowBatch) -> Iterator[WindowBatch]:
        if self.options.policy != "sequential":
            yield batch
            return
        for b in range(len(batch.starts)):
            yield batch.only([b])

    def _reduce(self, loss: float) -> float:
        if self.exchange.size == 1:
            return loss
        parameters = self.parameters()
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        self.exchange.all_reduce_sum(flat)
        at = 0
        for p in parameters:
            assert p.grad is not None
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        total = torch.tensor([loss], dtype=torch.float64, device=self.device)
        return float(self.exchange.all_reduce_sum(total))

    def accumulate_truncated(
        self, batch: WindowBatch, state: State | None
    ) -> tuple[float, State | None]:
        """Truncated back-propagation: one segment, from the state that the segment before left.

        Every snapshot of the segment is a target, gradients stop at its beginning. Only for tasks
        on nodes with policies that hold all windows (``sequential``, ``grouped``, ``vertices``,
        ``snapshots``). Returns the loss and the state to hand to the next segment.
        """
        if self.task.horizon:
            raise InputError(
                "history: 'truncated' is for targets of each snapshot's own nodes; use windows for "
                "edges of the next snapshot"
            )
        draws = self.draws(batch)
        start = batch.starts[0]
        targets = WindowBatch(
            batch.epoch, batch.index, tuple(range(start, start + batch.length)), 1
        )
        number = self.task.count(targets, self.sequence, draws)
        out, state, _, ids, owner = self._compute(batch, draws, state, every=True)
        rows = out[:, :, 0].transpose(0, 1)
        held = tuple(range(batch.length))
        embeddings = Embeddings(rows, held, ids, owner, self.exchange, self.counts)
        loss = self.task.loss(embeddings, targets, self.sequence, draws) / number
        loss.backward()
        return self._reduce(float(loss.detach())), None if state is None else state.detach()

    def evaluate(self, batches: Iterable[WindowBatch]) -> dict[str, float]:
        """Metrics over windows, the same on every rank."""
        return self.task.metrics(self.predictions(batches))

    def predictions(self, batches: Iterable[WindowBatch]) -> dict[str, np.ndarray]:
        """Predictions and targets of windows, in order of window and node, on every rank."""
        found: list[dict[str, np.ndarray]] = []
        with torch.no_grad():
            for batch in batches:
                for part in self._parts(batch):
                    draws = self.draws(part, training=False)
                    e = self.embed(part, draws)
                    found.append(self.task.predictions(e, part, self.sequence, draws))
        return self._gather(found)

    def _gather(self, found: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        gathered = [p for rank in self.exchange.all_gather_object(found) for p in rank if p]
        if not gathered:
            raise InputError("evaluate: there are no windows in this split; choose a larger one")
        columns = {k: np.concatenate([p[k] for p in gathered]) for k in gathered[0]}
        order = np.lexsort((columns["node"], columns["window"]))
        return {k: v[order] for k, v in columns.items()}

    def carry(self, batch: WindowBatch, state: State | None) -> State | None:
        """The state that a segment leaves, without gradients."""
        with torch.no_grad():
            draws = self.draws(batch, training=False)
            return self._compute(batch, draws, state, every=False)[1]

    def predictions_truncated(self, span: range, length: int) -> dict[str, np.ndarray]:
        """Predictions of the snapshots of ``span``, with the state carried from the first one of
        the sequence in segments of ``length``."""
        found: list[dict[str, np.ndarray]] = []
        state: State | None = None
        with torch.no_grad():
            for batch in segments(span.stop, length):
                draws = self.draws(batch, training=False)
                out, state, _, ids, owner = self._compute(batch, draws, state, every=True)
                kept = [k for k in range(batch.length) if batch.starts[0] + k in span]
                if not kept:
                    continue
                starts = tuple(batch.starts[0] + k for k in kept)
                targets = WindowBatch(0, batch.index, starts, 1)
                rows = out[kept][:, :, 0].transpose(0, 1)
                held = tuple(range(len(kept)))
                e = Embeddings(rows, held, ids, owner, self.exchange, self.counts)
                found.append(self.task.predictions(e, targets, self.sequence, draws))
        return self._gather(found)

    def pairs(self, batch: WindowBatch) -> list[np.ndarray] | None:
        """The node pairs of each window that the task scores in training, for ``plan``."""
        found = getattr(self.task, "training_pairs", None)
        return None if found is None else found(batch, self.sequence, self.draws(batch))

    def warm(self, batch: WindowBatch) -> None:
        """Encode a step's groups and copy them to the device; called ahead on a thread."""
        if self.options.policy in ("sequential",):
            return
        if self.options.policy == "windows":
            batch = batch.only(
                deal_windows(len(batch.starts), self.exchange.size)[self.exchange.rank]
            )
        snapshots = batch.snapshots
        if self.options.policy == "snapshots":
            rank = self.exchange.rank
            snapshots = tuple(t for t in snapshots if self.dealer[t] == rank)
        missing = [t for t in snapshots if not self.kept.done[t]]
        needed = [self._whole_groups(missing, self.options.policy == "snapshots")]
        if self.model.spatial_calls():
            block = self.options.checkpoint or max(len(snapshots), 1)
            needed += [snapshots[i : i + block] for i in range(0, len(snapshots), block)]
        if self.model.recur_calls():
            steps = range(1, batch.length)
            needed += [tuple(start + k for start in batch.starts) for k in steps]
        for chosen in needed:
            for first, last in self.groups.split(chosen) if chosen else ():
                if self.options.policy == "vertices":
                    self.groups.segments(chosen[first:last])
                else:
                    self.groups.prepare(chosen[first:last], self.model.kinds)

    def ahead(self, batches: Iterable[WindowBatch]) -> Iterator[WindowBatch]:
        """The batches in their order, each one's groups encoded while the one before computes."""
        if not self.options.prefetch:
            yield from batches
            return
        with ThreadPoolExecutor(1, thread_name_prefix="snapshots") as pool:
            waiting: tuple[WindowBatch, Future[None]] | None = None
            for batch in batches:
                now = (batch, pool.submit(self.warm, batch))
                if waiting is not None:
                    waiting[1].result()
                    yield waiting[0]
                waiting = now
            if waiting is not None:
                waiting[1].result()
                yield waiting[0]


class _NoNeighbours:
    """A scope of one node, to learn widths from."""

    rows = 1

    def aggregate(self, x: Tensor, snapshots: tuple[int, ...], kind: str) -> Tensor:
        return x


def train_epoch(
    strategy: SnapshotStrategy,
    batches: Iterable[WindowBatch],
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None = None,
) -> list[float]:
    """One optimiser step a batch; returns the losses."""
    losses = []
    for batch in strategy.ahead(batches):
        optimizer.zero_grad()
        losses.append(strategy.accumulate(batch))
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(strategy.parameters(), clip_norm)
        optimizer.step()
    return losses
