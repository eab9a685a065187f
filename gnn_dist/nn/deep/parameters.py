"""The parameters of a stack: one stacked tensor of each kind, first dimension the block.

Hundreds of small tensors would pin the heap with their gradients (resident memory of 112 layers
grew to 3.4 GB with small gradients and stayed at 90 MB without), and an optimiser would visit each
of them. Stacked, a gradient is allocated once, and a pipeline stage's share is a slice.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.rng import fold


class StackTensors(NamedTuple):
    """Tensors of L blocks of C groups, d columns each.

    Attributes:
        gain, shift: [L, C, d] of the norm. weight: [L, C, columns, d]. bias: [L, C, d].
        attention: [L, C, sweeps, 2, d] score vectors of neighbour and own row; no sweeps (0)
            where the convolution has none.
    """

    gain: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor
    attention: Tensor

    def block(self, layer: int, group: int) -> "StackTensors":
        """Views of one group of one block (local layer number)."""
        return StackTensors(*(t[layer, group] for t in self))

    def zeros_like(self) -> "StackTensors":
        return StackTensors(*(torch.zeros_like(t) for t in self))


def initialise(config: DeepConfig, first: int, stop: int, seed: int) -> StackTensors:
    """Tensors of blocks ``first`` to ``stop - 1``, each drawn from (seed, its number) alone, so
    that a stage holds what the whole model would.

    Weights have variance 1 / (columns * layers): the stream's variance stays of order one at any
    depth.
    """
    c, d = config.groups, config.group_width
    scale = 1.0 / math.sqrt(config.columns * config.layers)
    sweeps = config.sweeps if config.conv == "attention" else 0
    weights, scores = [], []
    for layer in range(first, stop):
        generator = torch.Generator().manual_seed(fold(seed, 1, layer) >> 1)
        weights.append(torch.randn(c, config.columns, d, generator=generator) * scale)
        scores.append(torch.randn(c, sweeps, 2, d, generator=generator) / math.sqrt(d))
    n = stop - first
    return StackTensors(
        torch.ones(n, c, d),
        torch.zeros(n, c, d),
        torch.stack(weights),
        torch.zeros(n, c, d),
        torch.stack(scores),
    )
