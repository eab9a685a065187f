"""Homes: which rank is nearest to a node, so that its seeds and its inference fall there."""

from dataclasses import dataclass

import numpy as np

from gnn_dist.cluster import Placement
from gnn_dist.kernels.stitch import group


@dataclass(frozen=True, eq=False)
class Homes:
    """Cuts the global ids into contiguous pieces, each with a rank of the owner's host.

    Whole parts go to one rank where a host has at least as many parts as ranks; else a part is cut
    evenly between ranks. A rank may have no piece (more hosts than parts).

    Attributes:
        starts: int64[k], first global id of each piece, ascending, beginning with 0.
        ranks: int64[k], the rank of each piece.
        num_nodes: end of the last piece.
    """

    starts: np.ndarray
    ranks: np.ndarray
    num_nodes: int

    @classmethod
    def of(cls, offsets: np.ndarray, placement: Placement) -> "Homes":
        """``offsets`` int64[P + 1]: part p owns ids offsets[p] .. offsets[p + 1] - 1."""
        pieces: list[tuple[int, int]] = []
        for host in sorted(set(placement.host_of_part)):
            parts = np.flatnonzero(np.asarray(placement.host_of_part) == host)
            ranks = np.flatnonzero(np.asarray(placement.host_of_rank) == host)
            if parts.size >= ranks.size:
                for rank, group in zip(ranks, np.array_split(parts, ranks.size), strict=True):
                    pieces += [(int(offsets[part]), int(rank)) for part in group]
            else:
                for part, group in zip(parts, np.array_split(ranks, parts.size), strict=True):
                    first, stop = int(offsets[part]), int(offsets[part + 1])
                    cuts = first + (stop - first) * np.arange(group.size) // group.size
                    pieces += [(int(cut), int(r)) for cut, r in zip(cuts, group, strict=True)]
        starts, ranks_ = np.array(sorted(pieces), np.int64).reshape(-1, 2).T
        return cls(starts, ranks_, int(offsets[-1]))

    def __call__(self, global_ids: np.ndarray) -> np.ndarray:
        """The home rank of each node: int64[n]."""
        return self.ranks[np.searchsorted(self.starts, global_ids, side="right") - 1]

    def group(self, global_ids: np.ndarray, num_ranks: int) -> list[np.ndarray]:
        """The positions of ``global_ids`` (int64[n]) at home on each rank, ascending."""
        ends = np.append(self.starts, self.num_nodes)
        order, bounds = group(global_ids, ends, self.ranks, num_ranks)
        return np.split(order, bounds[1:-1])

    def ranges(self, rank: int) -> list[tuple[int, int]]:
        """The half-open ranges of global ids at home on ``rank``."""
        stops = np.append(self.starts[1:], self.num_nodes)
        return [
            (int(self.starts[k]), int(stops[k]))
            for k in np.flatnonzero(self.ranks == rank)
            if stops[k] > self.starts[k]
        ]

    def counts(self, num_ranks: int) -> np.ndarray:
        """Nodes at home on each rank: int64[num_ranks]."""
        sizes = np.diff(np.append(self.starts, self.num_nodes))
        return np.bincount(self.ranks, weights=sizes, minlength=num_ranks).astype(np.int64)
