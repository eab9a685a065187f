"""``FeatureRows``: rows of feature tables that are named but not yet copied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.kernels.cache import place


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Rows of feature tables, left where they are for the first layer to read.

    Attributes:
        tables: float32 or float16 [N, ...], often memory maps; alike but for N.
        index: int64[n], rows of their tables; they may repeat.
        dtype: what the rows are widened to when they are read; default the tables' own.
        source: int64[n], the table of each row, where there are several, on a CPU; else None.
        copied: bytes of tables that were made for these rows alone.
    """

    tables: tuple[Tensor, ...]
    index: Tensor
    dtype: torch.dtype = None  # type: ignore[assignment]
    source: Tensor | None = None
    copied: int = 0

    def __post_init__(self) -> None:
        if self.dtype is None:
            object.__setattr__(self, "dtype", self.tables[0].dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.index.numel(), *self.tables[0].shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.tables[0].device

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the tables."""
        return self.tables[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes that are held for these rows; tables of the graph are not among them."""
        lists = [t for t in (self.index, self.source) if t is not None]
        return self.copied + sum(t.nbytes for t in lists)

    def __len__(self) -> int:
        return self.index.numel()

    def __getitem__(self, rows: Tensor | slice) -> "FeatureRows":
        """Some of the rows, in the order of ``rows``."""
        source = None if self.source is None else self.source[rows]
        return FeatureRows(self.tables, self.index[rows], self.dtype, source, self.copied)

    def followed_by(self, made: Sequence[Tensor]) -> "FeatureRows":
        """These rows, then all rows of tables that were made for them."""
        made = [table for table in made if len(table)]
        index = torch.cat((self.index, *(torch.arange(len(table)) for table in made)))
        source = torch.zeros_like(self.index) if self.source is None else self.source
        which = torch.arange(len(self.tables), len(self.tables) + len(made))
        more = which.repeat_interleave(torch.tensor([len(t) for t in made], dtype=torch.int64))
        return FeatureRows(
            (*self.tables, *made),
            index,
            self.dtype,
            torch.cat((source, more)) if made else self.source,
            self.copied + sum(table.nbytes for table in made),
        )

    def addresses(self) -> Tensor:
        """Where each row begins in memory: int64[n], in bytes. The tables must be contiguous."""
        assert all(table.is_contiguous() for table in self.tables)
        step = math.prod(self.shape[1:]) * self.stored.itemsize
        if self.source is None:
            return self.index * step + self.tables[0].data_ptr()
        return self.index * step + torch.tensor([t.data_ptr() for t in self.tables])[self.source]

    def materialise(self) -> Tensor:
        """The rows as a tensor of their own: dtype[n, ...]."""
        return self.copy_to(torch.empty(self.shape, dtype=self.dtype, device=self.device))

    def copy_to(self, out: Tensor) -> Tensor:
        """The rows in a contiguous ``out``, dtype[n, ...], on the tables' device."""
        if self.source is not None:
            for number, table in enumerate(self.tables):
                here = (self.source == number).nonzero().squeeze(1)
                place(table.numpy(), self.index[here].numpy(), out.numpy(), here.numpy())
        elif self.dtype == self.stored:
            torch.index_select(self.tables[0], 0, self.index, out=out)
        else:
            out.copy_(self.tables[0].index_select(0, self.index))
        return out

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "FeatureRows | Tensor":
        """Itself on the tables' own device; elsewhere the rows, copied there (not the tables)."""
        if torch.device(device) == self.device:
            return self
        return self.materialise().to(device, non_blocking=non_blocking)
