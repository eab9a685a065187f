"""Asking the owners of nodes about them: over an exchange, or all in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gnn_dist.cluster import Exchange, Placement
from gnn_dist.storage import PartitionedGraph


@dataclass(frozen=True, eq=False)
class Want:
    """One thing to ask for.

    Attributes:
        ids: int64[n] global ids, ascending.
        read: what an owner answers: ``read(part, rows)`` for rows int64[m] within the part, an
            array ``dtype[m, *shape]``.
        dtype, shape: of one answered row.
    """

    ids: np.ndarray
    read: Callable[[int, np.ndarray], np.ndarray]
    dtype: np.dtype
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(slots=True)
class Traffic:
    """What asking cost this rank: rounds, and ids and bytes to and from *other* ranks."""

    rounds: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


Add = Callable[[int, np.ndarray, np.ndarray, np.ndarray], None]
"""``add(part, rows int64[m] within the part, values float64[m, c], total float64[N])``."""


class Directory(Protocol):
    """Whoever answers for nodes of any part."""

    def ask(self, wants: Sequence[Want]) -> list[np.ndarray]:
        """One array for each want, rows in the order of its ids."""
        ...

    def accumulate(self, ids: np.ndarray, values: np.ndarray, add: Add) -> np.ndarray:
        """Let the owner of each id (int64[n], ascending) add its share to float64[N] zeros.

        ``values`` is float64[n, c], handed to ``add`` with the rows. Returns the sum of all shares.
        """
        ...


class AllParts:
    """The directory of a process that reads every part itself, to plan without a cluster."""

    def __init__(self, graph: PartitionedGraph) -> None:
        self._graph = graph
        self._offsets = np.asarray(graph.offsets)

    def ask(self, wants: Sequence[Want]) -> list[np.ndarray]:
        answers = []
        for want in wants:
            answer = np.empty((want.ids.size, *want.shape), want.dtype)
            for part, at in _by_part(want.ids, self._offsets):
                answer[at] = want.read(part, want.ids[at] - self._offsets[part])
            answers.append(answer)
        return answers

    def accumulate(self, ids: np.ndarray, values: np.ndarray, add: Add) -> np.ndarray:
        total = np.zeros(self._graph.num_nodes)
        for part, at in _by_part(ids, self._offsets):
            add(part, ids[at] - self._offsets[part], values[at], total)
        return total


def _by_part(ids: np.ndarray, offsets: np.ndarray) -> list[tuple[int, slice]]:
    """The parts of ascending ids, each with the slice of its ids."""
    cuts = np.searchsorted(ids, offsets)
    return [
        (part, slice(cuts[part], cuts[part + 1]))
        for part in range(offsets.size - 1)
        if cuts[part] < cuts[part + 1]
    ]


class Owners:
    """Sends ids to the ranks that serve their parts and returns the answers.

    A request to rank ``s`` is ``int64``: one number of ids for each want, the number of ids that
    this rank asks of anybody, then the ids. An answer is the rows' bytes, so rows of any type
    travel together, as they are stored. Every rank makes every round; all ranks alike leave out
    the answers where nobody asked for anything.
    """

    def __init__(self, graph: PartitionedGraph, placement: Placement, exchange: Exchange) -> None:
        self.traffic = Traffic()
        self._offsets = np.asarray(graph.offsets)
        self._exchange = exchange
        servers = placement.servers()
        self._parts_of = [
            [p for p, server in enumerate(servers) if server == rank]
            for rank in range(placement.size)
        ]  # this rank's own entry: all parts on its host, for any of which it may be asked

    def ask(self, wants: Sequence[Want]) -> list[np.ndarray]:
        """As ``Directory`` says; as many wants on every rank, in the same order. Collective."""
        cuts = [np.searchsorted(want.ids, self._offsets) for want in wants]
        asked = [
            [
                np.concatenate([_NO_IDS, *(w.ids[c[p] : c[p + 1]] for p in parts)])
                for w, c in zip(wants, cuts, strict=True)
            ]
            for parts in self._parts_of
        ]
        total = sum(want.ids.size for want in wants)
        messages = [
            np.concatenate([np.array([*(i.size for i in ids), total]), *ids]) for ids in asked
        ]
        received = self._swap(messages)
        head = len(wants)
        self.traffic.rounds += 1
        self.traffic.requests += sum(
            m.size - head - 1 for r, m in enumerate(messages) if r != self._exchange.rank
        )
        if not any(message[head] for message in received):
            return [np.empty((0, *w.shape), w.dtype) for w in wants]
        answers = [self._answer(message, wants) for message in received]
        sizes = [
            sum(i.size * w.row_bytes for i, w in zip(ids, wants, strict=True)) for ids in asked
        ]
        return self._unpack(self._swap(answers, sizes), asked, cuts, wants)

    def _swap(
        self, messages: Sequence[np.ndarray], receive: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """All-to-all of one message for each rank, with its bytes counted."""
        tensors = [torch.from_numpy(message) for message in messages]
        received = [t.numpy() for t in self._exchange.all_to_all(tensors, receive=receive)]
        for rank, (out, come) in enumerate(zip(messages, received, strict=True)):
            if rank != self._exchange.rank:
                self.traffic.sent_bytes += out.nbytes
                self.traffic.received_bytes += come.nbytes
        return received

    def accumulate(self, ids: np.ndarray, values: np.ndarray, add: Add) -> np.ndarray:
        """As ``Directory`` says. Collective: one round, of ids with values and of sums."""
        self.traffic.rounds += 1
        columns = values.shape[1]
        cuts = np.searchsorted(ids, self._offsets)
        messages = []
        for parts in self._parts_of:
            mine = np.concatenate([_NO_IDS, *(np.arange(cuts[p], cuts[p + 1]) for p in parts)])
            messages.append(np.concatenate([ids[mine, None], values[mine].view(np.int64)], axis=1))
        answers = []
        for received in self._swap(messages):
            theirs = received[:, 0].copy()
            sums = np.zeros(self._offsets[-1])
            for part, at in _by_part(theirs, self._offsets):
                share = received[at, 1 : 1 + columns].copy().view(np.float64)
                add(part, theirs[at] - self._offsets[part], share, sums)
            touched = np.flatnonzero(sums)
            answers.append(np.stack([touched, sums[touched].view(np.int64)], axis=1))
        total = np.zeros(self._offsets[-1])
        for received in self._swap(answers):
            total[received[:, 0]] += received[:, 1].copy().view(np.float64)
        return total

    def _answer(self, message: np.ndarray, wants: Sequence[Want]) -> np.ndarray:
        counts, ids = message[: len(wants)], message[len(wants) + 1 :]
        out = np.empty(
            sum(int(n) * w.row_bytes for n, w in zip(counts, wants, strict=True)), np.uint8
        )
        at = 0
        for part_ids, want in zip(np.split(ids, np.cumsum(counts)[:-1]), wants, strict=True):
            cut = np.searchsorted(part_ids, self._offsets)
            for part in self._parts_of[self._exchange.rank]:
                rows = part_ids[cut[part] : cut[part + 1]] - self._offsets[part]
                if rows.size:
                    answer = np.ascontiguousarray(want.read(part, rows), dtype=want.dtype)
                    data = answer.reshape(-1).view(np.uint8)
                    out[at : at + data.size] = data
                    at += data.size
        assert at == out.size, "asked for rows of a part that this rank does not serve"
        return out

    def _unpack(
        self,
        replies: Sequence[np.ndarray],
        asked: Sequence[Sequence[np.ndarray]],
        cuts: Sequence[np.ndarray],
        wants: Sequence[Want],
    ) -> list[np.ndarray]:
        results = [np.empty((want.ids.size, *want.shape), want.dtype) for want in wants]
        for rank, reply in enumerate(replies):
            at = 0
            for want, ids, cut, result in zip(wants, asked[rank], cuts, results, strict=True):
                size = ids.size * want.row_bytes
                rows = reply[at : at + size].view(want.dtype).reshape(ids.size, *want.shape)
                at += size
                row = 0
                for part in self._parts_of[rank]:
                    count = cut[part + 1] - cut[part]
                    result[cut[part] : cut[part + 1]] = rows[row : row + count]
                    row += count
        return results


_NO_IDS = np.empty(0, np.int64)
