"""Point-to-point messages between ranks, with shapes known on both sides."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnn_dist.cluster import Exchange, World
from gnn_dist.errors import WorkerError
from gnn_dist.strategies.timing import link_speed


class Arrival(Protocol):
    """A message on its way."""

    def wait(self) -> Tensor: ...


class Link(Protocol):
    """Messages to and from other ranks. Every message has a tag of its own."""

    rank: int

    def send(self, tensor: Tensor, to: int, tag: int, what: str) -> None:
        """Begin to send; ``tensor`` must not change until ``flush``."""
        ...

    def receive(
        self, shape: Sequence[int], dtype: torch.dtype, source: int, tag: int, what: str
    ) -> Arrival:
        """Begin to receive."""
        ...

    def flush(self) -> None:
        """Return once everything has been sent."""
        ...


class NoLink:
    """The link of a single rank: there is nobody to talk to."""

    rank = 0

    def send(self, tensor: Tensor, to: int, tag: int, what: str) -> None:
        raise AssertionError(f"{what}: a message of rank 0 to rank {to}, which does not exist")

    def receive(
        self, shape: Sequence[int], dtype: torch.dtype, source: int, tag: int, what: str
    ) -> Arrival:
        raise AssertionError(f"{what}: a message from rank {source}, which does not exist")

    def flush(self) -> None:
        return None


class GroupLink:
    """Messages over a gloo group of ``torch.distributed``, through host memory on a GPU.

    NCCL matches messages by their order alone; a schedule orders them by need, so they have tags.
    Waiting is bounded by ``timeout`` seconds; what goes past it is a ``WorkerError`` that names
    the message and the rank.
    """

    def __init__(self, world: World) -> None:
        self.rank = world.rank
        self.bytes_sent = 0
        self.messages = 0
        self._world = world
        self._limit = timedelta(seconds=world.timeout)
        self._group = dist.new_group(range(world.size), timeout=self._limit, backend="gloo")
        self._sent: list[tuple[Any, Tensor, int, str]] = []

    def send(self, tensor: Tensor, to: int, tag: int, what: str) -> None:
        tensor = tensor.cpu()
        with self._told(f"send {what}", to):
            work = dist.isend(tensor, group=self._group, tag=tag, group_dst=to)
        self._sent.append((work, tensor, to, what))
        self.bytes_sent += tensor.numel() * tensor.element_size()
        self.messages += 1

    def receive(
        self, shape: Sequence[int], dtype: torch.dtype, source: int, tag: int, what: str
    ) -> Arrival:
        pinned = self._world.device.type == "cuda"
        into = torch.empty(tuple(shape), dtype=dtype, pin_memory=pinned)
        with self._told(f"receive {what}", source):
            work = dist.irecv(into, group=self._group, tag=tag, group_src=source)
        return _Arrival(self, work, into, source, what, self._world.device)

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        for work, _, to, what in sent:
            self._wait(work, f"send {what}", to)

    def close(self) -> None:
        dist.destroy_process_group(self._group)

    def _wait(self, work: Any, what: str, peer: int) -> None:
        with self._told(what, peer):
            try:
                finished = work.wait(self._limit)
            except RuntimeError as error:
                if self._world.watch is not None:
                    raise
                raise WorkerError(f"rank {self.rank}: {what} (rank {peer}): {error}") from error
            if finished is False:
                raise RuntimeError(f"no answer within {self._limit.total_seconds():g} s")

    def _told(self, what: str, peer: int) -> AbstractContextManager[None]:
        watch = self._world.watch
        if watch is None:
            return nullcontext()
        return watch.collective("pipeline", what, sorted({self.rank, peer}))


class _Arrival:
    def __init__(
        self,
        link: GroupLink,
        work: Any,
        into: Tensor,
        source: int,
        what: str,
        device: torch.device,
    ) -> None:
        self._link, self._work, self._into, self._device = link, work, into, device
        self._source, self._what = source, what

    def wait(self) -> Tensor:
        self._link._wait(self._work, f"receive {self._what}", self._source)
        return self._into.to(self._device, non_blocking=True)


def measure_link(link: Link, control: Exchange) -> tuple[float, float]:
    """``link_speed`` of messages that every rank sends to the next one at once. Collective."""
    after, before = (control.rank + 1) % control.size, (control.rank - 1) % control.size

    def once(size: int) -> float:
        message = torch.zeros(max(size, 1), dtype=torch.uint8)
        control.barrier()
        start = time.perf_counter()
        arrival = link.receive(
            message.shape, torch.uint8, before, 0, "a message that measures the link"
        )
        link.send(message, after, 0, "a message that measures the link")
        arrival.wait()
        link.flush()
        return time.perf_counter() - start

    return link_speed(once, control)
