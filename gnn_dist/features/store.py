"""``FeatureStore``: rows of nodes, wherever they are."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_dist.cluster import Exchange, LocalExchange, Placement
from gnn_dist.errors import InputError
from gnn_dist.features.counts import Counts
from gnn_dist.features.halo import cache_rows, halo_of_host
from gnn_dist.features.holder import Holder
from gnn_dist.features.owners import Directory, Owners, Traffic, Want
from gnn_dist.features.policies import CacheContext, CachePolicy, NoCache, check_ids
from gnn_dist.features.pool import find, union
from gnn_dist.features.rows import FeatureRows
from gnn_dist.features.tables import Tables
from gnn_dist.features.workload import Workload
from gnn_dist.kernels import cache as kernels
from gnn_dist.kernels.stitch import group
from gnn_dist.storage import PartitionedGraph

NodeIds = Tensor | np.ndarray
Rows = Tensor | FeatureRows


class FeatureStore:
    """Reads rows of named node tensors by global id, in the order asked for.

    Rows of this host's parts are read through their memory maps; rows of other hosts are held in
    a cache or asked from their owners. What is returned never depends on the placement, the cache
    or the window; what was moved is counted.

    Where another host owns a part, building a store and every call that returns rows, but
    ``here``, are collective: all ranks make them in the same order, with the same names and the
    same number of batches, from one thread and over an exchange that nothing else uses at that
    time. Where every part is on every rank's host there is no communication at all.

    Args:
        graph: the partitions.
        placement: which host and rank is where; default: all here.
        exchange: carries requests and rows; default: none.
        cache: which rows of other hosts are kept (of the tensor ``cached`` only).
        fraction: rows that the cache may keep, as a fraction of the halo of this host.
        max_bytes: the same in bytes of rows; the smaller of the two holds where both are given.
        window_bytes: bytes of rows that may be held beyond the cache for batches that are known to
            need them (see ``fetch_window``); default: as many as these need. The rows of one batch
            are always let through. With a limit, ranks agree on every window by one more, small
            collective.
        cached: the tensor that is cached and held.
        workload: what this rank is going to ask for; the policies ``presample``, ``vip`` and
            ``lookahead`` need it.

    Attributes:
        counts: everything read since the start.
        last: the counts of the batch delivered last, with the messages sent for it.
        peak_rows: the most rows of other hosts that were here at once.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        placement: Placement | None = None,
        exchange: Exchange | None = None,
        cache: CachePolicy | None = None,
        *,
        fraction: float | None = None,
        max_bytes: int | None = None,
        window_bytes: int | None = None,
        cached: str = "x",
        workload: Workload | None = None,
    ) -> None:
        if fraction is not None and not 0 <= fraction <= 1:
            raise InputError(f"cache.fraction: {fraction} is not valid; give a number from 0 to 1")
        if max_bytes is not None and max_bytes < 0:
            raise InputError(f"cache.max_bytes: {max_bytes} is not valid; give 0 or more bytes")
        if window_bytes is not None and window_bytes < 0:
            raise InputError(f"cache.window_bytes: {window_bytes} is not valid; give 0 or more")
        self._graph = graph
        self._placement = placement or Placement.single(graph.num_parts)
        self._exchange = exchange or LocalExchange()
        self._offsets = np.asarray(graph.offsets)
        self._tables = Tables(graph)
        self._local = np.array([self._placement.is_local(p) for p in range(graph.num_parts)])
        self._owned = owned_parts(self._placement)
        self._holders: dict[str, Holder] = {}
        self._foreseen: dict[int, tuple[NodeIds, Split]] = {}  # of batches ahead; by id of theirs
        self.counts = Counts()
        self.last = Counts()
        if not self._placement.all_local:
            self._owners = Owners(graph, self._placement, self._exchange)
            if cached in self._tables.types:
                self._start(cached, cache or NoCache(), fraction, max_bytes, window_bytes, workload)

    @property
    def directory(self) -> Directory | None:
        """Answers for nodes of other hosts (collective); None where there are none."""
        return None if self._placement.all_local else self._owners

    @property
    def peak_rows(self) -> int:
        return max((h.peak_rows for h in self._holders.values()), default=0)

    def fetch(self, name: str, nodes: NodeIds) -> Tensor:
        """Rows of ``nodes`` (int[n], global ids): a tensor with n rows, float16 rows widened.

        Raises ``InputError`` for an unknown name or an id out of range.
        """
        (batch,) = self.fetch_window([{name: nodes}])
        rows = batch[name]
        assert isinstance(rows, Tensor)
        return rows

    def here(self, name: str, nodes: NodeIds, *, leave: bool = False) -> Rows:
        """Rows of nodes of this host's parts, as ``fetch`` gives them or left in their tables; no
        other rank takes part.

        Raises ``InputError`` also for a node of another host.
        """
        split = self._split(name, nodes)
        if split.remote.size:
            raise InputError(
                f"features: node {split.remote[0]} is of another host; ask for it by fetch, with "
                "all ranks"
            )
        self.last = Counts()
        return self._deliver(name, split, (name,) if leave else (), None)

    def rows(self, name: str, nodes: NodeIds) -> Rows:
        """As ``fetch``, but rows of this host are left in their tables, without a copy."""
        (batch,) = self.fetch_window([{name: nodes}], leave=(name,))
        return batch[name]

    def fetch_window(
        self,
        batches: Sequence[Mapping[str, NodeIds]],
        ahead: Sequence[Mapping[str, NodeIds]] = (),
        leave: Collection[str] = (),
    ) -> Iterator[dict[str, Rows]]:
        """Rows for several batches, name → global ids; yields name → rows, batch by batch.

        The union of the rows that are missing for all of ``batches`` is asked for once, in one
        round, and held until it has been used for the last time. ``ahead`` are batches that will
        be asked for next: rows that they need are not given up in between, and a policy that
        looks ahead sees them; until then their ids must not be changed in place. Where the rows
        exceed ``window_bytes``, the window is cut into several rounds, at the same batches on all
        ranks.

        Nothing happens before the first batch is taken; rows are copied out as the iterator
        advances; exhaust it before the next call. Names in ``leave`` come as ``FeatureRows``: rows
        of this host stay in their tables.
        """
        wanted = [
            {name: self._split(name, nodes) for name, nodes in batch.items()} for batch in batches
        ]
        if self._placement.all_local:
            for batch in wanted:
                self.last = Counts()
                yield {name: self._deliver(name, s, leave, None) for name, s in batch.items()}
            return
        known = [
            {name: self._split(name, batch[name]) for name in self._holders if name in batch}
            for batch in ahead
        ]
        self._foreseen = {
            id(batch[name]): (batch[name], split)
            for batch, splits in zip(ahead, known, strict=True)
            for name, split in splits.items()
        }
        done = 0
        while done < len(wanted):
            size = self._round_size(wanted[done:])
            yield from self._round(wanted[done : done + size], wanted[done + size :] + known, leave)
            done += size

    # -- at the start --------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        policy: CachePolicy,
        fraction: float | None,
        max_bytes: int | None,
        window_bytes: int | None,
        workload: Workload | None,
    ) -> None:
        kind = self._tables.type(name)
        halo = halo_of_host(self._graph, self._placement)
        capacity = cache_rows(halo.size, kind.row_bytes, fraction, max_bytes)
        context = CacheContext(self._graph, self._placement, self._owners, halo, capacity, workload)
        window = None if window_bytes is None else window_bytes // max(kind.row_bytes, 1)
        holder = Holder(policy, kind, capacity, window)
        self._holders[name] = holder
        ids = policy.start(context)
        ids = np.sort(ids) if isinstance(ids, np.ndarray) else ids
        check_ids(policy, "start", ids, capacity, self._graph.num_nodes)
        ids = ids.astype(np.int64, copy=False)
        (rows,) = self._owners.ask([self._want(name, ids)])
        self._count_traffic()
        holder.fill(ids, rows)
        self.counts.add("filled", ids.size, kind.row_bytes)

    def _want(self, name: str, ids: np.ndarray) -> Want:
        kind = self._tables.type(name)

        def read(part: int, rows: np.ndarray) -> np.ndarray:
            return self._tables.read(name, part, rows)

        return Want(ids, read, kind.stored, kind.shape)

    # -- one round -----------------------------------------------------------------------------

    def _round_size(self, batches: Sequence[Mapping[str, "Split"]]) -> int:
        """Leading batches that fit the window on every rank; at least one."""
        size = len(batches)
        if size == 1 or all(holder.window is None for holder in self._holders.values()):
            return size
        for name, holder in self._holders.items():
            size = min(size, holder.fitting([b[name].remote for b in batches if name in b]))
        agreed = self._exchange.all_reduce_max(torch.tensor([-size], dtype=torch.int64))
        return -int(agreed[0])

    def _round(
        self,
        batches: Sequence[Mapping[str, "Split"]],
        ahead: Sequence[Mapping[str, "Split"]],
        leave: Collection[str],
    ) -> Iterator[dict[str, Rows]]:
        names = list(batches[0])
        wants = []
        for name in names:
            needed = [batch[name].remote for batch in batches]
            if name in self._holders:
                known = [batch[name].remote for batch in ahead if name in batch]
                wants.append(self._want(name, self._holders[name].plan(needed, known)))
            else:
                wants.append(self._want(name, union(*needed)))
        answers = self._owners.ask(wants)
        arrivals = {
            name: _Arrivals(want.ids, rows, np.zeros(want.ids.size, bool))
            for name, want, rows in zip(names, wants, answers, strict=True)
        }
        self.last = Counts()
        self._count_traffic()  # charged to the first batch of the round
        for number, batch in enumerate(batches):
            if number:
                self.last = Counts()
            yield {
                name: self._deliver(name, split, leave, arrivals[name])
                for name, split in batch.items()
            }
        for name, came in arrivals.items():
            if name in self._holders:
                unused = int(np.count_nonzero(~came.used))
                self.counts.add("replaced", unused, self._tables.type(name).row_bytes)
                self._holders[name].finish(came.ids, came.rows)

    def _deliver(
        self, name: str, split: "Split", leave: Collection[str], arrivals: "_Arrivals | None"
    ) -> Rows:
        kind = self._tables.type(name)
        for part, positions in split.local:
            self._count(name, "owned" if part in self._owned else "shared", positions.size)
        if name in leave:
            return self._left(name, split, arrivals)
        out = np.empty((split.nodes.size, *kind.shape), kind.logical)
        for part, positions in split.local:
            index = split.nodes[positions] - self._offsets[part]
            kernels.place(self._tables.array(name, part), index, out, positions)
        self._place_remote(name, split, arrivals, out, split.inverse, split.positions)
        return torch.from_numpy(out)

    def _left(self, name: str, split: "Split", arrivals: "_Arrivals | None") -> FeatureRows:
        """Rows of this host in their tables, those of others in a table of their own."""
        kind, count = self._tables.type(name), split.nodes.size
        dtype = _torch_dtype(kind.logical)
        if not count:
            none = torch.from_numpy(np.empty((0, *kind.shape), kind.stored))
            return FeatureRows((none,), torch.empty(0, dtype=torch.int64), dtype)
        tables = [self._tables.tensor(name, part) for part, _ in split.local]
        if len(tables) == 1 and not split.remote.size:
            index = split.nodes - self._offsets[split.local[0][0]]
            return FeatureRows((tables[0],), torch.from_numpy(index), dtype)
        index, source = np.empty(count, np.int64), np.empty(count, np.int64)
        for number, (part, positions) in enumerate(split.local):
            index[positions] = split.nodes[positions] - self._offsets[part]
            source[positions] = number
        copies = np.empty((split.remote.size, *kind.shape), kind.stored)
        if split.remote.size:
            every = np.arange(split.remote.size)
            self._place_remote(name, split, arrivals, copies, every, every)
            index[split.positions], source[split.positions] = split.inverse, len(tables)
            tables.append(torch.from_numpy(copies))
        which = torch.from_numpy(source) if len(tables) > 1 else None
        return FeatureRows(tuple(tables), torch.from_numpy(index), dtype, which, copies.nbytes)

    def _count(self, name: str, origin: str, rows: int) -> None:
        for counts in (self.last, self.counts):
            counts.add(origin, rows, self._tables.type(name).row_bytes)

    def _place_remote(
        self,
        name: str,
        split: "Split",
        arrivals: "_Arrivals | None",
        out: np.ndarray,
        inverse: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        """Rows ``inverse`` of those of other hosts to ``out[positions]``; they are counted."""
        if not split.remote.size:
            return
        assert arrivals is not None
        row = find(split.remote, arrivals.ids)
        came = row >= 0
        _place(arrivals.rows, row[inverse], out, positions)
        if name in self._holders:
            pool = self._holders[name].pool
            slot = pool.find(split.remote)
            slot[came] = -1
            _place(pool.table, slot[inverse], out, positions)
        new = int(np.count_nonzero(~arrivals.used[row[came]]))
        arrivals.used[row[came]] = True
        self._count(name, "remote", new)
        self._count(name, "cached", split.remote.size - new)

    def count_planning(self) -> None:
        """Charge what was asked through ``directory`` to the start rather than to a batch."""
        if not self._placement.all_local:
            self._count_traffic(to_batch=False)

    def _count_traffic(self, to_batch: bool = True) -> None:
        """Charge what was sent and received since the last time."""
        traffic, self._owners.traffic = self._owners.traffic, Traffic()
        for counts in (self.counts, self.last) if to_batch else (self.counts,):
            counts.rounds += traffic.rounds
            counts.requests += traffic.requests
            counts.sent_bytes += traffic.sent_bytes
            counts.received_bytes += traffic.received_bytes

    # -- where nodes are -----------------------------------------------------------------------

    def _split(self, name: str, nodes: NodeIds) -> "Split":
        if id(nodes) in self._foreseen:
            return self._foreseen[id(nodes)][1]
        ids = nodes.numpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
        ids = ids.astype(np.int64, copy=False)
        self._tables.type(name)
        if ids.size and (ids.min() < 0 or ids.max() >= self._graph.num_nodes):
            bad = ids[(ids < 0) | (ids >= self._graph.num_nodes)][0]
            raise InputError(
                f"features: node {bad} does not exist; global ids run from 0 to "
                f"{self._graph.num_nodes - 1}"
            )
        return Split.of(ids, self._offsets, self._local)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The nodes of one batch, by where their rows are.

    Attributes:
        nodes: int64[n] as asked for.
        local: (part on this host, positions of its nodes).
        positions: int64[r], positions of nodes of other hosts.
        remote: those nodes, ascending and distinct.
        inverse: int64[r], the place in ``remote`` of each position.
    """

    nodes: np.ndarray
    local: list[tuple[int, np.ndarray]]
    positions: np.ndarray
    remote: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, nodes: np.ndarray, offsets: np.ndarray, is_local: np.ndarray) -> "Split":
        none = np.empty(0, np.int64)
        if is_local.size == 1 and is_local[0]:
            return cls(nodes, [(0, np.arange(nodes.size))], none, none, none)
        parts = is_local.size
        label = np.where(is_local, np.arange(parts), parts)
        order, bounds = group(nodes, offsets, label, parts + 1)
        here = np.flatnonzero(np.diff(bounds[:-1]))
        local = [(int(p), order[bounds[p] : bounds[p + 1]]) for p in here]
        positions = order[bounds[parts] :]
        remote, inverse = kernels.distinct(nodes[positions])
        return cls(nodes, local, positions, remote, inverse)


@dataclass(slots=True, eq=False)
class _Arrivals:
    """The rows that one round brought, and which have been delivered."""

    ids: np.ndarray
    rows: np.ndarray
    used: np.ndarray


def _place(table: np.ndarray, row: np.ndarray, out: np.ndarray, positions: np.ndarray) -> None:
    """``out[positions] = table[row]`` where ``row`` is not -1."""
    here = row >= 0
    kernels.place(table, row[here], out, positions[here])


def owned_parts(placement: Placement) -> frozenset[int]:
    """The parts that count as this rank's own: its share of those on its host."""
    ranks, parts = placement.local_ranks, placement.local_parts
    here = ranks.index(placement.rank)
    if len(parts) >= len(ranks):
        return frozenset(int(p) for p in np.array_split(np.array(parts, int), len(ranks))[here])
    if not parts:
        return frozenset()
    groups = np.array_split(np.arange(len(ranks)), len(parts))
    return frozenset(p for p, group in zip(parts, groups, strict=True) if here in group)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
