"""One flat buffer for all gradients: allocated once, summed over ranks in one collective."""

from collections.abc import Iterable

import torch
from torch import nn

from gnn_dist.cluster import Exchange


class GradientBuffer:
    """Makes every ``.grad`` a view into one tensor, with a few scalars behind them.

    Allocating gradients once also keeps the heap from fragmenting (see ``docs/benchmarks.md``).
    All parameters must share one dtype and device. Clear with ``zero()``, never with
    ``zero_grad(set_to_none=True)``.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], scalars: int = 1) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        like = self.parameters[0] if self.parameters else torch.zeros(0)
        self.flat = torch.zeros(total + scalars, dtype=like.dtype, device=like.device)
        self.scalars = self.flat[total:]
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.numel()
            parameter.grad = self.flat[start:stop].view_as(parameter)
            start = stop

    def zero(self) -> None:
        self.flat.zero_()

    def sum_over(self, exchange: Exchange) -> None:
        """Sum gradients and scalars over the ranks, in place; the same bits on every rank."""
        exchange.all_reduce_sum(self.flat)
