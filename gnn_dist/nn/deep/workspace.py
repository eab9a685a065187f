"""Buffers that all blocks and all batches share."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnn_dist.kernels.group_sparse import PADDING
from gnn_dist.kernels.topk import BLOCK, mask_words
from gnn_dist.nn.deep.config import DeepConfig


@dataclass(slots=True)
class Tape:
    """What one evaluation of f leaves for its gradient.

    Attributes:
        stats: [N, 2] mean and inverse deviation of the norm. values: [N * kept + padding] and
            mask uint32[N, words]: the selected rows. z: [N, columns], what the weights multiply.
        scores: [N, 2 * sweeps] attention's products; alpha: per sweep ([E], [N]).
    """

    stats: Tensor
    values: Tensor
    mask: np.ndarray
    z: Tensor
    scores: Tensor | None = None
    alpha: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Workspace:
    """Flat buffers that grow to the largest batch seen and are never given back.

    A buffer's place in memory does not depend on the batch, so that a product of matrices takes
    the same path in a recomputation as in the forward pass.
    """

    def __init__(self) -> None:
        self._flat: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The buffer ``name`` as a tensor of this shape; holds what was left in it."""
        size = int(np.prod(shape))
        flat = self._flat.get((name, dtype))
        if flat is None or flat.numel() < size:
            flat = torch.zeros(size, dtype=dtype)
            self._flat[name, dtype] = flat
        return flat[:size].view(shape)

    def tape(self, config: DeepConfig, n: int, edges: list[int], dtype: torch.dtype) -> Tape:
        words = mask_words(config.group_width)
        attends = config.conv == "attention"
        return Tape(
            self.take("stats", (n, 2), dtype),
            self.take("values", (n * config.kept + PADDING,), dtype),
            self.take("mask", (n, words), torch.int32).numpy().view(np.uint32),
            self.take("z", (n, config.columns), dtype),
            self.take("scores", (n, 2 * config.sweeps), dtype) if attends else None,
            [
                (self.take(f"alpha{s}", (e,), dtype), self.take(f"own{s}", (n,), dtype))
                for s, e in enumerate(edges)
            ]
            if attends
            else [],
        )

    def partial(self, name: str, n: int, inner: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Sums of ``BLOCK`` rows each, to be added up in order."""
        return self.take(name, ((n + BLOCK - 1) // BLOCK, *inner), dtype)

    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._flat.values())


def fresh_tape(config: DeepConfig, n: int, edges: list[int], dtype: torch.dtype) -> Tape:
    """A tape with memory of its own, for the modes that keep it."""
    return Workspace().tape(config, n, edges, dtype)
