"""Moving arrays between ranks: one process, or collectives over gloo and NCCL."""

import pickle
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnn_dist.cluster.watch import Watch


@dataclass
class Traffic:
    """What one exchange has moved between ranks. A rank's share for itself is not counted."""

    rounds: int = 0
    """Collectives that carried payload."""
    size_rounds: int = 0
    """Collectives that only agreed on sizes."""
    bytes_sent: int = 0
    bytes_received: int = 0

    def copy(self) -> "Traffic":
        return Traffic(self.rounds, self.size_rounds, self.bytes_sent, self.bytes_received)

    def since(self, earlier: "Traffic") -> "Traffic":
        """The difference to an earlier ``copy()``."""
        return Traffic(
            self.rounds - earlier.rounds,
            self.size_rounds - earlier.size_rounds,
            self.bytes_sent - earlier.bytes_sent,
            self.bytes_received - earlier.bytes_received,
        )


class Exchange(Protocol):
    """Collectives among ``size`` ranks.

    Every rank enters the same calls in the same order, one thread at a time; two threads that
    want to overlap use two exchanges. A rank that stops answering is a ``WorkerError`` that
    names it, within the time limit of the world.
    """

    rank: int
    size: int
    traffic: Traffic

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Send ``parts[r]`` to rank ``r``; the answer holds what each rank sent here.

        Dtype and trailing shape must be the same for all parts on all ranks; first dimensions
        may differ, and may be zero. ``receive`` tells the rows that each rank will send, where
        that is known: it saves the round that agrees on sizes, and must then be given on every
        rank. A rank's part for itself is returned as it is, not copied.
        """
        ...

    def room(self, rows: int, like: Tensor) -> Tensor:
        """Where the rows that the next ``all_to_all`` sends are best written, part after part:
        uninitialised, [rows, ...] with dtype, device and trailing shape of ``like``."""
        ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor; first dimensions may differ."""
        ...

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's value (small: it is pickled)."""
        ...

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place; the same bits on every rank. Returns ``tensor``."""
        ...

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Maximum over ranks, in place. Returns ``tensor``."""
        ...

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite ``tensor`` with that of ``source``, in place. Returns ``tensor``."""
        ...

    def barrier(self) -> None:
        """Return once every rank has come here."""
        ...


class LocalExchange:
    """The exchange of a single process: everything comes back as it is."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.traffic = Traffic()

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        check_parts(parts, self.size)
        assert receive is None or list(receive) == [parts[0].shape[0]]
        return [parts[0]]

    def room(self, rows: int, like: Tensor) -> Tensor:
        return like.new_empty((rows, *like.shape[1:]))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        assert source == 0
        return tensor

    def barrier(self) -> None:
        return None


class CollectiveExchange:
    """Collectives of a process group: gloo for tensors on the CPU, NCCL for those on a GPU.

    A group for tensors on a GPU is made with the backend ``cpu:gloo,cuda:nccl``, since sizes are
    agreed on through the CPU. ``group`` None is the default group. Tensors travel as bytes, so
    every dtype is carried. With a ``watch``, a collective that fails or takes too long is a
    ``WorkerError`` that names the rank that is missing; without one, it says what torch said.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        name: str = "exchange",
        watch: Watch | None = None,
    ) -> None:
        self.group = group if group is not None else dist.group.WORLD
        self.name = name
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        self.traffic = Traffic()
        self._members = dist.get_process_group_ranks(self.group)
        self._watch = watch
        self._busy = threading.Lock()

    def all_to_all(
        self, parts: Sequence[Tensor], *, receive: Sequence[int] | None = None
    ) -> list[Tensor]:
        check_parts(parts, self.size)
        mine = parts[self.rank]
        if self.size == 1:
            return [mine]
        with self.collective("all_to_all"):
            send = [0 if r == self.rank else part.shape[0] for r, part in enumerate(parts)]
            if receive is None:
                take = self._agree_on_sizes(send, mine)
            else:
                assert len(receive) == self.size
                take = [0 if r == self.rank else rows for r, rows in enumerate(receive)]
            row_shape = mine.shape[1:]
            row_bytes = row_shape.numel() * mine.element_size()
            sent = _join([part for r, part in enumerate(parts) if r != self.rank], mine)
            got = torch.empty((sum(take), *row_shape), dtype=mine.dtype, device=mine.device)
            if row_bytes:
                dist.all_to_all_single(
                    _as_bytes(got),
                    _as_bytes(sent),
                    [rows * row_bytes for rows in take],
                    [rows * row_bytes for rows in send],
                    group=self.group,
                )
                self._count(sum(send) * row_bytes, sum(take) * row_bytes)
        out = list(got.split(take))
        out[self.rank] = mine
        return out

    def room(self, rows: int, like: Tensor) -> Tensor:
        return like.new_empty((rows, *like.shape[1:]))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        if self.size == 1:
            return [tensor]
        with self.collective("all_gather"):
            rows = self._gather_sizes(tensor)
            row_shape = tensor.shape[1:]
            row_bytes = row_shape.numel() * tensor.element_size()
            longest = max(rows)
            if longest * row_bytes == 0:
                return [tensor.new_empty((r, *row_shape)) for r in rows]
            padded = tensor.new_zeros((longest, *row_shape))
            padded[: tensor.shape[0]] = tensor
            every = tensor.new_empty((self.size * longest, *row_shape))
            shares = list(_as_bytes(every).chunk(self.size))
            dist.all_gather(shares, _as_bytes(padded), group=self.group)
            share = longest * row_bytes * (self.size - 1)
            self._count(share, share)
        return [every[r * longest : r * longest + n] for r, n in enumerate(rows)]

    def all_gather_object(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return [pickle.loads(x.numpy().tobytes()) for x in self.all_gather(data)]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        if self.size > 1 and tensor.numel():
            with self.collective("broadcast"):
                dist.broadcast(_as_bytes(tensor), self._members[source], group=self.group)
                size = tensor.numel() * tensor.element_size()
                self._count(*((size, 0) if self.rank == source else (0, size)))
        return tensor

    def barrier(self) -> None:
        if self.size > 1:
            with self.collective("barrier"):
                dist.all_reduce(torch.zeros(1, dtype=torch.int32), group=self.group)
                self.traffic.size_rounds += 1

    def _all_reduce(self, tensor: Tensor, op: Any) -> Tensor:
        if self.size > 1 and tensor.numel():
            with self.collective("all_reduce"):
                dist.all_reduce(tensor, op=op, group=self.group)
                size = tensor.numel() * tensor.element_size()
                moved = 2 * size * (self.size - 1) // self.size
                self._count(moved, moved)
        return tensor

    def _agree_on_sizes(self, send: Sequence[int], like: Tensor) -> list[int]:
        """The rows that each rank will send here; refuses parts of another dtype or shape."""
        mark = signature(like)
        asked = torch.tensor([[rows, mark] for rows in send], dtype=torch.int64)
        answer = torch.empty_like(asked)
        dist.all_to_all_single(answer, asked, group=self.group)
        self.traffic.size_rounds += 1
        self._check_marks(answer[:, 1], mark, like)
        return [0 if r == self.rank else rows for r, rows in enumerate(answer[:, 0].tolist())]

    def _gather_sizes(self, like: Tensor) -> list[int]:
        mark = signature(like)
        mine = torch.tensor([like.shape[0], mark], dtype=torch.int64)
        answer = torch.empty(self.size, 2, dtype=torch.int64)
        dist.all_gather(list(answer.unbind(0)), mine, group=self.group)
        self.traffic.size_rounds += 1
        self._check_marks(answer[:, 1], mark, like)
        return answer[:, 0].tolist()

    def _check_marks(self, marks: Tensor, mark: int, like: Tensor) -> None:
        other = (marks != mark).nonzero().flatten().tolist()
        assert not other, (
            f"{self.name}: rank {self._members[other[0]]} sends rows of another dtype or shape "
            f"than rank {self._members[self.rank]}, which has {like.dtype} {tuple(like.shape[1:])}"
        )

    def _count(self, sent: int, received: int) -> None:
        self.traffic.rounds += 1
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += received

    @property
    def limit(self) -> float | None:
        """The time limit of a collective in seconds, where there is a watch."""
        return None if self._watch is None else self._watch.limit

    @contextmanager
    def collective(self, operation: str) -> Iterator[None]:
        """Around whatever all ranks do together, with a ``RuntimeError`` for what goes wrong."""
        assert self._busy.acquire(blocking=False), (
            f"{self.name}: two threads are in one exchange at once; give each its own"
        )
        try:
            if self._watch is None:
                yield
            else:
                with self._watch.collective(self.name, operation, self._members):
                    yield
        finally:
            self._busy.release()


def request(
    exchange: Exchange,
    ids: Sequence[Tensor],
    answer: Callable[[int, Tensor], Sequence[Tensor]],
) -> list[list[Tensor]]:
    """Ask each rank about ``ids[r]`` (int64[n_r]); ``answer(rank, ids)`` serves what others ask.

    ``answer`` gives tensors with one row an id, the same number of tensors on every rank. Returns,
    for each rank asked, its answers in the order of the ids. One size round, one round of ids and
    one round for each answered tensor: the sizes of the answers are known from the questions.
    """
    asked = exchange.all_to_all(ids)
    served = [answer(rank, theirs) for rank, theirs in enumerate(asked)]
    receive = [x.shape[0] for x in ids]
    columns = [
        exchange.all_to_all([rows[k] for rows in served], receive=receive)
        for k in range(len(served[0]))
    ]
    return [[column[rank] for column in columns] for rank in range(exchange.size)]


def check_parts(parts: Sequence[Tensor], size: int) -> None:
    """That they can be sent to ``size`` ranks."""
    assert len(parts) == size, f"{len(parts)} parts for {size} ranks"
    first = parts[0]
    for part in parts:
        assert part.dim() >= 1, "a part needs at least one dimension"
        assert part.dtype == first.dtype, f"parts of dtypes {first.dtype} and {part.dtype}"
        assert part.shape[1:] == first.shape[1:], f"parts {first.shape} and {part.shape}"
        assert part.device == first.device, f"parts on {first.device} and {part.device}"


def _join(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """The parts one behind the other; no copy where they already lie so in one tensor."""
    parts = [p.contiguous() for p in parts if p.numel()]
    if not parts:
        return like.new_empty((0, *like.shape[1:]))
    first = parts[0]
    end = first.data_ptr()
    for part in parts:
        if (
            part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or part.data_ptr() != end
        ):
            return torch.cat(parts)
        end += part.numel() * part.element_size()
    rows = sum(p.shape[0] for p in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


def _as_bytes(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous()
    return tensor.detach().view(-1).view(torch.uint8)


def signature(tensor: Tensor) -> int:
    """The same for tensors whose rows are alike."""
    return zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape[1:])}".encode())
