"""``DeepGNN``: hundreds of residual blocks on one sub-graph, whole or a stage of it."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureRows
from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.inner import Inner
from gnn_dist.nn.deep.parameters import StackTensors, initialise
from gnn_dist.nn.deep.residual import run_stack
from gnn_dist.nn.deep.topology import DeepTopology, prepare
from gnn_dist.nn.deep.workspace import Workspace
from gnn_dist.rng import fold


class ReversibleStack(nn.Module):
    """Blocks ``first`` to ``stop - 1`` of a deep model: state [C, N, d] to state [C, N, d].

    Parameters are stacked, [blocks, C, ...] (see ``StackTensors``).
    """

    def __init__(
        self, config: DeepConfig, *, first: int = 0, stop: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        self.first = first
        self.stop = config.layers if stop is None else stop
        if not 0 <= self.first <= self.stop <= config.layers:
            raise InputError(
                f"stage: blocks {first} to {self.stop} are not within the model's {config.layers}"
            )
        if self.stop > self.first:
            tensors = initialise(config, self.first, self.stop, seed)
            for name, tensor in tensors._asdict().items():
                self.register_parameter(name, nn.Parameter(tensor))
        self._workspace = Workspace()
        self.last_inner: Inner | None = None

    def tensors(self) -> StackTensors:
        return StackTensors(*(getattr(self, name) for name in StackTensors._fields))

    def topology(self, block: Block) -> DeepTopology:
        """What the blocks read of a square ``Block``; reusable while the block is."""
        dtype = np.dtype(str(self.dtype).removeprefix("torch."))
        config = self.config
        return prepare(block, config.conv, config.direction, dtype, config.gin_eps)

    @property
    def dtype(self) -> torch.dtype:
        return self.gain.dtype if self.stop > self.first else torch.get_default_dtype()

    def forward(
        self, state: Tensor, topology: DeepTopology, initial: Tensor | None = None
    ) -> Tensor:
        """``initial``: GCNII's rows [C, N, d], needed where ``initial_residual`` is not 0."""
        if self.stop == self.first:
            return state
        inner = Inner(
            self.config,
            topology,
            self._workspace,
            self.dtype,
            first_layer=self.first,
            drop=self.training and self.config.dropout > 0,
        )
        self.last_inner = inner
        return run_stack(inner, state, initial, self.tensors())


class DeepStage(nn.Module):
    """A contiguous share of a deep model: encoder (first), blocks, head (last).

    Between stages travels one tensor, [C, N, d], or [2C, N, d] with GCNII's initial rows behind.
    """

    def __init__(
        self,
        config: DeepConfig,
        in_features: int,
        out_features: int,
        *,
        first: int = 0,
        stop: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        stop = config.layers if stop is None else stop
        self.in_features, self.out_features = in_features, out_features
        self.is_first, self.is_last = first == 0, stop == config.layers
        if self.is_first:
            self.encoder = nn.Linear(in_features, config.width)
            _initialise_linear(self.encoder, seed, 2)
        self.stack = ReversibleStack(config, first=first, stop=stop, seed=seed)
        if self.is_last:
            self.norm = nn.LayerNorm(config.width)
            self.head = nn.Linear(config.width, out_features)
            _initialise_linear(self.head, seed, 3)

    def encode(self, x: "Tensor | FeatureRows") -> Tensor:
        """Features [N, F] to the state before the first block, on the grid."""
        rows = x if isinstance(x, Tensor) else x.materialise()
        config = self.config
        hidden = self.encoder(rows.to(self.encoder.weight.dtype))
        if config.grid is not None:
            hidden = snap(hidden, config.grid)
        return hidden.view(-1, config.groups, config.group_width).transpose(0, 1).contiguous()

    def stage(self, value: Tensor, topology: DeepTopology, num_seeds: int) -> Tensor:
        """What travels in to what travels out: [N, F] in first, [num_seeds, out] out last."""
        keeps = self.config.initial_residual > 0
        state = self.encode(value) if self.is_first else value
        initial = None
        if keeps:
            groups = self.config.groups
            initial = state if self.is_first else state[groups:]
            state = state[:groups]
        state = self.stack(state, topology, initial)
        if not self.is_last:
            return state if initial is None else torch.cat((state, initial))
        seeds = state[:, :num_seeds].transpose(0, 1).reshape(num_seeds, -1)
        return self.head(self.norm(seeds))


class DeepGNN(DeepStage):
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
        config = DeepConfig(
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
        super().__init__(config, in_features, out_features, seed=seed)

    def forward(self, x: "Tensor | FeatureRows", blocks: list[Block]) -> Tensor:
        return self.stage(x, self.stack.topology(blocks[0]), blocks[-1].num_dst)  # type: ignore[arg-type]


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


def stage_state(stage: DeepStage, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a whole model's state dict what ``stage`` holds."""
    first, stop = stage.stack.first, stage.stack.stop
    return {
        name: whole[name][first:stop] if name.startswith("stack.") else whole[name]
        for name in stage.state_dict()
    }


def model_arguments(config: DeepConfig) -> dict[str, Any]:
    """The config as ``DeepGNN``'s keyword arguments, where they differ from the defaults."""
    return {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if getattr(config, f.name) != f.default and f.name not in ("norm_eps", "attention_slope")
    }


def _initialise_linear(linear: nn.Linear, seed: int, which: int) -> None:
    generator = torch.Generator().manual_seed(fold(seed, which) >> 1)
    bound = linear.in_features**-0.5
    with torch.no_grad():
        linear.weight.uniform_(-bound, bound, generator=generator)
        linear.bias.zero_()
