"""``DeepGNN``: hundreds of residual blocks on one sub-graph."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.features import FeatureRows
from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.inner import Inner
from gnn_dist.nn.deep.parameters import StackTensors, initialise
from gnn_dist.nn.deep.residual import run_stack
from gnn_dist.nn.deep.topology import DeepTopology, prepare
from gnn_dist.nn.deep.torch_stack import TorchInner, run_torch_stack
from gnn_dist.nn.deep.workspace import Workspace
from gnn_dist.rng import fold


def uses_kernels(state: Tensor) -> bool:
    """Whether blocks run in our kernels; elsewhere they run in torch operators."""
    return state.device.type == "cpu"


class ReversibleStack(nn.Module):
    """The blocks of a deep model: state [C, N, d] to state [C, N, d].

    Parameters are stacked, [blocks, C, ...] (see ``StackTensors``).
    """

    gain: nn.Parameter
    shift: nn.Parameter
    weight: nn.Parameter
    bias: nn.Parameter
    attention: nn.Parameter

    def __init__(self, config: DeepConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        for name, tensor in initialise(config, 0, config.layers, seed)._asdict().items():
            self.register_parameter(name, nn.Parameter(tensor))
        self._workspace = Workspace()
        self.last_inner: Inner | TorchInner | None = None

    def tensors(self) -> StackTensors:
        return StackTensors(*(getattr(self, name) for name in StackTensors._fields))

    @property
    def workspace_bytes(self) -> int:
        """Of the buffers that all blocks and all batches share, as the largest batch made them."""
        return self._workspace.bytes()

    def topology(self, block: Block) -> DeepTopology:
        """What the blocks read of a square ``Block``; reusable while the block is."""
        dtype = np.dtype(str(self.gain.dtype).removeprefix("torch."))
        config = self.config
        return prepare(block, config.conv, config.direction, dtype, config.gin_eps)

    def forward(
        self,
        state: Tensor,
        topology: DeepTopology,
        initial: Tensor | None = None,
        *,
        first: int = 0,
        stop: int | None = None,
    ) -> Tensor:
        """Blocks ``first`` to ``stop - 1`` (default: all).

        ``initial``: GCNII's rows [C, N, d], needed where ``initial_residual`` is not 0.
        """
        layers = self.config.layers
        stop = layers if stop is None else stop
        if first == stop:
            return state
        tensors = self.tensors()
        if (first, stop) != (0, layers):
            tensors = StackTensors(*(t[first:stop] for t in tensors))
        drop = self.training and self.config.dropout > 0
        if not uses_kernels(state):
            there = TorchInner(self.config, topology, state.device, first_layer=first, drop=drop)
            self.last_inner = there
            return run_torch_stack(there, state, initial, tensors)
        inner = Inner(
            self.config,
            topology,
            self._workspace,
            self.gain.dtype,
            first_layer=first,
            drop=drop,
        )
        self.last_inner = inner
        return run_stack(inner, state, initial, tensors)


class DeepGNN(nn.Module):
    """A deep model on sub-graphs. Takes ``(x, blocks)`` as every model does.

    ``blocks[0]`` is square: the sub-graph that all ``layers`` blocks read. The answer is for the
    destinations of the last of ``blocks`` (the first nodes; all of them where there is one block).
    Arguments are those of ``DeepConfig``; ``seed`` draws the weights.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int = 64,
        layers: int = 28,
        groups: int = 2,
        keep: int | None = None,
        conv: str = "mean",
        direction: str = "fan_in",
        norm: str = "layer",
        dropout: float = 0.0,
        initial_residual: float = 0.0,
        gin_eps: float = 0.0,
        grid: int | None = 16,
        mode: str = "reversible",
        saved_indices: bool = False,
        compression: str | None = None,
        packed: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = DeepConfig(
            width=width,
            layers=layers,
            groups=groups,
            keep=keep,
            conv=conv,
            direction=direction,
            norm=norm,
            dropout=dropout,
            initial_residual=initial_residual,
            gin_eps=gin_eps,
            grid=grid,
            mode=mode,
            saved_indices=saved_indices,
            compression=compression,
            packed=packed,
        )
        self.in_features, self.out_features = in_features, out_features
        self.encoder = nn.Linear(in_features, width)
        self.stack = ReversibleStack(self.config, seed=seed)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, out_features)
        _initialise_linear(self.encoder, seed, 2)
        _initialise_linear(self.head, seed, 3)

    def forward(self, x: "Tensor | FeatureRows", blocks: list[Block]) -> Tensor:
        topology = self.stack.topology(blocks[0])
        state = self.encode(x)
        state = self.blocks(state, topology, 0, self.config.layers)
        return self.decode(state, blocks[-1].num_dst)

    def encode(self, x: "Tensor | FeatureRows") -> Tensor:
        """Features [N, F] to what travels between blocks, on the grid.

        That is the state [C, N, d], or [2C, N, d] with GCNII's initial rows behind it.
        """
        rows = x if isinstance(x, Tensor) else x.materialise()
        config = self.config
        hidden = self.encoder(rows.to(self.encoder.weight.dtype))
        if config.grid is not None:
            hidden = snap(hidden, config.grid)
        state = hidden.view(-1, config.groups, config.group_width).transpose(0, 1).contiguous()
        return torch.cat((state, state)) if config.initial_residual else state

    def blocks(self, value: Tensor, topology: DeepTopology, first: int, stop: int) -> Tensor:
        """Blocks ``first`` to ``stop - 1`` of what travels between blocks."""
        groups = self.config.groups
        if not self.config.initial_residual:
            return self.stack(value, topology, first=first, stop=stop)
        state, initial = value[:groups], value[groups:]
        state = self.stack(state, topology, initial, first=first, stop=stop)
        return torch.cat((state, initial))

    def decode(self, value: Tensor, num_seeds: int) -> Tensor:
        """[num_seeds, out] for the first nodes."""
        seeds = value[: self.config.groups, :num_seeds].transpose(0, 1)
        return self.head(self.norm(seeds.reshape(num_seeds, -1)))

    def boundary_shape(self, num_nodes: int) -> tuple[int, int, int]:
        """Shape of what travels between blocks."""
        config = self.config
        copies = 2 if config.initial_residual else 1
        return copies * config.groups, num_nodes, config.group_width


class _Snap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        return torch.round(x * 2.0**bits) * 2.0**-bits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


def snap(x: Tensor, bits: int) -> Tensor:
    """The nearest multiples of 2**-bits; the gradient passes as if nothing had been done."""
    return _Snap.apply(x, bits)


def _initialise_linear(linear: nn.Linear, seed: int, which: int) -> None:
    generator = torch.Generator().manual_seed(fold(seed, which) >> 1)
    bound = linear.in_features**-0.5
    with torch.no_grad():
        linear.weight.uniform_(-bound, bound, generator=generator)
        linear.bias.zero_()
