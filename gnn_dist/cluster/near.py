"""What the ranks of one host have in common: memory, notices about it, and a place to meet."""

import functools
import itertools
import mmap
import os
import select
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnn_dist.cluster.exchange import CollectiveExchange

_SLOTS = 64  # calls whose rows may be in use at once before their memory is given up
_FIXED = 5  # numbers of a notice that are not about one rank


class Memory:
    """Memory that other processes of this user can open by process and descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, name: str, size: int) -> "Memory":
        descriptor = os.memfd_create(name)
        os.ftruncate(descriptor, size)
        made = cls(descriptor, size)
        weakref.finalize(made, os.close, descriptor)
        return made

    @classmethod
    def open(cls, pid: int, descriptor: int, size: int) -> "Memory":
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


@dataclass(slots=True, eq=False)
class Arena:
    """Memory that one call sends from. ``version`` is another where ``memory`` is."""

    slot: int
    version: int
    memory: Memory
    call: int = -1
    readers: list[int] = field(default_factory=list)


class Notices:
    """What each rank tells those ``near`` it, in memory of its own: where the rows of a call lie,
    and which rows of others it has forgotten. Collective over ``inner``.

    A call's notice is overwritten two calls later, when all have met and therefore read it.
    """

    def __init__(self, inner: CollectiveExchange, near: Sequence[bool]) -> None:
        self._rank, self._size = inner.rank, inner.size
        self._width = _FIXED + 2 * inner.size
        mine = Memory.create("gnn-dist-table", 8 * (2 * self._width + inner.size * _SLOTS))
        said = inner.all_gather_object((os.getpid(), mine.descriptor))
        self.pids = [pid for pid, _ in said]
        self._memory = mine  # open for the others
        self._mine = np.frombuffer(mine.map, np.int64)
        self.theirs = {
            r: np.frombuffer(Memory.open(pid, descriptor, mine.size).map, np.int64)
            for r, (pid, descriptor) in enumerate(said)
            if near[r]
        }

    def put(
        self, arena: Arena, mark: int, near: np.ndarray, where: list[int], rows: list[int]
    ) -> None:
        """Of the call ``arena.call``; ``mark`` is the same for rows of one dtype and shape."""
        row = self._row(self._mine, arena.call)
        memory = arena.memory
        row[:_FIXED] = arena.slot, arena.version, memory.descriptor, memory.size, mark
        row[_FIXED + near] = where
        row[_FIXED + self._size :] = rows

    def get(self, call: int, rank: int) -> tuple[int, ...]:
        """Slot, version, descriptor and size of the memory, the mark of its rows, where those for
        this rank lie and how many they are."""
        row = self._row(self.theirs[rank], call).tolist()
        return *row[:_FIXED], row[_FIXED + self._rank], row[_FIXED + self._size + self._rank]

    def release(self, call: int, rank: int, slot: int) -> Callable[[], None]:
        """To be called when nothing of what ``rank`` sent from a slot is used any more."""
        return functools.partial(_raise_to, self._released(self._mine), (rank, slot), call + 1)

    def released(self, arena: Arena) -> bool:
        """Whether its readers have forgotten what this rank sent from it last."""
        cells = (self._released(self.theirs[r])[self._rank, arena.slot] for r in arena.readers)
        return all(cell == arena.call + 1 for cell in cells)

    def _row(self, table: np.ndarray, call: int) -> np.ndarray:
        return table[call % 2 * self._width :][: self._width]

    def _released(self, table: np.ndarray) -> np.ndarray:
        return table[2 * self._width :].reshape(self._size, _SLOTS)


def _raise_to(cells: np.ndarray, cell: tuple[int, int], call: int) -> None:
    """The slot may have been given to a later call, whose readers were quicker."""
    if cells[cell] < call:
        cells[cell] = call


class Arenas:
    """What this rank sends from: as many as are in use at once."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._all: list[Arena] = []
        self._versions = itertools.count()

    def free(self, size: int) -> Arena:
        """One of at least ``size`` bytes, which nobody reads."""
        for arena in self._all:
            if self._notices.released(arena):
                arena.readers = []
        idle = [arena for arena in self._all if not arena.readers]
        arena = max(idle, key=lambda a: a.memory.size) if idle else self._new()
        if arena.memory.reserve(size):
            arena.version = next(self._versions)
        return arena

    def _new(self) -> Arena:
        memory = Memory.create("gnn-dist-rows", mmap.PAGESIZE)
        arena = Arena(len(self._all), next(self._versions), memory)
        if len(self._all) < _SLOTS:
            self._all.append(arena)
        else:  # in place of the oldest, which its readers keep
            arena.slot = min(self._all, key=lambda a: a.call).slot
            self._all[arena.slot] = arena
        return arena


class Meeting:
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

    def hold(self, call: int) -> None:
        """Return once all have come to this call; within a collective of ``inner``."""
        number = call % 256
        limit = self._inner.limit
        end = None if limit is None else time.monotonic() + limit
        try:
            for writer in self._writers:
                os.write(writer, bytes([number]))
        except BrokenPipeError:
            raise RuntimeError("a rank of this host has closed its pipe") from None
        for reader, poll in self._readers.items():
            left = None if end is None else max(0.0, 1000 * (end - time.monotonic()))
            if not poll.poll(left):
                raise RuntimeError("a rank of this host did not come in time")
            said = os.read(reader, 1)
            if not said:
                raise RuntimeError("a rank of this host has closed its pipe")
            if said[0] != number:
                raise RuntimeError("a rank of this host is at another meeting; one has failed")


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
