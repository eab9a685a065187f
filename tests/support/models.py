"""Models of users' own kinds."""

from torch import Tensor, nn

from gnn_dist.batch import Block
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
