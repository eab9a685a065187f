"""Open a written partition as memory maps, and check it."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.storage.layout import Part, PartitionedGraph, splits_of
from gnn_dist.storage.manifest import BOOK, Manifest, part_file, read_manifest, split_file
from gnn_dist.storage.stamps import Stamps
from gnn_dist.storage.verify import AGAIN, verify_contents, verify_files


def open_partition(
    path: str | Path, *, verify: bool = False, expect_graph: str | None = None
) -> PartitionedGraph:
    """Open the folder ``path``; arrays are memory maps, mapped part by part when asked for.

    The maps are private: writing to one changes neither the file nor another process.

    Args:
        verify: also read every file, compare its checksum, and check what the arrays say.
        expect_graph: the ``Graph.digest`` that the partition must have been made for.

    Raises ``InputError``, naming the file, where the folder is missing or incomplete, a file has
    the wrong size or content, the format is newer, or the graph is another one.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if expect_graph is not None and manifest.graph.digest != expect_graph:
        raise InputError(
            f"partition: {path} was made for another graph (digest {manifest.graph.digest}, this "
            f"one has {expect_graph}); partition this graph, or give the data it was made from"
        )
    check_sizes(path, manifest)
    if verify:
        verify_files(path, manifest)
    num_nodes = manifest.graph.num_nodes
    graph = PartitionedGraph(
        offsets=np.array(manifest.offsets, np.int64),
        num_edges=manifest.graph.num_edges,
        schema=manifest.tensors.schema_of_parts(),
        original_ids=_map(path / BOOK, "int64", (num_nodes,)),
        splits={
            name: _map(path / split_file(name), "int64", (count,))
            for name, count in manifest.splits.items()
        },
        parts=_Folder(path, manifest),
        graph=manifest.graph,
        info=manifest.info,
        manifest=manifest,
        path=path,
        stamps=Stamps.take(path, manifest),
    )
    if verify:
        verify_contents(graph)
    return graph


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Every file of ``manifest.present_files()`` is there, as long as it should be."""
    for name in manifest.present_files():
        wanted = manifest.files[name].size
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise InputError(
                f"partition: {path} is incomplete, {name} is missing; {AGAIN}"
            ) from error
        if size != wanted:
            raise InputError(
                f"partition: {path / name} has {size:,} bytes where the manifest has {wanted:,}; "
                f"it is cut short or not ours, {AGAIN}"
            )


def _map(file: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A ``.npy`` file as a memory map with the dtype and shape that the manifest promises."""
    try:
        array = _load(file)
    except Exception as error:  # NumPy's reader raises many kinds for a damaged header
        raise InputError(f"partition: cannot map {file}: {error}; {AGAIN}") from error
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise InputError(
            f"partition: {file} holds {array.dtype}{list(array.shape)} where the manifest has "
            f"{dtype}{list(shape)}; {AGAIN}"
        )
    return np.asarray(array)  # a plain array that keeps the map open


def _load(file: Path) -> np.ndarray:
    try:
        # Copy on write, so that arrays are of the same (writable) type as in memory: compiled
        # kernels and torch treat read-only arrays apart.
        return np.load(file, mmap_mode="c", allow_pickle=False)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return np.load(file, mmap_mode="r", allow_pickle=False)  # larger than the commit limit


@dataclass(frozen=True)
class _Folder:
    path: Path
    manifest: Manifest

    def __call__(self, index: int) -> Part:
        manifest = self.manifest
        if index not in manifest.present_parts():
            raise InputError(
                f"partition: part {index} is not in the staged copy {self.path}, which has "
                f"parts {list(manifest.present_parts())}"
            )
        entry = manifest.parts[index]
        nodes, edges = entry.num_nodes, entry.num_edges
        first, last = manifest.offsets[index], manifest.offsets[index + 1]
        sources = manifest.graph.index_dtype

        def load(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
            return _map(self.path / part_file(index, name), dtype, shape)

        def tensors(group: str, rows: int) -> Mapping[str, np.ndarray]:
            specs = getattr(manifest.tensors, group)
            return {n: load(f"{group}.{n}", s.stored, (rows, *s.shape)) for n, s in specs.items()}

        splits = {
            name: _map(self.path / split_file(name), "int64", (count,))
            for name, count in manifest.splits.items()
        }
        indptr = load("indptr", "int64", (nodes + 1,))
        if indptr[0] != 0 or indptr[-1] != edges:
            raise InputError(
                f"partition: {self.path / part_file(index, 'indptr')} runs from {indptr[0]} to "
                f"{indptr[-1]} for {edges} edges; {AGAIN}"
            )
        return Part(
            index=index,
            first=first,
            indptr=indptr,
            indices=load("indices", sources, (edges,)),
            edge_ids=load("edge_ids", "int64", (edges,)),
            original_ids=_map(self.path / BOOK, "int64", (manifest.graph.num_nodes,))[first:last],
            node=tensors("node", nodes),
            edge=tensors("edge", edges),
            splits=splits_of(splits, first, last),
            halo=load("halo", sources, (entry.halo,)),
        )
