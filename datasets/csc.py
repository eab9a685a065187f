"""The CSC arrays of an edge list that may be larger than memory.

Edges are dealt to files by ranges of their destinations, and each file is sorted in memory by
counting. Both passes are sequential.
"""

from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np

from gnn_dist.datasets.stored import NpyWriter
from gnn_dist.errors import InputError
from gnn_dist.graph import index_dtype

_CHUNK = 1 << 22  # edges read at a time
_BYTES_PER_EDGE = 32  # of a range while it is sorted: its record, and the sorted columns


def write_csc(
    src: np.ndarray,
    dst: np.ndarray,
    num_nodes: int,
    folder: Path,
    *,
    undirected: bool = False,
    memory: int = 1 << 30,
    chunk: int = _CHUNK,
) -> int:
    """Write ``indptr.npy``, ``indices.npy`` and, where edges change places, ``edge_ids.npy``.

    Holds 16 bytes a node, about 40 bytes an edge of ``chunk``, and ``memory`` bytes (more where
    the in-edges of a single node need more), however long the edge list is. As much disk as the
    edges take at 16 bytes each is used in between.

    Args:
        src: int[E], perhaps a memory map.
        dst: int[E].
        num_nodes: N.
        folder: where the files go, and the temporary ones.
        undirected: write every edge in both directions, once; then the edge list is that of the
            CSC arrays.
        memory: bytes for sorting a range of destinations.
        chunk: edges read at a time.

    Returns the number of edges written; raises ``InputError`` for an id out of range.
    """
    dtype = index_dtype(num_nodes)
    counts = np.zeros(num_nodes + 1, np.int64)
    in_order, last = True, -1
    for first in range(0, src.size, chunk):
        s, d = _read(src, first, chunk, num_nodes), _read(dst, first, chunk, num_nodes)
        _count(d, counts)
        if undirected:
            _count(s, counts)
        else:
            in_order = in_order and d[0] >= last and bool((d[1:] >= d[:-1]).all())
            last = int(d[-1])
    indptr = np.cumsum(counts)
    del counts
    ranges = _ranges(indptr, max(1, memory // _BYTES_PER_EDGE))
    record = np.dtype([("src", dtype), ("dst", dtype), ("id", np.int64)])
    spilled = [folder / f"range{k}.tmp" for k in range(len(ranges) - 1)]
    _deal(src, dst, undirected, ranges, record, spilled, chunk)
    starts = np.zeros(num_nodes + 1, np.int64) if undirected else indptr
    numbered = not undirected and not in_order
    ids_file = NpyWriter(folder / "edge_ids.npy", np.int64) if numbered else None
    try:
        with NpyWriter(folder / "indices.npy", dtype) as indices_file:
            written = 0
            for k, file in enumerate(spilled):
                lo, hi = int(ranges[k]), int(ranges[k + 1])
                edges = np.fromfile(file, record)
                file.unlink()
                indices, ids = _place(edges, lo, indptr[lo : hi + 1] - indptr[lo])
                del edges
                if undirected:
                    sizes = _unique_rows(indptr[lo : hi + 1] - indptr[lo], indices)
                    np.cumsum(sizes, out=starts[lo + 1 : hi + 1])
                    starts[lo + 1 : hi + 1] += written
                    indices = indices[: sizes.sum()]
                written += indices.size
                indices_file.write(indices)
                if ids_file is not None:
                    ids_file.write(ids)
    finally:
        if ids_file is not None:
            ids_file.__exit__()
    np.save(folder / "indptr.npy", starts)
    return written


def _read(ids: np.ndarray, first: int, chunk: int, num_nodes: int) -> np.ndarray:
    part = np.ascontiguousarray(ids[first : first + chunk], np.int64)
    low, high = int(part.min()), int(part.max())
    if low < 0 or high >= num_nodes:
        raise InputError(
            f"dataset: an edge names node {low if low < 0 else high}; ids run from 0 to "
            f"{num_nodes - 1}. Is the file damaged? Fetch it again"
        )
    return part


def _ranges(indptr: np.ndarray, most: int) -> np.ndarray:
    """Bounds of ranges of destinations with at most ``most`` edges, or one node: int64[k + 1]."""
    bounds = [0]
    num_nodes = indptr.size - 1
    while bounds[-1] < num_nodes:
        lo = bounds[-1]
        hi = int(np.searchsorted(indptr, indptr[lo] + most, side="right")) - 1
        bounds.append(min(max(hi, lo + 1), num_nodes))
    return np.array(bounds)


def _deal(
    src: np.ndarray,
    dst: np.ndarray,
    undirected: bool,
    ranges: np.ndarray,
    record: np.dtype,
    files: list[Path],
    chunk: int,
) -> None:
    """Append every edge to the file of its destination's range, in order."""
    for file in files:
        file.touch()
    for first in range(0, src.size, chunk):
        for s, d in _directions(src, dst, first, chunk, undirected):
            edges = np.empty(s.size, record)
            edges["src"], edges["dst"] = s, d
            edges["id"] = np.arange(first, first + s.size)
            owner = np.searchsorted(ranges, d, side="right") - 1
            order = np.argsort(owner, kind="stable")
            edges, owner = edges[order], owner[order]
            present, starts = np.unique(owner, return_index=True)
            for k, part in zip(present, np.split(edges, starts[1:]), strict=True):
                with files[k].open("ab") as file:
                    part.tofile(file)


def _directions(
    src: np.ndarray, dst: np.ndarray, first: int, chunk: int, undirected: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    s, d = src[first : first + chunk], dst[first : first + chunk]
    yield s, d
    if undirected:
        yield d, s


@numba.njit(cache=True, nogil=True)
def _count(ids, counts):
    for k in range(ids.size):
        counts[ids[k] + 1] += 1


@numba.njit(cache=True, nogil=True)
def _place_into(dst, src, ids, first, place, sources, edge_ids):
    for k in range(dst.size):
        at = place[dst[k] - first]
        place[dst[k] - first] = at + 1
        sources[at] = src[k]
        edge_ids[at] = ids[k]


def _place(edges: np.ndarray, first: int, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sources and edge ids of a range by destination, in the order given."""
    sources = np.empty(edges.size, edges.dtype["src"])
    ids = np.empty(edges.size, np.int64)
    _place_into(edges["dst"], edges["src"], edges["id"], first, indptr[:-1].copy(), sources, ids)
    return sources, ids


@numba.njit(cache=True, nogil=True)
def _unique_rows(indptr, indices):
    """Sort each row and drop repeats, moving the rows together; the sizes left: int64[n]."""
    sizes = np.zeros(indptr.size - 1, np.int64)
    out = 0
    for v in range(sizes.size):
        row = np.sort(indices[indptr[v] : indptr[v + 1]])
        before = -1
        for k in range(row.size):
            if row[k] != before:
                before = row[k]
                indices[out] = before
                out += 1
                sizes[v] += 1
    return sizes
