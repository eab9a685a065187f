"""Write a partitioned graph to a folder, whole or not at all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import index_dtype
from gnn_dist.storage.files import CHUNK, new_folder, write_npy, write_text
from gnn_dist.storage.layout import Part, PartitionedGraph, TakenRows, TensorSpec
from gnn_dist.storage.manifest import (
    BOOK,
    FORMAT,
    NAME,
    VERSION,
    FileEntry,
    GraphEntry,
    Manifest,
    PartEntry,
    PartitionerEntry,
    SchemaEntry,
    TensorEntry,
    part_file,
    split_file,
)

HALF_MAX = float(np.finfo(np.float16).max)


def write(
    graph: PartitionedGraph,
    path: str | Path,
    *,
    partitioner: Mapping[str, Any],
    half: Sequence[str] = (),
    overwrite: bool = False,
) -> Manifest:
    """Write ``graph`` to the folder ``path`` and return its manifest.

    Part after part is made, written and dropped, and tensors go through in pieces, so that
    features may be memory maps larger than memory. Everything is written to a hidden sibling
    folder, synced, the manifest last, and renamed.

    Args:
        partitioner: ``{"name": str, "args": {...}, "seed": int}``, kept in the manifest; also
            ``weights``, what the weights were made from.
        half: node tensors to store in float16 (they stay float32 in the schema).
        overwrite: replace a partition that is there. Otherwise a folder with anything in it is an
            ``InputError``; so are tensors of ``half`` that float16 cannot hold, values in
            ``info`` that are not JSON, and a disk that is full.
    """
    path = Path(path).resolve()  # a link stays, and what it names is written
    _check_target(path, overwrite)
    schema = _stored_schema(graph, half)
    info = _jsonable("graph.info", graph.info)
    maker = PartitionerEntry(**_jsonable("partitioner", partitioner))
    for name in graph.split_names:
        if not name.isidentifier():
            raise InputError(f"graph.splits: a split's name must be an identifier, not {name!r}")
    with new_folder(path, replace=overwrite) as aside:
        book = graph.original_ids()
        files = {BOOK: write_npy(aside / BOOK, book.dtype, book.shape, [book])}
        splits = {}
        for name in graph.split_names:
            ids = graph.split_in_parts(name)
            files[split_file(name)] = write_npy(
                aside / split_file(name), ids.dtype, ids.shape, [ids]
            )
            splits[name] = ids.size
        entries = []
        for index in range(graph.num_parts):
            entry, written = _write_part(aside, graph.fresh_part(index), schema)
            entries.append(entry)
            files.update(written)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            graph=GraphEntry(
                digest=graph.digest,
                num_nodes=graph.num_nodes,
                num_edges=graph.num_edges,
                index_dtype="int32" if index_dtype(graph.num_nodes) is np.int32 else "int64",
            ),
            offsets=tuple(graph.offsets.tolist()),
            parts=tuple(entries),
            tensors=schema,
            splits=splits,
            partitioner=maker,
            info=info,
            files=files,
        )
        write_text(aside / NAME, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _write_part(
    folder: Path, part: Part, schema: SchemaEntry
) -> tuple[PartEntry, dict[str, FileEntry]]:
    (folder / part_file(part.index, "indptr")).parent.mkdir()
    files = {}
    for name, array in (
        ("indptr", part.indptr),
        ("indices", part.indices),
        ("edge_ids", part.edge_ids),
        ("halo", part.halo),
    ):
        file = part_file(part.index, name)
        files[file] = write_npy(folder / file, array.dtype, array.shape, _pieces(array))
    for group, tensors, specs, rows in (
        ("node", part.node, schema.node, part.num_nodes),
        ("edge", part.edge, schema.edge, part.num_edges),
    ):
        for name, spec in specs.items():
            file = part_file(part.index, f"{group}.{name}")
            files[file] = write_npy(
                folder / file,
                np.dtype(spec.stored),
                (rows, *spec.shape),
                _rows(tensors, name, rows, spec),
            )
    foreign = sum(
        int(np.count_nonzero((piece < part.first) | (piece >= part.last)))
        for piece in _pieces(part.indices)
    )
    entry = PartEntry(
        num_nodes=part.num_nodes, num_edges=part.num_edges, halo=part.halo.size, cut=foreign
    )
    return entry, files


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, CHUNK // array.itemsize)
    return (array[start : start + step] for start in range(0, len(array), step))


def _rows(
    tensors: Mapping[str, np.ndarray], name: str, rows: int, spec: TensorEntry
) -> Iterator[np.ndarray]:
    """Tensor ``name`` in pieces of about ``CHUNK`` bytes."""
    row_bytes = np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape))
    step = max(1, CHUNK // max(1, row_bytes))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        if isinstance(tensors, TakenRows):
            piece = tensors.chunk(name, start, stop)
        else:
            piece = tensors[name][start:stop]
        if spec.stored == "float16" and piece.dtype != np.float16:
            largest = float(np.abs(piece).max(initial=0.0))
            if largest > HALF_MAX:
                raise InputError(
                    f"half: {name!r} holds {largest:g} and float16 ends at {HALF_MAX:g}; "
                    "scale the tensor or leave it out of half"
                )
        yield piece


def _stored_schema(graph: PartitionedGraph, half: Sequence[str]) -> SchemaEntry:
    unknown = [name for name in half if name not in graph.schema.node]
    if unknown:
        names = ", ".join(graph.schema.node) or "none"
        raise InputError(f"half: there is no node tensor {unknown[0]!r}; there are: {names}")

    def entry(field: str, spec: TensorSpec, narrow: bool) -> TensorEntry:
        dtype, stored = spec.dtype, spec.stored
        if narrow:
            if not dtype.startswith("float"):
                raise InputError(
                    f"half: {field} is {dtype}, and only floats can be stored in float16; leave it "
                    "out of half"
                )
            dtype, stored = "float32", "float16"
        try:
            return TensorEntry.model_validate(
                {"dtype": dtype, "stored": stored, "shape": spec.shape}
            )
        except ValueError as error:
            raise InputError(
                f"{field}: {dtype} cannot be stored; convert it to one of float16, float32, "
                "float64, an integer of up to 64 bits, or bool"
            ) from error

    return SchemaEntry(
        node={n: entry(f"graph.node.{n}", s, n in half) for n, s in graph.schema.node.items()},
        edge={n: entry(f"graph.edge.{n}", s, False) for n, s in graph.schema.edge.items()},
    )


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"partition: {path} is a file; choose a folder that does not exist yet")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise InputError(
            f"partition: {path} is not empty; choose another folder, or remove that one first"
        )
    if not (path / NAME).is_file():
        raise InputError(
            f"partition: {path} is not empty and has no {NAME}, so it will not be overwritten; "
            "choose another folder"
        )


def _jsonable(field: str, value: Mapping[str, Any]) -> Any:
    """``value`` as JSON gives it back; NumPy scalars and arrays become numbers and lists."""

    def plain(item: Any) -> Any:
        if isinstance(item, np.generic | np.ndarray):
            return item.tolist()
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"{type(item).__name__} is not JSON")

    try:
        return json.loads(json.dumps(dict(value), default=plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{field}: cannot be written as JSON ({error}); use plain values"
        ) from error
