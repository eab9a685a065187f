"""``manifest.json``: what a partition folder holds, written last and checked first.

The names of all files follow from the manifest's counts and tensor names, so a manifest cannot
point outside its folder.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gnn_dist.errors import InputError
from gnn_dist.storage.layout import Schema, TensorSpec

NAME = "manifest.json"
FORMAT: Final = "gnn-dist-partition"
VERSION: Final = 1
LARGEST = 1 << 28  # bytes of a manifest; the real ones take about 1 kB a part

BOOK = "original_ids.npy"
_TOPOLOGY = ("indptr", "indices", "edge_ids", "halo")

Dtype = Literal[
    "float16", "float32", "float64",
    "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip
Count = Annotated[int, Field(ge=0, le=1 << 60)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TensorEntry(_Strict):
    dtype: Dtype
    stored: Dtype
    shape: tuple[Count, ...] = Field(max_length=30)


class SchemaEntry(_Strict):
    node: dict[str, TensorEntry]
    edge: dict[str, TensorEntry]

    @field_validator("node", "edge")
    @classmethod
    def _names(cls, tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
        return {_identifier(name): spec for name, spec in tensors.items()}

    def schema_of_parts(self) -> Schema:
        def specs(tensors: dict[str, TensorEntry]) -> dict[str, TensorSpec]:
            return {n: TensorSpec(t.dtype, t.stored, t.shape) for n, t in tensors.items()}

        return Schema(specs(self.node), specs(self.edge))


class GraphEntry(_Strict):
    digest: str = Field(pattern="^[0-9a-f]{32}$")
    num_nodes: Count = Field(ge=1)
    num_edges: Count
    index_dtype: Literal["int32", "int64"]


class PartEntry(_Strict):
    num_nodes: Count
    num_edges: Count
    halo: Count
    cut: Count


class PartitionerEntry(_Strict):
    name: str
    args: dict[str, Any] = {}
    seed: int = 0
    weights: dict[str, Any] = {}


class FileEntry(_Strict):
    size: Count
    blake2b: str = Field(pattern="^[0-9a-f]{32}$")


class StagedEntry(_Strict):
    parts: tuple[Count, ...]


class Manifest(_Strict):
    """The manifest. Counts are of rows; ``offsets`` has one entry more than there are parts.

    Of a part, ``halo`` counts distinct sources that others own, ``cut`` the edges from them.

    ``files`` has every file of the folder but the manifest itself. A staged copy has ``staged``,
    the parts whose files were copied; the other entries describe the whole.
    """

    format: Literal["gnn-dist-partition"]
    version: Literal[1]
    graph: GraphEntry
    offsets: tuple[Count, ...] = Field(min_length=2)
    parts: tuple[PartEntry, ...]
    tensors: SchemaEntry
    splits: dict[str, Count]
    partitioner: PartitionerEntry
    info: dict[str, Any]
    files: dict[str, FileEntry]
    staged: StagedEntry | None = None

    @field_validator("splits")
    @classmethod
    def _names(cls, splits: dict[str, int]) -> dict[str, int]:
        return {_identifier(name): count for name, count in splits.items()}

    @model_validator(mode="after")
    def _counts_agree(self) -> "Manifest":
        steps = [b - a for a, b in zip(self.offsets, self.offsets[1:], strict=False)]
        if self.offsets[0] != 0 or steps != [part.num_nodes for part in self.parts]:
            raise ValueError("offsets and parts[].num_nodes disagree")
        if self.offsets[-1] != self.graph.num_nodes:
            raise ValueError("offsets do not end with graph.num_nodes")
        if sum(part.num_edges for part in self.parts) != self.graph.num_edges:
            raise ValueError("parts[].num_edges do not sum to graph.num_edges")
        if any(count > self.graph.num_nodes for count in self.splits.values()):
            raise ValueError("a split has more nodes than the graph")
        if any(p >= len(self.parts) for p in (self.staged.parts if self.staged else ())):
            raise ValueError("staged.parts names a part that does not exist")
        tensors = len(self.tensors.node) + len(self.tensors.edge)
        count = 1 + len(self.splits) + len(self.parts) * (len(_TOPOLOGY) + tensors)
        if len(self.files) != count or set(self.files) != set(self._all_files()):
            raise ValueError("files does not list the files that parts, tensors and splits need")
        return self

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    def present_parts(self) -> tuple[int, ...]:
        """The parts whose files are in this folder."""
        return tuple(range(self.num_parts)) if self.staged is None else self.staged.parts

    def present_files(self) -> list[str]:
        """The files that this folder must hold beside the manifest."""
        return [
            *self.common_files(),
            *(f for p in self.present_parts() for f in self.part_files(p)),
        ]

    def common_files(self) -> Iterator[str]:
        """Files that are not of one part: the partition book and the splits."""
        yield BOOK
        yield from map(split_file, self.splits)

    def part_files(self, part: int) -> Iterator[str]:
        names = [
            *_TOPOLOGY,
            *(f"node.{name}" for name in self.tensors.node),
            *(f"edge.{name}" for name in self.tensors.edge),
        ]
        return (part_file(part, name) for name in names)

    def _all_files(self) -> Iterator[str]:
        yield from self.common_files()
        for part in range(self.num_parts):
            yield from self.part_files(part)


class _Header(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    format: str
    version: int


def split_file(name: str) -> str:
    return f"split.{name}.npy"


def part_file(part: int, name: str) -> str:
    return f"part-{part:05d}/{name}.npy"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; ``InputError`` where there is none or it cannot be used."""
    file = folder / NAME
    if not folder.is_dir():
        raise InputError(
            f"partition: there is no folder {folder}; make it with gnn-dist partition, or check "
            "the path"
        )
    if not file.is_file():
        raise InputError(
            f"partition: {folder} has no {NAME}, so it is no partition or an incomplete one; "
            "write it again with gnn-dist partition"
        )
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise InputError(
                f"partition: {file} has {size:,} bytes; that is no manifest of "
                "ours: write the partition again"
            )
        raw = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"partition: cannot read {file}: {error.strerror}; check its rights"
        ) from error
    return parse_manifest(raw, str(file))


def parse_manifest(raw: bytes, where: str) -> Manifest:
    """Manifest from its bytes; every fault is an ``InputError`` that begins with ``where``."""
    try:
        header = _Header.model_validate_json(raw)
        if header.format != FORMAT:
            raise InputError(f"{where}: format is {header.format!r}, expected {FORMAT!r}")
        if header.version > VERSION:
            raise InputError(
                f"{where}: is of format version {header.version}, and this gnn-dist reads versions "
                f"up to {VERSION}; install a newer gnn-dist or write the partition again"
            )
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        text = f"{field}: {first['msg']}" if field else first["msg"]
        raise InputError(
            f"{where}: is damaged or not a manifest ({text}); write the partition again"
        ) from error


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not an identifier")
    return name
