"""Normalisation as factors beside the pattern, so that what snapshots share stays binary.

A normalised adjacency is ``left · (A + loop) · right`` with diagonal ``left``, ``loop`` and
``right`` for each snapshot: degrees differ from one snapshot to the next even where edges do not,
so values that have the degrees multiplied in cannot be shared.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gnn_dist.dynamic.sequence import SnapshotSequence

Kind = Literal["gcn", "chebyshev"]


@dataclass(frozen=True, eq=False)
class Factors:
    """Diagonals of the snapshots of a group: float[N, S] each."""

    left: np.ndarray
    loop: np.ndarray
    right: np.ndarray

    def columns(self, columns: slice) -> "Factors":
        """Those of some of the snapshots."""
        return Factors(*(np.ascontiguousarray(a[:, columns]) for a in self.arrays()))

    def rows(self, rows: np.ndarray) -> "Factors":
        """Those of some of the nodes."""
        return Factors(*(np.ascontiguousarray(a[rows]) for a in self.arrays()))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.left, self.loop, self.right


def factors(sequence: SnapshotSequence, kind: Kind, dtype: np.dtype | type = np.float32) -> Factors:
    """Factors of every snapshot of a sequence: float[N, T].

    - ``gcn``: ``D^-1/2 (A + I) D^-1/2`` with weighted in-degrees that count the self-loop; a node
      with a self-loop of its own keeps that one (Kipf and Welling, ICLR 2017).
    - ``chebyshev``: ``-D^-1/2 A D^-1/2`` with weighted out-degrees and without self-loops, which is
      the symmetric Laplacian scaled with a largest eigenvalue of 2 (Defferrard et al., 2016).
    """
    num_nodes = sequence.num_nodes
    shape = (num_nodes, sequence.num_snapshots)
    left, loop, right = (np.empty(shape, dtype) for _ in range(3))
    for t, keys in enumerate(sequence.key_range(0, sequence.num_snapshots)):
        weight = sequence.weight(t, keys)
        dst = keys // num_nodes
        src = keys - dst * num_nodes
        values: np.ndarray = np.ones(keys.size) if weight is None else weight.astype(np.float64)
        own = src == dst
        extra: np.ndarray
        degree: np.ndarray
        if kind == "gcn":
            extra = np.ones(num_nodes)
            extra[dst[own]] = 0
            degree = np.bincount(dst, weights=values, minlength=num_nodes) + extra
            sign = 1.0
        else:
            extra = np.zeros(num_nodes)
            extra[dst[own]] = -values[own]
            other = np.where(own, 0.0, values)
            degree = np.bincount(src, weights=other, minlength=num_nodes)
            sign = -1.0
        root = np.zeros(num_nodes)
        np.power(degree, -0.5, out=root, where=degree > 0)
        left[:, t], loop[:, t], right[:, t] = sign * root, extra, root
    return Factors(left, loop, right)
