"""``Owners``: asks the ranks that own nodes for something about them, in one round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """What one round cost this rank; ids and bytes to and from *other* ranks."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Owners:
    """Sends ids to the ranks that serve their parts and returns the answers.

    A request to rank ``s`` is ``int64``: one number of ids for each want, the number of ids that
    this rank asks of anybody, then the ids. An answer is the rows' bytes, so rows of any type
    travel together, as they are stored. Every rank makes every round; all ranks alike leave out
    the answers where nobody asked for anything.
    """

    def __init__(self, graph: PartitionedGraph, placement: Placement, exchange: Exchange) -> None:
        self._offsets = np.asarray(graph.offsets)
        self._exchange = exchange
        servers = placement.servers()
        self._parts_of = [
            [p for p, server in enumerate(servers) if server == rank]
            for rank in range(placement.size)
        ]  # this rank's own entry: all parts on its host, for any of which it may be asked

    def ask(self, wants: Sequence[Want]) -> tuple[list[np.ndarray], Traffic]:
        """One round for all ``wants`` (as many on every rank, in the same order). Collective.

        Returns one array for each want, rows in the order of its ids, and the traffic.
        """
        cuts = [np.searchsorted(want.ids, self._offsets) for want in wants]
        asked = [
            [np.concatenate([_NO_IDS, *(w.ids[c[p] : c[p + 1]] for p in parts)])
             for w, c in zip(wants, cuts, strict=True)]
            for parts in self._parts_of
        ]  # fmt: skip
        total = sum(want.ids.size for want in wants)
        messages = [
            np.concatenate([np.array([*(i.size for i in ids), total]), *ids]) for ids in asked
        ]
        received = [
            t.numpy() for t in self._exchange.all_to_all([torch.from_numpy(m) for m in messages])
        ]
        me, head = self._exchange.rank, len(wants)
        traffic = Traffic(
            sum(m.size - head - 1 for r, m in enumerate(messages) if r != me),
            sum(m.nbytes for r, m in enumerate(messages) if r != me),
            sum(m.nbytes for r, m in enumerate(received) if r != me),
        )
        if not any(message[head] for message in received):
            return [np.empty((0, *w.shape), w.dtype) for w in wants], traffic
        answers = [self._answer(message, wants) for message in received]
        sizes = [
            sum(i.size * w.row_bytes for i, w in zip(ids, wants, strict=True)) for ids in asked
        ]
        replies = [t.numpy() for t in self._exchange.all_to_all(answers, receive=sizes)]
        traffic.sent_bytes += sum(a.numel() for r, a in enumerate(answers) if r != me)
        traffic.received_bytes += sum(r.size for i, r in enumerate(replies) if i != me)
        return self._unpack(replies, asked, cuts, wants), traffic

    def _answer(self, message: np.ndarray, wants: Sequence[Want]) -> torch.Tensor:
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
        return torch.from_numpy(out)

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
