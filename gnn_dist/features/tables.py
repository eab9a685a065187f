"""The feature tables of the parts on this host."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_dist.errors import InputError
from gnn_dist.storage import PartitionedGraph


@dataclass(frozen=True, slots=True)
class RowType:
    """Rows of one named node tensor: as stored and sent, and the type they are read as."""

    stored: np.dtype
    logical: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as stored and sent."""
        return self.stored.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Tables:
    """Node tensors by name and part, read through the parts' memory maps."""

    def __init__(self, graph: PartitionedGraph) -> None:
        self._graph = graph
        self._arrays: dict[tuple[str, int], np.ndarray] = {}
        self._tensors: dict[tuple[str, int], Tensor] = {}
        self.types = {
            name: RowType(np.dtype(spec.stored), np.dtype(spec.dtype), tuple(spec.shape))
            for name, spec in graph.schema.node.items()
        }

    def type(self, name: str) -> RowType:
        """Raises ``InputError`` where the graph has no node tensor of this name."""
        if name not in self.types:
            raise InputError(
                f"features: the graph has no node tensor {name!r}; it has "
                f"{', '.join(sorted(self.types)) or 'none'}"
            )
        return self.types[name]

    def array(self, name: str, part: int) -> np.ndarray:
        """The table of one part, in C order."""
        key = (name, part)
        if key not in self._arrays:
            self._arrays[key] = np.ascontiguousarray(self._graph.part(part).node[name])
        return self._arrays[key]

    def tensor(self, name: str, part: int) -> Tensor:
        """``array`` as a tensor."""
        key = (name, part)
        if key not in self._tensors:
            with warnings.catch_warnings():
                # of an array opened for reading; nothing here writes into a table
                warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
                self._tensors[key] = torch.from_numpy(self.array(name, part))
        return self._tensors[key]

    def read(self, name: str, part: int, rows: np.ndarray) -> np.ndarray:
        """Rows as stored: stored[n, *shape]."""
        return np.take(self.array(name, part), rows, axis=0)
