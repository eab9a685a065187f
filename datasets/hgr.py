"""Hypergraphs in hMETIS format (.hgr), and the data set ``hgr`` made of one.

Format: the first line has the number of hyperedges, of vertices, and an optional code (1:
hyperedges have weights, 10: vertices have weights, 11: both); then one line a hyperedge with its
vertices, counted from 1; then the weights of vertices. Lines that begin with % are comments.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Attributes:
    indptr, pins: int64[M + 1], int64[P]: the vertices of each hyperedge.
    num_vertices: N.
    edge_weights: int64[M]; vertex_weights: int64[N]; ones where the file has none.
    """

    indptr: np.ndarray
    pins: np.ndarray
    num_vertices: int
    edge_weights: np.ndarray
    vertex_weights: np.ndarray

    @property
    def num_hyperedges(self) -> int:
        return self.indptr.size - 1


def read_hgr(path: Path) -> Hypergraph:
    """Read an .hgr file. Raises ``InputError`` for one that is cut short or malformed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"hgr: cannot read {str(path)!r} ({error}); give an hMETIS file"
        ) from error
    lines = [
        line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("%")
    ]
    head = _numbers(lines[0] if lines else "", path.name, 1)
    if len(head) not in (2, 3) or head[0] < 0 or head[1] < 1:
        raise InputError(
            f"hgr {path.name}: the first line must have the number of hyperedges and of vertices"
        )
    count, vertices = head[:2]
    code = head[2] if len(head) == 3 else 0
    if code not in (0, 1, 10, 11):
        raise InputError(f"hgr {path.name}: the code {code} is not one of 0, 1, 10, 11")
    wanted = 1 + count + (vertices if code >= 10 else 0)
    if len(lines) != wanted:
        raise InputError(
            f"hgr {path.name}: has {len(lines)} lines where {wanted} are announced; it is cut "
            "short or has more than it says"
        )
    rows = [_numbers(lines[1 + k], path.name, 2 + k) for k in range(count)]
    weights = np.ones(count, np.int64)
    if code % 10 == 1:
        weights = np.array([r[0] for r in rows], np.int64)
        rows = [r[1:] for r in rows]
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=indptr[1:])
    pins = np.array([v for r in rows for v in r], np.int64) - 1
    if pins.size and (pins.min() < 0 or pins.max() >= vertices):
        bad = int(pins[(pins < 0) | (pins >= vertices)][0]) + 1
        raise InputError(
            f"hgr {path.name}: a hyperedge names vertex {bad}; vertices are 1 to {vertices}"
        )
    sizes = np.ones(vertices, np.int64)
    if code >= 10:
        sizes = np.array([_numbers(line, path.name, 0)[0] for line in lines[1 + count :]], np.int64)
    return Hypergraph(indptr, pins, vertices, weights, sizes)


def hgr(*, path: str) -> Graph:
    """A hypergraph as a graph: vertices, then a node for each hyperedge, joined both ways.

    Node tensors: ``x`` float32[N + M, 3] (is a hyperedge, log2(1 + degree), log2(1 + weight)).
    ``info["hypergraph_vertices"]`` is N: the partitioner ``mtkahypar`` reads the hyperedges back.

    Args:
        path: the .hgr file.
    """
    graph = read_hgr(Path(path))
    n, m = graph.num_vertices, graph.num_hyperedges
    nets = np.repeat(np.arange(m), np.diff(graph.indptr)) + n
    degree = np.bincount(np.concatenate((graph.pins, nets)), minlength=n + m)
    weight = np.concatenate((graph.vertex_weights, graph.edge_weights))
    x = np.stack((np.arange(n + m) >= n, np.log2(1 + degree), np.log2(1 + weight)), axis=1)
    return Graph.from_edges(
        np.concatenate((graph.pins, nets)),
        np.concatenate((nets, graph.pins)),
        n + m,
        node={"x": x.astype(np.float32)},
        info={"name": Path(path).stem, "hypergraph_vertices": n},
    )


def _numbers(line: str, name: str, number: int) -> list[int]:
    try:
        return [int(t) for t in line.split()]
    except ValueError:
        raise InputError(
            f"hgr {name}: line {number}: {line[:40]!r} is not numbers; give whole numbers"
        ) from None
