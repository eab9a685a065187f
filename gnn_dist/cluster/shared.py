"""Rows between ranks of one host through shared memory instead of sockets."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, Traffic
from gnn_dist.cluster.near import Arena, Arenas, Meeting, Memory, Notices
from gnn_dist.cluster.placement import Placement

_ALIGN = 64  # bytes


class SharedExchange:
    """An ``Exchange`` whose ``all_to_all`` goes through memory where ranks share a host.

    Tensors on the CPU do, where all ranks share a host or the call tells ``receive``; everything
    else, and rows for other hosts, take ``inner``. A rank writes what it sends into memory of its
    own (rows that lie in ``room`` are there already) and the ranks of the host meet: the tensors
    returned are the senders' memory, not copied. A sender writes there again when its readers have
    forgotten them. The memory has no name in any file system and goes with its last reader.

    Collective: every rank makes one, over the same exchange. ``share`` chooses it where it helps.
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
        call, self._call = self._call, self._call + 1
        sent = self._write(call, parts)
        self._meeting.hold()
        if self._far and receive is not None:
            empty = parts[0][:0]
            got = self._inner.all_to_all(
                [empty if near else part for near, part in zip(self._near, parts, strict=True)],
                receive=[
                    0 if near else rows for near, rows in zip(self._near, receive, strict=True)
                ],
            )
        else:
            got = [parts[self.rank]] * self.size
        out, came = [], 0
        for r, near in enumerate(self._near):
            out.append(self._read(call, r, parts[r]) if near else got[r])
            came += out[r].nbytes if near else 0
        self.traffic.rounds += 1
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += came
        return out

    def room(self, rows: int, like: Tensor) -> Tensor:
        """In memory that the near ranks read, where that is used."""
        if like.device.type != "cpu":
            return self._inner.room(rows, like)
        size = rows * like.shape[1:].numel() * like.element_size()
        self._room = self._arenas.free(size)
        return self._room.memory.view(0, rows, like)

    def _write(self, call: int, parts: Sequence[Tensor]) -> int:
        """Put the parts for near ranks where these read them; bytes of them."""
        near = [part for part, is_near in zip(parts, self._near, strict=True) if is_near]
        sent = sum(part.nbytes for part in near)
        arena, self._room = self._room, None
        where = None if arena is None else arena.memory.places(near)
        if arena is None or where is None:
            ends = np.cumsum([0] + [-(-part.nbytes // _ALIGN) * _ALIGN for part in near])
            arena, where = self._arenas.free(int(ends[-1])), ends[:-1].tolist()
            for part, offset in zip(near, where, strict=True):
                arena.memory.view(offset, part.shape[0], part).copy_(part.detach())
        arena.call = call
        arena.readers = [r for r, is_near in enumerate(self._near) if is_near and parts[r].nbytes]
        rows = [part.shape[0] for part in parts]
        self._notices.put(call, arena, np.flatnonzero(self._near), where, rows)
        return sent

    def _read(self, call: int, rank: int, like: Tensor) -> Tensor:
        slot, version, descriptor, size, offset, rows = self._notices.get(call, rank)
        seen, memory = self._open.get((rank, slot), (-1, None))
        if memory is None or seen != version:
            memory = Memory.open(self._notices.pids[rank], descriptor, size)
            self._open[rank, slot] = version, memory
        return memory.view(offset, rows, like, then=self._notices.release(call, rank))

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
    hosts = placement.host_of_rank
    if not isinstance(exchange, CollectiveExchange) or len(set(hosts)) == len(hosts):
        return exchange
    can = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    if not all(exchange.all_gather_object(can)):
        return exchange
    return SharedExchange(exchange, hosts)
