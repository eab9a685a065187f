"""Models of users' own kinds."""

import torch
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.features import FeatureRows
from gnn_dist.nn.convs import own_rows
from gnn_dist.nn.functional import aggregate


class BlocksOnly(nn.Module):
    """Takes ``(x, blocks)`` and offers no layers."""

    def __init__(self, in_features: int, out_features: int, num_layers: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor, blocks: list[Block]) -> Tensor:
        for block in blocks:
            x = aggregate(x, block, "mean")
        return self.linear(x)


class Layers(nn.Module):
    """The sum of a node's own row and the maximum over its neighbours, by layers."""

    def __init__(
        self, in_features: int, out_features: int, num_layers: int, hidden: int = 6
    ) -> None:
        super().__init__()
        widths = [in_features, *[hidden] * (num_layers - 1), out_features]
        self.layers = nn.ModuleList(nn.Linear(widths[i], widths[i + 1]) for i in range(num_layers))

    def forward_layer(self, i: int, x: Tensor | FeatureRows, block: Block) -> Tensor:
        out: Tensor = self.layers[i](own_rows(x, block) + aggregate(x, block, "max"))
        return out if i + 1 == len(self.layers) else torch.tanh(out)

    def forward(self, x: Tensor, blocks: list[Block]) -> Tensor:
        for i, block in enumerate(blocks):
            x = self.forward_layer(i, x, block)
        return x
