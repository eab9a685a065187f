"""Scopes: which nodes of which snapshots a rank computes, and how it reads their neighbours."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist import rng
from gnn_dist.cluster.exchange import Exchange
from gnn_dist.dynamic.groups import Encoding, Segments, encode_group
from gnn_dist.dynamic.normalise import Factors, Kind, factors
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.graph import index_dtype
from gnn_dist.kernels.dropout import keyed_dropout
from gnn_dist.nn.recurrent.aggregate import Moved, aggregate_group, move
from gnn_dist.nn.recurrent.rowwise import relu_standardise

EPSILON = 1e-5
"""Added to a variance before its root is taken."""


@dataclass
class Counts:
    """What was done, to be printed beside what was predicted.

    Attributes:
        snapshots_aggregated: snapshots in all forward aggregations (one each time).
        edges_aggregated: their edges and those of backward passes, as one graph at a time would
            count them.
        edges_read: edges that the kernel read for forward aggregations, shared ones once.
        rows_sent: rows sent to other ranks, forward and backward.
        bytes_sent: their bytes.
    """

    snapshots_aggregated: int = 0
    edges_aggregated: int = 0
    edges_read: int = 0
    rows_sent: int = 0
    bytes_sent: int = 0

    def aggregate(
        self, x: Tensor, segments: Segments, factors: Factors, moved: Moved | None
    ) -> Tensor:
        """``aggregate_group``, counted; its backward pass is counted when it runs."""
        self.snapshots_aggregated += segments.snapshots
        self.edges_aggregated += segments.edges
        self.edges_read += segments.stored_edges
        out = aggregate_group(x, segments, factors, moved)
        if out.requires_grad:
            edges = segments.edges

            def back(_: Tensor) -> None:
                self.edges_aggregated += edges

            out.register_hook(back)
        return out


@dataclass(frozen=True)
class Draws:
    """What a step's random choices are keyed by.

    Attributes:
        seed, epoch, step: of the step; ``step`` is the batch's number before shuffling.
        starts, length: its windows.
        training: whether there is dropout at all.
    """

    seed: int = 0
    epoch: int = 0
    step: int = 0
    starts: tuple[int, ...] = ()
    length: int = 1
    training: bool = True


def split_groups(snapshots: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Positions ``(first, last)`` in ascending ``snapshots`` of each group; groups end at
    multiples of ``size``."""
    cuts = [0]
    for i in range(1, len(snapshots)):
        if snapshots[i] // size != snapshots[i - 1] // size:
            cuts.append(i)
    return list(zip(cuts, [*cuts[1:], len(snapshots)], strict=True))


class Groups:
    """Encoded groups of snapshots, made on demand and kept up to a number of bytes.

    Args:
        sequence: the snapshots.
        size: snapshots a group at most; groups end at multiples of it.
        encoding: see ``dynamic.groups``.
        dtype: of factors and weights.
        max_bytes: bytes of encoded groups to keep.
        device: where they are aggregated. On a GPU they are copied on a stream of their own, by
            whichever thread first asks, so that copies run beside the computation.
    """

    def __init__(
        self,
        sequence: SnapshotSequence,
        size: int,
        encoding: Encoding,
        dtype: torch.dtype,
        max_bytes: int = 1 << 30,
        device: torch.device | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self._stream = torch.cuda.Stream(device) if self.device.type == "cuda" else None
        self._dtype = dtype
        self.sequence, self.size, self.encoding = sequence, size, encoding
        self.dtype = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
        self.max_bytes = max_bytes
        self.bytes = 0
        self._factors: dict[Kind, Factors] = {}
        self._made: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._lock = threading.RLock()

    def factors(self, kind: Kind) -> Factors:
        """Of the whole sequence: float[N, T]."""
        with self._lock:
            if kind not in self._factors:
                self._factors[kind] = factors(self.sequence, kind, self.dtype)
            return self._factors[kind]

    def split(self, snapshots: Sequence[int]) -> list[tuple[int, int]]:
        """Positions ``(first, last)`` in ``snapshots`` of each group."""
        return split_groups(snapshots, self.size)

    def stored_edges(self) -> int:
        """Edges of all groups that are kept, each shared one once."""
        with self._lock:
            return sum(
                made.stored_edges for made, _ in self._made.values() if isinstance(made, Segments)
            )

    def kept(self, key: tuple[Any, ...], make: Callable[[], tuple[Any, int]]) -> Any:
        """What ``make`` returned for this key; ``make`` returns it with its bytes."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key][0]
        value, size = make()
        with self._lock:
            if key not in self._made:
                self._made[key] = (value, size)
                self.bytes += size
                while self.bytes > self.max_bytes and len(self._made) > 1:
                    _, (_, old) = self._made.popitem(last=False)
                    self.bytes -= old
            return value

    def segments(self, snapshots: tuple[int, ...]) -> Segments:
        """One group over all nodes."""

        def make() -> tuple[Segments, int]:
            made = encode_group(self.sequence, snapshots, self.encoding)
            if made.weight is not None and made.weight.dtype != self.dtype:
                object.__setattr__(made, "weight", made.weight.astype(self.dtype))
            return made, made.nbytes

        return self.kept(("all", snapshots), make)

    def group_factors(self, kind: Kind, snapshots: tuple[int, ...]) -> Factors:
        """Factors of a group's snapshots: float[N, S]."""

        def make() -> tuple[Factors, int]:
            columns = list(snapshots)
            whole = self.factors(kind)
            made = Factors(*(np.ascontiguousarray(a[:, columns]) for a in whole.arrays()))
            return made, sum(a.nbytes for a in made.arrays())

        return self.kept((kind, snapshots), make)

    def moved(self, key: tuple[Any, ...], segments: Segments, factors: Factors) -> Moved | None:
        """A group on the device; None on a CPU, which reads it where it is."""
        if self.device.type == "cpu":
            return None

        def make() -> tuple[Moved, int]:
            made = move(segments, factors, self.device, self._dtype, self._stream)
            return made, made.nbytes

        return self.kept(("moved", *key), make)

    def prepare(self, snapshots: tuple[int, ...], kinds: Sequence[Kind]) -> None:
        """Encode a group over all nodes, and copy it to the device, ahead of its use."""
        segments = self.segments(snapshots)
        for kind in kinds:
            self.moved((kind, snapshots), segments, self.group_factors(kind, snapshots))


class _Shuffle(torch.autograd.Function):
    """Rows sent to and received from every rank; the gradient goes back the same way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, exchange: Exchange, send: list[Tensor], receive: list[Tensor],
        rows: int, counts: Counts,
    ) -> Tensor:  # fmt: skip
        ctx.exchange, ctx.send, ctx.receive = exchange, send, receive
        ctx.counts, ctx.rows = counts, x.shape[0]
        got = _exchange(
            exchange, [x[i.to(x.device)] for i in send], [i.numel() for i in receive], counts
        )
        out = x.new_zeros((rows, x.shape[1]))
        for index, part in zip(receive, got, strict=True):
            out[index.to(x.device)] = part
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g = gradients[0]
        got = _exchange(
            ctx.exchange,
            [g[i.to(g.device)] for i in ctx.receive],
            [i.numel() for i in ctx.send],
            ctx.counts,
        )
        out = g.new_zeros((ctx.rows, g.shape[1]))
        for index, part in zip(ctx.send, got, strict=True):
            out.index_add_(0, index.to(g.device), part)
        return out, None, None, None, None, None


def _exchange(
    exchange: Exchange, parts: list[Tensor], receive: list[int], counts: Counts
) -> list[Tensor]:
    for rank, part in enumerate(parts):
        if rank != exchange.rank:
            counts.rows_sent += part.shape[0]
            counts.bytes_sent += part.numel() * part.element_size()
    return exchange.all_to_all([p.contiguous() for p in parts], receive=receive)


def shuffle(
    x: Tensor,
    exchange: Exchange,
    send: list[Tensor],
    receive: list[Tensor],
    rows: int,
    counts: Counts,
) -> Tensor:
    """Send rows ``send[r]`` of ``x`` [n, F] to each rank; what comes lies in rows ``receive[r]``
    of the answer [rows, F], whose other rows are zero. Differentiable; collective, and so is its
    gradient, which every rank must therefore ask for."""
    return _Shuffle.apply(x, exchange, send, receive, rows, counts)


class LocalScope:
    """All nodes; neighbours are at hand.

    Args:
        groups: the encoded snapshots.
        draws: keys of this step.
        counts: added to.
    """

    def __init__(self, groups: Groups, draws: Draws, counts: Counts) -> None:
        self.groups, self.draws, self.counts = groups, draws, counts
        self.rows = groups.sequence.num_nodes
        self.ids = np.arange(self.rows)
        self.spread = False  # whether other ranks hold other nodes

    def aggregate(self, x: Tensor, snapshots: tuple[int, ...], kind: Kind) -> Tensor:
        unique = sorted(set(snapshots))
        if list(snapshots) != unique:  # windows that stand on the same snapshot, or out of order
            return _by_snapshot(self, x, snapshots, kind)
        groups = self.groups.split(snapshots)
        if len(groups) == 1:
            return self._group(x.contiguous(), snapshots, kind)
        columns = x.split([last - first for first, last in groups], dim=1)
        parts = [
            self._group(part.contiguous(), snapshots[first:last], kind)
            for part, (first, last) in zip(columns, groups, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def _group(self, x: Tensor, snapshots: tuple[int, ...], kind: Kind) -> Tensor:
        segments = self.groups.segments(snapshots)
        factors = self.groups.group_factors(kind, snapshots)
        moved = self.groups.moved((kind, snapshots), segments, factors)
        return self.counts.aggregate(x, segments, factors, moved)

    def _active(self, snapshots: tuple[int, ...], like: Tensor) -> Tensor | None:
        active = self.groups.sequence.active
        if active is None:
            return None
        chosen = active[list(snapshots)][:, self.ids].T
        return torch.from_numpy(np.ascontiguousarray(chosen)).to(like.device, like.dtype)

    def mask(self, x: Tensor, snapshots: tuple[int, ...]) -> Tensor:
        active = self._active(snapshots, x)
        return x if active is None else x * active[:, :, None]

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over all nodes of [rows, S, F]."""
        return x.sum(0)

    def standardise(
        self,
        x: Tensor,
        snapshots: tuple[int, ...],
        scale: Tensor,
        shift: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        active = self._active(snapshots, x)
        if bias is not None:
            if active is None and not self.spread and x.device.type == "cpu":
                return relu_standardise(x, bias, scale, shift, EPSILON)
            x = torch.relu(x + bias)
        if active is None and not self.spread:
            shape, columns = x.shape, len(snapshots)
            rows = x.reshape(shape[0], -1)  # a snapshot's column is a channel of its own
            out = torch.nn.functional.batch_norm(
                rows, None, None, scale.repeat(columns), shift.repeat(columns), True, 0.0, EPSILON
            )
            return out.view(shape)
        if active is None:
            number = torch.full(
                (len(snapshots), 1), self.groups.sequence.num_nodes, dtype=x.dtype, device=x.device
            )
            centred = x - self._sum(x) / number
        else:
            every = self.groups.sequence.active[list(snapshots)].sum(1)  # type: ignore[index]
            number = torch.from_numpy(np.maximum(every, 1)).to(x.device, x.dtype)[:, None]
            mean = self._sum(x * active[:, :, None]) / number
            centred = (x - mean) * active[:, :, None]
        variance = self._sum(centred * centred) / number
        return centred * torch.rsqrt(variance + EPSILON) * scale + shift

    def top_rows(self, x: Tensor, score: Tensor, snapshots: tuple[int, ...], k: int) -> Tensor:
        order = torch.sort(score.detach(), dim=0, descending=True, stable=True).indices[:k]
        columns = torch.arange(len(snapshots), device=x.device)
        chosen = x[order, columns] * torch.tanh(score[order, columns])[..., None]
        return chosen.transpose(0, 1)

    def dropout(self, x: Tensor, snapshots: tuple[int, ...], layer: int, p: float) -> Tensor:
        d = self.draws
        keys = [
            rng.fold(d.seed, rng.Stream.DROPOUT, d.epoch, d.step, 0, t, layer) for t in snapshots
        ]
        return self._drop(x, keys, p)

    def dropout_windows(self, x: Tensor, layer: int, p: float) -> Tensor:
        d = self.draws
        keys = [
            rng.fold(d.seed, rng.Stream.DROPOUT, d.epoch, s, 1, s + d.length - 1, layer)
            for s in d.starts
        ]
        return self._drop(x, keys, p)

    def _drop(self, x: Tensor, keys: list[int], p: float) -> Tensor:
        if not self.draws.training or p == 0:
            return x
        ones = np.ones((x.shape[0], x.shape[2]), np.float64 if x.dtype == torch.float64 else "f4")
        masks = [torch.from_numpy(keyed_dropout(ones, self.ids, key, p)) for key in keys]
        return x * torch.stack(masks, dim=1).to(x.device)


def _by_snapshot(scope: Any, x: Tensor, snapshots: tuple[int, ...], kind: Kind) -> Tensor:
    """Columns that do not ascend are put in order, those of one snapshot after one another."""
    rounds: list[list[int]] = []
    seen: dict[int, int] = {}
    for column, t in enumerate(snapshots):
        number = seen.get(t, 0)
        seen[t] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(column)
    outputs: list[Tensor | None] = [None] * len(snapshots)
    for columns in rounds:
        columns.sort(key=lambda c: snapshots[c])
        part = scope.aggregate(x[:, columns], tuple(snapshots[c] for c in columns), kind)
        for i, column in enumerate(columns):
            outputs[column] = part[:, i]
    return torch.stack([o for o in outputs if o is not None], dim=1)


@dataclass(frozen=True, eq=False)
class Halo:
    """A group's edges into one rank's nodes, and the rows that must come for them.

    Attributes:
        segments: rows are the rank's nodes; columns these and then the halo.
        sources: int64[cols] node ids.
        send: for each rank, flat positions ``row · S + s`` of rows that it needs from here.
        receive: for each rank, flat positions among ``cols · S`` where its rows lie.
    """

    segments: Segments
    sources: np.ndarray
    send: list[Tensor] = field(default_factory=list)
    receive: list[Tensor] = field(default_factory=list)


def needed_rows(segments: Segments, owner: np.ndarray, rank: int) -> np.ndarray:
    """``(node, snapshot)`` pairs whose rows a rank needs from others, as ``node · S + snapshot``,
    ascending and distinct: int64[...]."""
    dst = segments.destinations()
    segment = np.repeat(
        np.arange(segments.first.size), segments.indptr[:, -1] - segments.indptr[:, 0]
    )
    foreign = (owner[dst] == rank) & (owner[segments.indices] != rank)
    pairs = [np.empty(0, np.int64)]
    for g in range(segments.first.size):
        nodes = np.unique(segments.indices[foreign & (segment == g)]).astype(np.int64)
        snapshots = np.arange(segments.first[g], segments.last[g])
        pairs.append((nodes[:, None] * segments.snapshots + snapshots).reshape(-1))
    return np.unique(np.concatenate(pairs))


class VertexScope(LocalScope):
    """One rank's nodes; rows of neighbours come from their owners, snapshot by snapshot.

    Args:
        owner: int[N], the rank of each node.
        exchange: between the ranks.
    """

    def __init__(
        self, groups: Groups, draws: Draws, counts: Counts, owner: np.ndarray, exchange: Exchange
    ) -> None:
        super().__init__(groups, draws, counts)
        self.owner, self.exchange = owner, exchange
        self.spread = exchange.size > 1
        self.ids = np.flatnonzero(owner == exchange.rank)
        self.rows = self.ids.size

    def halo(self, snapshots: tuple[int, ...]) -> Halo:
        """The group's edges into this rank's nodes; made once."""

        def make() -> tuple[Halo, int]:
            made = _make_halo(self.groups.segments(snapshots), self.owner, self.exchange)
            return made, made.segments.nbytes

        return self.groups.kept(("halo", snapshots), make)

    def _group(self, x: Tensor, snapshots: tuple[int, ...], kind: Kind) -> Tensor:
        halo = self.halo(snapshots)
        width, columns = x.shape[2], halo.sources.size
        flat = x.reshape(-1, width)
        size = columns * len(snapshots)
        come = shuffle(flat, self.exchange, halo.send, halo.receive, size, self.counts)
        come = come.view(columns, len(snapshots), width)
        whole = torch.cat((x, come[self.rows :]))
        own = self._own_factors(kind, snapshots, halo)
        moved = self.groups.moved(("halo", kind, snapshots), halo.segments, own)
        return self.counts.aggregate(whole, halo.segments, own, moved)

    def _own_factors(self, kind: Kind, snapshots: tuple[int, ...], halo: Halo) -> Factors:
        def make() -> tuple[Factors, int]:
            f = self.groups.group_factors(kind, snapshots)
            own = Factors(
                np.ascontiguousarray(f.left[self.ids]),
                np.ascontiguousarray(f.loop[self.ids]),
                np.ascontiguousarray(f.right[halo.sources]),
            )
            return own, sum(a.nbytes for a in own.arrays())

        return self.groups.kept(("own", kind, snapshots), make)

    def _sum(self, x: Tensor) -> Tensor:
        return sum_over_ranks(x.sum(0), self.exchange)

    def top_rows(self, x: Tensor, score: Tensor, snapshots: tuple[int, ...], k: int) -> Tensor:
        """Every rank offers its own k best rows; the k best of those are the same everywhere."""
        order = torch.sort(score.detach(), dim=0, descending=True, stable=True).indices[:k]
        columns = torch.arange(len(snapshots), device=x.device)
        offered = torch.cat((x[order, columns], score[order, columns][..., None]), dim=2)
        ids = torch.from_numpy(self.ids).to(x.device)[order]
        rows = gather_rows(offered, self.exchange, self.counts)
        nodes = torch.cat(self.exchange.all_gather(ids))
        # A stable sort by score of rows in order of id: ties go to the lower id, as on one rank.
        by_id = torch.sort(nodes, dim=0, stable=True).indices
        rows = rows.gather(0, by_id[..., None].expand_as(rows))
        best = torch.sort(rows[..., -1].detach(), dim=0, descending=True, stable=True).indices[:k]
        chosen = rows[best, columns]
        return (chosen[..., :-1] * torch.tanh(chosen[..., -1:])).transpose(0, 1)


def _make_halo(segments: Segments, owner: np.ndarray, exchange: Exchange) -> Halo:
    rank, count = exchange.rank, segments.snapshots
    mine = np.flatnonzero(owner == rank)
    needed = needed_rows(segments, owner, rank)
    halo = np.unique(needed // count)
    sources = np.concatenate((mine, halo))
    local = np.full(owner.size, -1, np.int64)
    local[sources] = np.arange(sources.size)
    dst = segments.destinations()
    keep = owner[dst] == rank
    segment = np.repeat(
        np.arange(segments.first.size), segments.indptr[:, -1] - segments.indptr[:, 0]
    )[keep]
    place = segment * mine.size + local[dst[keep]]
    counts = np.bincount(place, minlength=segments.first.size * mine.size)
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    indptr = bounds[np.arange(segments.first.size)[:, None] * mine.size + np.arange(mine.size + 1)]
    weight, position = segments.weight, segments.position
    if position is not None:
        position = position[keep]
    elif weight is not None:
        weight = weight[keep]
    own = Segments(
        count, segments.first, segments.last, indptr,
        local[segments.indices[keep]].astype(index_dtype(sources.size)), weight, position,
        sources.size,
    )  # fmt: skip
    send, receive = [], []
    for other in range(exchange.size):
        if other == rank:
            send.append(torch.empty(0, dtype=torch.int64))
            receive.append(torch.empty(0, dtype=torch.int64))
            continue
        theirs = needed_rows(segments, owner, other)
        theirs = theirs[owner[theirs // count] == rank]
        send.append(torch.from_numpy(local[theirs // count] * count + theirs % count))
        ours = needed[owner[needed // count] == other]
        receive.append(torch.from_numpy(local[ours // count] * count + ours % count))
    return Halo(own, sources, send, receive)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.all_reduce_sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.all_reduce_sum(gradients[0].clone()), None


def sum_over_ranks(x: Tensor, exchange: Exchange) -> Tensor:
    """The sum of every rank's ``x``, on every rank; differentiable."""
    return x if exchange.size == 1 else _Sum.apply(x, exchange)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, counts: Counts) -> Tensor:
        parts = exchange.all_gather(x.contiguous())
        ctx.exchange, ctx.counts = exchange, counts
        _count_gather(x, exchange, counts)
        ctx.start = sum(p.shape[0] for p in parts[: exchange.rank])
        ctx.rows = x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        whole = ctx.exchange.all_reduce_sum(gradients[0].clone())
        mine = whole[ctx.start : ctx.start + ctx.rows]
        _count_gather(mine, ctx.exchange, ctx.counts)
        return mine, None, None


def _count_gather(x: Tensor, exchange: Exchange, counts: Counts) -> None:
    others = exchange.size - 1
    counts.rows_sent += others * x.shape[0] * x.shape[1]
    counts.bytes_sent += others * x.numel() * x.element_size()


def gather_rows(x: Tensor, exchange: Exchange, counts: Counts) -> Tensor:
    """Every rank's ``x`` [n, S, F] one below the other, on every rank; differentiable. Counts as
    n · S rows sent to each other rank, forward and backward."""
    return x if exchange.size == 1 else _Gather.apply(x, exchange, counts)
