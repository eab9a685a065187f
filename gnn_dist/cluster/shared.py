"""Rows between ranks of one host through shared memory instead of sockets."""

import mmap
import os
import select
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, Traffic
from gnn_dist.cluster.placement import Placement

_ALIGN = 64  # bytes


class SharedExchange:
    """An ``Exchange`` whose ``all_to_all`` goes through memory where ranks share a host.

    Tensors on the CPU do, where all ranks share a host or the call tells ``receive``; everything
    else, and rows for other hosts, take ``inner``. A rank writes what it sends into memory of its
    own (rows that lie in ``room`` are there already), the ranks of the host meet, and none copies:
    the tensors returned are views of the senders' memory, and hold until this rank's next call.
    Two such memories take turns, so one meeting a call is enough. The memory has no name in any
    file system and goes with its process.

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
        self._meeting = _Meeting(inner, self._tables)

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        if parts[0].device.type != "cpu" or (receive is None and self._far):
            return self._inner.all_to_all(parts, receive=receive)
        turn, self._turn = self._turn, 1 - self._turn
        sent = self._write(turn, parts)
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
            out.append(self._read(turn, r, parts[r]) if near else got[r])
            came += out[r].nbytes if near else 0
        self.traffic.rounds += 1
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += came
        return out

    def room(self, rows: int, like: Tensor) -> Tensor:
        """In this turn's memory, where that is used."""
        if like.device.type != "cpu":
            return self._inner.room(rows, like)
        arena = self._arenas[self._turn]
        arena.reserve(rows * like.shape[1:].numel() * like.element_size())
        return arena.view(0, rows, like)

    def _write(self, turn: int, parts: Sequence[Tensor]) -> int:
        """Put the parts for near ranks into this turn's memory; bytes of them."""
        arena = self._arenas[turn]
        near = [part for part, is_near in zip(parts, self._near, strict=True) if is_near]
        where, sent = arena.places(near), sum(part.nbytes for part in near)
        if where is None:
            ends = np.cumsum([0] + [-(-part.nbytes // _ALIGN) * _ALIGN for part in near])
            where = ends[:-1].tolist()
            arena.reserve(int(ends[-1]))
            for part, offset in zip(near, where, strict=True):
                arena.view(offset, part.shape[0], part).copy_(part.detach())
        row = self._row(self._table, turn)
        row[:2] = arena.descriptor, arena.size
        row[2 : 2 + self.size][self._near] = where
        row[2 + self.size :] = [part.shape[0] for part in parts]
        return sent

    def _read(self, turn: int, rank: int, like: Tensor) -> Tensor:
        descriptor, size, *where = self._row(self._tables[rank], turn).tolist()
        offset, rows = where[self.rank], where[self.size + self.rank]
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
    if not isinstance(exchange, CollectiveExchange) or len(set(hosts)) == len(hosts):
        return exchange
    can = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    if not all(exchange.all_gather_object(can)):
        return exchange
    return SharedExchange(exchange, hosts)


class _Meeting:
    """Where this rank and those ``near`` it wait for each other: a pipe from each to each.

    A rank that ends closes its pipes, which the others notice at once. Collective over ``inner``.
    """

    def __init__(self, inner: CollectiveExchange, near: Iterable[int]) -> None:
        self._inner = inner
        pipes = {rank: os.pipe() for rank in near}
        ends = {rank: writer for rank, (_, writer) in pipes.items()}
        said = inner.all_gather_object((os.getpid(), ends))
        theirs = [(said[rank][0], said[rank][1][inner.rank]) for rank in pipes]
        self._writers = [os.open(f"/proc/{pid}/fd/{end}", os.O_WRONLY) for pid, end in theirs]
        inner.barrier()  # every end is open
        _close(ends.values())
        self._readers = {reader: select.poll() for reader, _ in pipes.values()}
        for reader, poll in self._readers.items():
            poll.register(reader, select.POLLIN)
        weakref.finalize(self, _close, (*self._readers, *self._writers))

    def hold(self) -> None:
        """Return once all have come."""
        with self._inner.collective("meeting"):
            limit = self._inner.limit
            end = None if limit is None else time.monotonic() + limit
            for writer in self._writers:
                try:
                    os.write(writer, b".")
                except BrokenPipeError:
                    raise RuntimeError("a rank of this host has closed its pipe") from None
            for reader, poll in self._readers.items():
                left = None if end is None else max(0.0, 1000 * (end - time.monotonic()))
                if not poll.poll(left):
                    raise RuntimeError("a rank of this host did not come in time")
                if not os.read(reader, 1):
                    raise RuntimeError("a rank of this host has closed its pipe")


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


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

    def places(self, parts: Sequence[Tensor]) -> list[int] | None:
        """Where contiguous parts begin in this memory, in bytes; None unless all lie in it."""
        start = np.frombuffer(self.map, np.uint8).ctypes.data
        where = [part.data_ptr() - start if part.numel() else 0 for part in parts]
        inside = (
            0 <= at <= at + part.nbytes <= self.size and part.is_contiguous()
            for at, part in zip(where, parts, strict=True)
        )
        return where if all(inside) else None

    def view(self, offset: int, rows: int, like: Tensor) -> Tensor:
        """Rows of the dtype and shape of those of ``like``, in place."""
        count = rows * like.shape[1:].numel()
        if not count:
            return like.new_empty((rows, *like.shape[1:]))
        flat = torch.frombuffer(self.map, dtype=like.dtype, count=count, offset=offset)
        return flat.view(rows, *like.shape[1:])
