"""Rows between ranks of one host through shared memory instead of sockets."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gnn_dist.cluster.exchange import (
    CollectiveExchange,
    Exchange,
    Traffic,
    check_parts,
    signature,
)
from gnn_dist.cluster.near import Arena, Arenas, Meeting, Memory, Notices
from gnn_dist.cluster.placement import Placement
from gnn_dist.cluster.watch import machine

_ALIGN = 64  # bytes


class SharedExchange:
    """An ``Exchange`` whose ``all_to_all`` goes through memory where ranks share a host.

    Tensors on the CPU do, where all ranks share a host or the call tells ``receive``; everything
    else, and rows for other hosts, take ``inner``. A rank writes what it sends into memory of its
    own (rows that lie in ``room`` are there already) and the ranks of the host meet: the tensors
    returned are the senders' memory, not copied. A sender writes there again when its readers have
    forgotten them. The memory has no name in any file system and goes with its last reader.

    Collective: every rank makes one, over the same exchange, and forgets it only after a further
    collective of all. ``share`` chooses it where it helps.
    """

    def __init__(self, inner: CollectiveExchange, host_of_rank: Sequence[int]) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self.traffic: Traffic = inner.traffic
        self._inner = inner
        mine = host_of_rank[inner.rank]
        self._near = [r != inner.rank and host == mine for r, host in enumerate(host_of_rank)]
        self._far = any(host != mine for host in host_of_rank)
        self._notices = Notices(inner, self._near)
        self._arenas = Arenas(self._notices)
        self._room: Arena | None = None
        self._open: dict[tuple[int, int], tuple[int, Memory]] = {}
        self._call = 0
        self._meeting = Meeting(inner, self._notices.theirs)

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        if parts[0].device.type != "cpu" or (receive is None and self._far):
            return self._inner.all_to_all(parts, receive=receive)
        check_parts(parts, self.size)
        call, self._call = self._call, self._call + 1
        out = list(parts)
        with self._inner.collective("meeting"):
            try:
                sent, out[self.rank] = self._write(call, parts)
                self._meeting.hold(call)
                came = 0
                for r in self._notices.theirs:
                    out[r] = self._read(call, r, parts[r], None if receive is None else receive[r])
                    came += out[r].nbytes
            except OSError as error:  # a rank that has just ended, say
                raise RuntimeError(f"the memory of another rank cannot be read: {error}") from error
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += came
        if self._far and receive is not None:
            return self._from_far(out, parts, receive)
        self.traffic.rounds += 1
        return out

    def _from_far(
        self, out: list[Tensor], parts: Sequence[Tensor], receive: Sequence[int]
    ) -> list[Tensor]:
        """``out`` with what ranks of other hosts send."""
        far = [not near and r != self.rank for r, near in enumerate(self._near)]
        got = self._inner.all_to_all(
            [part if is_far else part[:0] for is_far, part in zip(far, parts, strict=True)],
            receive=[rows if is_far else 0 for is_far, rows in zip(far, receive, strict=True)],
        )
        return [got[r] if is_far else out[r] for r, is_far in enumerate(far)]

    def room(self, rows: int, like: Tensor) -> Tensor:
        """In memory that the near ranks read, where that is used."""
        if like.device.type != "cpu":
            return self._inner.room(rows, like)
        size = rows * like.shape[1:].numel() * like.element_size()
        self._room = self._arenas.free(size)
        return self._room.memory.view(0, rows, like)

    def _write(self, call: int, parts: Sequence[Tensor]) -> tuple[int, Tensor]:
        """Put the parts for near ranks where these read them; bytes of them, and the part for this
        rank, which keeps it."""
        near = [part for part, is_near in zip(parts, self._near, strict=True) if is_near]
        own = parts[self.rank]
        arena, self._room = self._room, None
        where = None if arena is None else arena.memory.places(near)
        if arena is not None:  # it may be filled again below or in a later call
            own = own.clone()
        if arena is None or where is None:
            near = near if arena is None else [part.clone() for part in near]
            ends = np.cumsum([0] + [-(-part.nbytes // _ALIGN) * _ALIGN for part in near])
            arena, where = self._arenas.free(int(ends[-1])), ends[:-1].tolist()
            for part, offset in zip(near, where, strict=True):
                arena.memory.view(offset, part.shape[0], part).copy_(part.detach())
        arena.call = call
        arena.readers = [r for r in self._notices.theirs if parts[r].nbytes]
        rows = [part.shape[0] for part in parts]
        self._notices.put(arena, signature(own), np.flatnonzero(self._near), where, rows)
        return sum(part.nbytes for part in near), own

    def _read(self, call: int, rank: int, like: Tensor, wanted: int | None) -> Tensor:
        slot, version, descriptor, size, mark, offset, rows = self._notices.get(call, rank)
        assert mark == signature(like), (
            f"{self._inner.name}: rank {rank} sends rows of another dtype or shape than rank "
            f"{self.rank}, which has {like.dtype} {tuple(like.shape[1:])}"
        )
        assert wanted in (None, rows), (
            f"{self._inner.name}: rank {rank} sends {rows} rows, and {wanted} were expected"
        )
        seen, memory = self._open.get((rank, slot), (-1, None))
        if memory is None or seen != version:
            memory = Memory.open(self._notices.pids[rank], descriptor, size)
            self._open[rank, slot] = version, memory
        return memory.view(offset, rows, like, then=self._notices.release(call, rank, slot))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._inner.all_gather(tensor)

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._inner.all_gather_object(value)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return self._inner.all_reduce_sum(tensor)

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return self._inner.all_reduce_max(tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        return self._inner.broadcast(tensor, source)

    def barrier(self) -> None:
        self._inner.barrier()


def share(exchange: Exchange, placement: Placement) -> Exchange:
    """``exchange``, through memory between ranks of one host where the system can. Collective."""
    if not isinstance(exchange, CollectiveExchange):
        return exchange
    hosts = placement.host_of_rank
    if len(set(hosts)) == len(hosts):
        return exchange
    can = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    every = exchange.all_gather_object((can, machine()))
    if not all(can and name for can, name in every):
        return exchange
    # Containers of one host name may not see each other's processes.
    places = [(host, name) for host, (_, name) in zip(hosts, every, strict=True)]
    if len(set(places)) == len(places):
        return exchange
    return SharedExchange(exchange, [places.index(place) for place in places])
