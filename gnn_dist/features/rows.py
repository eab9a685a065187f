"""``FeatureRows``: rows of a feature table that are named but not yet copied."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Rows ``index`` of ``table``, left where they are for the first layer to read.

    Attributes:
        table: float32 or float16 [N, ...], often a memory map.
        index: int64[n], rows of the table; they may repeat.
        dtype: what the rows are widened to when they are read; default the table's own.
    """

    table: Tensor
    index: Tensor
    dtype: torch.dtype = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.dtype is None:
            object.__setattr__(self, "dtype", self.table.dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.index.numel(), *self.table.shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.table.device

    def __len__(self) -> int:
        return self.index.numel()

    def materialise(self) -> Tensor:
        """The rows as a tensor of their own: dtype[n, ...]."""
        return self.table.index_select(0, self.index).to(self.dtype)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "FeatureRows | Tensor":
        """Itself on the table's own device; elsewhere the rows, copied there (not the table)."""
        if torch.device(device) == self.device:
            return self
        return self.materialise().to(device, non_blocking=non_blocking)
