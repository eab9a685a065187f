"""A converted graph in a folder: ``.npy`` files that are opened as memory maps, and ``graph.json``.

Made once from a data set that takes long to read; opening it reads nothing but ``graph.json``. The
graph was checked and its digest computed when it was written.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

_FORMAT = 1
_ROWS = 1 << 16  # rows copied at a time


@dataclass(frozen=True, eq=False)
class StoredGraph(Graph):
    """A graph that was checked when it was written: its memory maps are not read through again."""

    def __post_init__(self) -> None:
        pass


def open_stored(folder: Path, made_from: Mapping[str, Any]) -> Graph | None:
    """The graph in ``folder``; None where there is none, it is incomplete or changed, or it was
    made from something else."""
    try:
        about = json.loads((folder / "graph.json").read_text())
        if about["format"] != _FORMAT or about["made_from"] != dict(made_from):
            return None
        for name, size in about["files"].items():
            if (folder / name).stat().st_size != size:
                return None
        return _open(folder, about["info"], about["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_stored(
    folder: Path, made_from: Mapping[str, Any], fill: Callable[[Path], Mapping[str, Any]]
) -> Graph:
    """Make ``folder`` with ``fill``, check the graph, and open it.

    ``fill`` is given an empty folder and writes ``indptr.npy``, ``indices.npy``, perhaps
    ``edge_ids.npy``, and ``node.NAME.npy``, ``edge.NAME.npy``, ``split.NAME.npy`` into it; it
    returns the graph's ``info``. The folder appears whole or not at all; an earlier one of that
    name is replaced. A full disk is an ``InputError``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        info = dict(fill(aside))
        unchecked = _open(aside, info, "")
        checked = Graph(
            unchecked.indptr,
            unchecked.indices,
            unchecked.edge_ids,
            unchecked.node,
            unchecked.edge,
            unchecked.splits,
            info,
        )
        about: dict[str, Any] = {
            "format": _FORMAT,
            "made_from": dict(made_from),
            "info": info,
            "digest": checked.digest,
            "files": {f.name: f.stat().st_size for f in sorted(aside.glob("*.npy"))},
        }
        del checked, unchecked
        (aside / "graph.json").write_text(json.dumps(about, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except OSError as error:
        raise InputError(
            f"dataset: cannot write {folder}: {error.strerror or error}; make room, or name "
            "another folder"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return _open(folder, info, about["digest"])


def _open(folder: Path, info: Mapping[str, Any], digest: str) -> Graph:
    groups: dict[str, dict[str, np.ndarray]] = {"node": {}, "edge": {}, "split": {}}
    plain: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.npy")):
        array = _map(file)
        group, dot, name = file.stem.partition(".")
        if dot:
            groups[group][name] = array
        else:
            plain[group] = array
    graph = StoredGraph(
        np.array(plain["indptr"]),
        plain["indices"],
        plain.get("edge_ids"),
        groups["node"],
        groups["edge"],
        {name: np.array(ids) for name, ids in groups["split"].items()},
        dict(info),
    )
    if digest:
        graph.__dict__["digest"] = digest  # where the cached property keeps it
    return graph


def _map(file: Path) -> np.ndarray:
    with file.open("rb") as stream:
        shape = _header(stream)[0]
    if 0 in shape:  # an empty file cannot be mapped
        return np.load(file, allow_pickle=False)
    return np.load(file, mmap_mode="r", allow_pickle=False)


def _header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


class NpyWriter:
    """A one-dimensional ``.npy`` file whose length is known at the end."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._count = 0
        self._start = self._write_header()

    def write(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, dtype=self._dtype)
        self._file.write(data.view(np.uint8).data)
        self._count += data.size

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        with self._file:
            self._file.seek(0)
            # NumPy pads the header so that a length can be put in later
            assert self._write_header() == self._start
            self._file.flush()
            os.fsync(self._file.fileno())

    def _write_header(self) -> int:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._count,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()


def write_rows(path: Path, dtype: Any, shape: tuple[int, ...], rows: Iterable[np.ndarray]) -> None:
    """Write an array of ``shape`` from chunks of its rows."""
    target = np.lib.format.open_memmap(path, "w+", dtype, shape) if 0 not in shape else None
    if target is None:
        np.save(path, np.empty(shape, dtype))
        return
    at = 0
    for chunk in rows:
        target[at : at + len(chunk)] = chunk
        at += len(chunk)
    assert at == shape[0], (path, at, shape)
    target.flush()


def chunks_of(array: np.ndarray, rows: int = _ROWS) -> Iterator[np.ndarray]:
    """The rows of an array, perhaps a memory map, some at a time."""
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
