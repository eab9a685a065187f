"""Rows between ranks of one host through shared memory instead of sockets."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.cluster.exchange import Exchange, Traffic
from gnn_dist.cluster.placement import Placement

_ALIGN = 64  # bytes


class SharedExchange:
    """An ``Exchange`` whose ``all_to_all`` goes through memory where ranks share a host.

    Tensors on the CPU do, where all ranks share a host or the call tells ``receive``; everything
    else, and rows for other hosts, take ``inner``. A rank writes what it sends into memory of its
    own, all ranks meet, and each copies nothing: the tensors returned are views of the senders'
    memory, and hold until this rank's next call. Two such memories take turns, so one
    meeting a call is enough. The memory has no name in any file system and goes with its process.

    Collective: every rank makes one, over the same exchange. ``share`` chooses it where it helps.
    """

    def __init__(self, inner: Exchange, host_of_rank: Sequence[int]) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self.traffic: Traffic = inner.traffic
        self._inner = inner
        mine = host_of_rank[inner.rank]
        self._near = [r != inner.rank and host == mine for r, host in enumerate(host_of_rank)]
        self._far = any(host != mine for host in host_of_rank)
        self._width = 2 + 2 * inner.size  # numbers that a rank writes about a turn
        self._table = _Memory.create("gnn-dist-table", 8 * 2 * self._width)
        self._arenas = [_Memory.create("gnn-dist-rows", _ALIGN) for _ in range(2)]
        names = inner.all_gather_object((os.getpid(), self._table.descriptor))
        self._tables = {
            r: _Memory.open(pid, descriptor, self._table.size)
            for r, (pid, descriptor) in enumerate(names)
            if self._near[r]
        }
        self._pids = [pid for pid, _ in names]
        self._open: dict[tuple[int, int], _Memory] = {}
        self._turn = 0
        inner.barrier()

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        if parts[0].device.type != "cpu" or (receive is None and self._far):
            return self._inner.all_to_all(parts, receive=receive)
        turn, self._turn = self._turn, 1 - self._turn
        sent = self._write(turn, parts)
        self._inner.barrier()
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
            out.append(self._read(turn, r, parts[r]) if near else got[r])
            came += out[r].numel() * out[r].element_size() if near else 0
        self.traffic.rounds += 1
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += came
        return out

    def _write(self, turn: int, parts: Sequence[Tensor]) -> int:
        """Put the parts for near ranks into this turn's memory; bytes of them."""
        offsets, end, sent = [0] * self.size, 0, 0
        for r, near in enumerate(self._near):
            if near:
                offsets[r] = end
                size = parts[r].numel() * parts[r].element_size()
                sent += size
                end += -(-size // _ALIGN) * _ALIGN
        arena = self._arenas[turn]
        arena.reserve(end)
        for r, near in enumerate(self._near):
            if near and parts[r].numel():
                arena.view(offsets[r], parts[r].shape[0], parts[r]).copy_(parts[r].detach())
        row = self._row(self._table, turn)
        row[:2] = arena.descriptor, arena.size
        row[2 : 2 + self.size] = offsets
        row[2 + self.size :] = [part.shape[0] for part in parts]
        return sent

    def _read(self, turn: int, rank: int, like: Tensor) -> Tensor:
        descriptor, size, *where = self._row(self._tables[rank], turn).tolist()
        offset, rows = where[self.rank], where[self.size + self.rank]
        if not rows * like.shape[1:].numel():
            return like.new_empty((rows, *like.shape[1:]))
        arena = self._open.get((rank, turn))
        if arena is None or arena.size != size:
            arena = self._open[rank, turn] = _Memory.open(self._pids[rank], descriptor, size)
        return arena.view(offset, rows, like)

    def _row(self, table: "_Memory", turn: int) -> np.ndarray:
        return np.frombuffer(table.map, np.int64, self._width, offset=8 * self._width * turn)

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
    if exchange.size == 1 or len(set(hosts)) == len(hosts):
        return exchange
    can = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    if not all(exchange.all_gather_object(can)):
        return exchange
    return SharedExchange(exchange, hosts)


class _Memory:
    """Memory that other processes of this user can open by process and descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, name: str, size: int) -> "_Memory":
        descriptor = os.memfd_create(name)
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    @classmethod
    def open(cls, pid: int, descriptor: int, size: int) -> "_Memory":
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
        try:
            return cls(own, size)
        finally:
            os.close(own)  # the map holds the memory

    def reserve(self, size: int) -> None:
        """Grow to at least ``size`` bytes; only where nobody reads this memory."""
        if size > self.size:
            self.size = -(-size * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.descriptor, self.size)
            self.map = mmap.mmap(self.descriptor, self.size)

    def view(self, offset: int, rows: int, like: Tensor) -> Tensor:
        """Rows of the dtype and shape of those of ``like``, in place."""
        count = rows * like.shape[1:].numel()
        flat = torch.frombuffer(self.map, dtype=like.dtype, count=count, offset=offset)
        return flat.view(rows, *like.shape[1:])
