"""How good a partition is: edge cut, halos, balance."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gnn_dist.graph import Graph
from gnn_dist.kernels import partition as kernels

if TYPE_CHECKING:
    from gnn_dist.storage import PartitionedGraph


@dataclass(frozen=True, eq=False)
class Quality:
    """Counts of each part, int64[P] each.

    Attributes:
        nodes: nodes owned.
        edges: in-edges of the nodes owned.
        train: training nodes owned (0 where the graph has no such split).
        halo: distinct sources that other parts own.
        cut: in-edges whose source another part owns.
    """

    nodes: np.ndarray
    edges: np.ndarray
    train: np.ndarray
    halo: np.ndarray
    cut: np.ndarray

    @property
    def num_parts(self) -> int:
        return self.nodes.size

    @property
    def cut_edges(self) -> int:
        return int(self.cut.sum())

    @property
    def cut_fraction(self) -> float:
        """Cut edges over all edges; 0 where there are none."""
        return self.cut_edges / max(1, int(self.edges.sum()))

    @property
    def node_balance(self) -> float:
        """Largest part over the mean of parts; 1 is even."""
        return _balance(self.nodes)

    @property
    def edge_balance(self) -> float:
        return _balance(self.edges)

    @property
    def train_balance(self) -> float:
        return _balance(self.train)

    @property
    def replication(self) -> float:
        """Nodes owned and in halos over nodes owned: copies of a node on average."""
        return float((self.nodes.sum() + self.halo.sum()) / self.nodes.sum())

    def as_dict(self) -> dict[str, Any]:
        """For JSON: totals, balances, and the counts of each part as lists."""
        return {
            "parts": self.num_parts,
            "cut_edges": self.cut_edges,
            "cut_fraction": self.cut_fraction,
            "replication": self.replication,
            "node_balance": self.node_balance,
            "edge_balance": self.edge_balance,
            "train_balance": self.train_balance,
            "nodes": self.nodes.tolist(),
            "edges": self.edges.tolist(),
            "train": self.train.tolist(),
            "halo": self.halo.tolist(),
            "cut": self.cut.tolist(),
        }

    def table(self) -> str:
        """Lines for people: one a part, then the balance (max / mean) and the totals."""
        columns = ("nodes", "edges", "train", "halo", "cut")
        counts = [getattr(self, name) for name in columns]
        rows: list[tuple[str, ...]] = [("part", *columns)]
        rows += [(str(p), *(f"{c[p]:,}" for c in counts)) for p in range(self.num_parts)]
        rows += [("max/mean", *(f"{_balance(c):.3f}" for c in counts))]
        width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, width, strict=True)) for row in rows]
        return "\n".join(
            [
                *lines,
                f"edge cut {self.cut_edges:,} of {int(self.edges.sum()):,} "
                f"({self.cut_fraction:.2%}), replication {self.replication:.3f}",
            ]
        )


@overload
def quality(graph: Graph, assignment: np.ndarray) -> Quality: ...
@overload
def quality(graph: "PartitionedGraph") -> Quality: ...
def quality(graph: "Graph | PartitionedGraph", assignment: np.ndarray | None = None) -> Quality:
    """Quality of ``assignment`` int[N] of a graph, or of a graph that is cut already."""
    if not isinstance(graph, Graph):
        return _of_parts(graph)
    assert assignment is not None
    assignment = np.asarray(assignment, np.int32)
    num_parts = int(assignment.max()) + 1
    by_part = np.argsort(assignment, kind="stable")
    cut, halo = kernels.cut_and_halo(graph.indptr, graph.indices, assignment, by_part, num_parts)
    train = graph.splits.get("train", np.empty(0, np.int64))
    edges = np.bincount(assignment, graph.in_degrees(), minlength=num_parts)
    return Quality(
        nodes=np.bincount(assignment, minlength=num_parts),
        edges=edges.astype(np.int64),
        train=np.bincount(assignment[train], minlength=num_parts),
        halo=halo,
        cut=cut,
    )


def _of_parts(graph: "PartitionedGraph") -> Quality:
    manifest = graph.manifest
    if manifest is not None:  # counted when it was written; the parts may be on another host
        rows = [(part.num_edges, part.halo, part.cut) for part in manifest.parts]
    else:
        rows = []
        for index in range(graph.num_parts):
            part = graph.part(index)
            foreign = (part.indices < part.first) | (part.indices >= part.last)
            rows.append((part.num_edges, part.halo.size, int(np.count_nonzero(foreign))))
    edges, halo, cut = np.array(rows, np.int64).T
    train = graph.split("train")[0] if "train" in graph.split_names else np.empty(0, np.int64)
    return Quality(
        nodes=np.diff(graph.offsets),
        edges=edges,
        train=np.bincount(graph.owner(train), minlength=graph.num_parts),
        halo=halo,
        cut=cut,
    )


def _balance(counts: np.ndarray) -> float:
    mean = counts.mean()
    return float(counts.max() / mean) if mean else 1.0
