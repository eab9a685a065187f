"""Rows between ranks of one host through shared memory instead of sockets."""

import functools
import itertools
import mmap
import os
import select
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, Traffic
from gnn_dist.cluster.placement import Placement

_ALIGN = 64  # bytes
_NAME = "gnn-dist-rows"
_CALLS = 64  # whose rows may be in use at once before their memory is given up


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
        self._notices = _Notices(inner, self._near)
        self._arenas = _Arenas(self._notices)
        self._room: _Arena | None = None
        self._open: dict[tuple[int, int], tuple[int, _Memory]] = {}
        self._call = 0
        self._meeting = _Meeting(inner, self._notices.theirs)

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
            memory = _Memory.open(self._notices.pids[rank], descriptor, size)
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


class _Notices:
    """What each rank tells those ``near`` it, in memory of its own: where the rows of a call lie,
    and which rows of others it has forgotten. Collective over ``inner``.

    A call's notice is overwritten two calls later, when all have met and therefore read it.
    """

    def __init__(self, inner: CollectiveExchange, near: Sequence[bool]) -> None:
        self._rank, self._size = inner.rank, inner.size
        self._width = 4 + 2 * inner.size
        mine = _Memory.create("gnn-dist-table", 8 * (2 * self._width + inner.size * _CALLS))
        said = inner.all_gather_object((os.getpid(), mine.descriptor))
        self.pids = [pid for pid, _ in said]
        self._memory = mine  # open for the others
        self._mine = np.frombuffer(mine.map, np.int64)
        self.theirs = {
            r: np.frombuffer(_Memory.open(pid, descriptor, mine.size).map, np.int64)
            for r, (pid, descriptor) in enumerate(said)
            if near[r]
        }

    def put(
        self, call: int, arena: "_Arena", near: np.ndarray, where: list[int], rows: list[int]
    ) -> None:
        row = self._row(self._mine, call)
        row[:4] = arena.slot, arena.version, arena.memory.descriptor, arena.memory.size
        row[4 + near] = where
        row[4 + self._size :] = rows

    def get(self, call: int, rank: int) -> tuple[int, int, int, int, int, int]:
        """Slot, version, descriptor and size of the memory, and where which number of rows lies."""
        row = self._row(self.theirs[rank], call).tolist()
        slot, version, descriptor, size = row[:4]
        return (
            slot,
            version,
            descriptor,
            size,
            row[4 + self._rank],
            row[4 + self._size + self._rank],
        )

    def release(self, call: int, rank: int) -> Callable[[], None]:
        """To be called when nothing of what ``rank`` sent in a call is used any more."""
        cells, cell = self._released(self._mine), (rank, call % _CALLS)
        return functools.partial(cells.__setitem__, cell, call + 1)

    def released(self, call: int, readers: Iterable[int]) -> bool:
        """Whether ``readers`` have forgotten what this rank sent in a call."""
        return all(
            self._released(self.theirs[r])[self._rank, call % _CALLS] == call + 1 for r in readers
        )

    def _row(self, table: np.ndarray, call: int) -> np.ndarray:
        return table[call % 2 * self._width :][: self._width]

    def _released(self, table: np.ndarray) -> np.ndarray:
        return table[2 * self._width :].reshape(self._size, _CALLS)


@dataclass(slots=True, eq=False)
class _Arena:
    """Memory that one call sends from. ``version`` is another where ``memory`` is."""

    slot: int
    version: int
    memory: "_Memory"
    call: int = -1
    readers: list[int] = field(default_factory=list)


class _Arenas:
    """What this rank sends from: as many as are in use at once."""

    def __init__(self, notices: _Notices) -> None:
        self._notices = notices
        self._all: list[_Arena] = []
        self._versions = itertools.count()

    def free(self, size: int) -> _Arena:
        """One of at least ``size`` bytes, which nobody reads."""
        for arena in self._all:
            if self._notices.released(arena.call, arena.readers):
                arena.readers = []
        idle = [arena for arena in self._all if not arena.readers]
        if idle:
            arena = max(idle, key=lambda a: a.memory.size)
        elif len(self._all) < _CALLS:
            arena = _Arena(len(self._all), next(self._versions), _Memory.create(_NAME, _ALIGN))
            self._all.append(arena)
        else:  # its readers keep it
            arena = min(self._all, key=lambda a: a.call)
            arena.version, arena.memory = next(self._versions), _Memory.create(_NAME, _ALIGN)
            arena.readers = []
        if arena.memory.reserve(size):
            arena.version = next(self._versions)
        return arena


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
        made = cls(descriptor, size)
        weakref.finalize(made, os.close, descriptor)
        return made

    @classmethod
    def open(cls, pid: int, descriptor: int, size: int) -> "_Memory":
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
        try:
            return cls(own, size)
        finally:
            os.close(own)  # the map holds the memory

    def reserve(self, size: int) -> bool:
        """Grow to at least ``size`` bytes, where nobody reads this memory; whether it had to."""
        if size <= self.size:
            return False
        self.size = -(-size * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.descriptor, self.size)
        self.map = mmap.mmap(self.descriptor, self.size)
        return True

    def places(self, parts: Sequence[Tensor]) -> list[int] | None:
        """Where contiguous parts begin in this memory, in bytes; None unless all lie in it."""
        start = np.frombuffer(self.map, np.uint8).ctypes.data
        where = [part.data_ptr() - start if part.numel() else 0 for part in parts]
        inside = (
            0 <= at <= at + part.nbytes <= self.size and part.is_contiguous()
            for at, part in zip(where, parts, strict=True)
        )
        return where if all(inside) else None

    def view(
        self, offset: int, rows: int, like: Tensor, then: Callable[[], None] | None = None
    ) -> Tensor:
        """Rows of the dtype and shape of those of ``like``, in place; ``then`` is called when
        nothing refers to them any more."""
        size = rows * like.shape[1:].numel() * like.element_size()
        if not size:
            return like.new_empty((rows, *like.shape[1:]))
        place = np.frombuffer(self.map, np.uint8, size, offset)
        if then is not None:
            weakref.finalize(place, then).atexit = False
        return torch.from_numpy(place).view(like.dtype).view(rows, *like.shape[1:])
