"""Stages: what a rank computes of a micro-batch between two messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from gnn_dist.batch import MiniBatch
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.nn.deep.inner import Inner, storages
from gnn_dist.nn.deep.topology import DeepTopology
from gnn_dist.nn.deep.torch_stack import TorchInner

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Stage(Protocol[M_contra]):
    """One stage of a model. Shapes of messages follow from the micro-batch alone."""

    dtype: torch.dtype
    keeps_input: bool
    """whether the backward pass reads the value that ``forward`` was given"""

    def input_shape(self, micro: M_contra) -> tuple[int, ...]:
        """Of what arrives from the stage before; not asked of the first stage."""
        ...

    def output_shape(self, micro: M_contra) -> tuple[int, ...]:
        """Of what goes to the next stage; not asked of the last stage."""
        ...

    def forward(self, micro: M_contra, value: Tensor | None) -> tuple[Tensor, Any]:
        """(output, anything that the backward pass needs). The last stage's output is its share
        of the loss of the global batch, a scalar. ``value`` is None in the first stage."""
        ...

    def held(self, kept: Any) -> dict[int, int]:
        """Storages, by address, and bytes of what is held besides the value and the output."""
        ...

    def backward(self, output: Tensor, grad: Tensor | None, kept: Any) -> None:
        """Accumulate gradients of parameters, and of the value that ``forward`` was given."""
        ...

    def backward_input(
        self, value: Tensor | None, output: Tensor, grad: Tensor | None, kept: Any
    ) -> Callable[[], None]:
        """As ``backward``, without (some of) the gradients of weights; calling the answer
        accumulates these."""
        ...


class ModuleStage(Generic[M]):
    """Any ``nn.Module`` as a stage.

    Args:
        call: ``(module, micro, value) -> output``.
        shapes: ``(micro) -> (input shape, output shape)``.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[nn.Module, M, Tensor | None], Tensor],
        shapes: Callable[[M], tuple[tuple[int, ...], tuple[int, ...]]],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.module, self.dtype, self.keeps_input = module, dtype, True
        self._call, self._shapes = call, shapes

    def input_shape(self, micro: M) -> tuple[int, ...]:
        return self._shapes(micro)[0]

    def output_shape(self, micro: M) -> tuple[int, ...]:
        return self._shapes(micro)[1]

    def forward(self, micro: M, value: Tensor | None) -> tuple[Tensor, Any]:
        return self._call(self.module, micro, value), None

    def held(self, kept: Any) -> dict[int, int]:
        return {}

    def backward(self, output: Tensor, grad: Tensor | None, kept: Any) -> None:
        torch.autograd.backward(output, grad)

    def backward_input(
        self, value: Tensor | None, output: Tensor, grad: Tensor | None, kept: Any
    ) -> Callable[[], None]:
        if value is not None:
            (value.grad,) = torch.autograd.grad(output, (value,), grad, retain_graph=True)
        parameters = [p for p in self.module.parameters() if p.requires_grad]

        def weights() -> None:
            if parameters:
                grads = torch.autograd.grad(output, parameters, grad, allow_unused=True)
                accumulate(parameters, grads)

        return weights


def accumulate(parameters: Sequence[nn.Parameter], grads: Sequence[Tensor | None]) -> None:
    """Add to ``.grad``."""
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            continue
        if parameter.grad is None:
            parameter.grad = grad.clone()
        else:
            parameter.grad.add_(grad)


@dataclass(slots=True)
class DeepMicro:
    """A micro-batch of sub-graphs as every rank has it.

    Attributes:
        batch: topology and seeds; ``x`` where the first stage is, targets where the last is.
        topology: what the blocks read.
        target: of the seeds, or None where they are not needed.
    """

    batch: MiniBatch
    topology: DeepTopology
    target: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.topology.num_nodes

    @property
    def num_edges(self) -> int:
        return self.batch.blocks[0].num_edges

    @property
    def size(self) -> tuple[int, int]:
        """Nodes and edges."""
        return self.num_nodes, self.num_edges

    @property
    def num_bytes(self) -> int:
        """Of topology, features and targets."""
        arrays = {
            id(a): a.nbytes
            for sweep in self.topology.sweeps
            for a in (getattr(sweep, name) for name in sweep.__slots__)
        }
        rows = [t for t in (self.batch.x, self.target) if isinstance(t, Tensor)]
        return sum(arrays.values()) + sum(t.numel() * t.element_size() for t in rows)


class DeepPipelineStage:
    """Blocks ``first`` to ``stop - 1`` of a deep model; encoder and head at the ends.

    The rank holds the whole model (weights are small, activations are not); gradients of other
    stages' weights stay zero here and are summed over the ranks.

    Args:
        loss: ``(outputs, targets) -> sum over seeds``; divided by the seeds of the global batch.
    """

    def __init__(
        self, model: DeepGNN, first: int, stop: int, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self.model, self.first, self.stop = model, first, stop
        self.dtype = model.stack.gain.dtype
        config = model.config
        self.keeps_input = config.mode != "reversible" or config.initial_residual > 0
        self._loss = loss

    def input_shape(self, micro: DeepMicro) -> tuple[int, ...]:
        return self.model.boundary_shape(micro.num_nodes)

    def output_shape(self, micro: DeepMicro) -> tuple[int, ...]:
        return self.input_shape(micro)

    def forward(self, micro: DeepMicro, value: Tensor | None) -> tuple[Tensor, Any]:
        model = self.model
        if self.first == 0:
            value = model.encode(micro.batch.x)  # type: ignore[arg-type]
        assert value is not None
        out = model.blocks(value, micro.topology, self.first, self.stop)
        kept = model.stack.last_inner
        if self.stop == model.config.layers:
            assert micro.target is not None
            output = model.decode(out, micro.batch.blocks[-1].num_dst)
            out = self._loss(output, micro.target) / micro.batch.global_seeds
        return out, kept

    def held(self, kept: Any) -> dict[int, int]:
        inner: Inner | TorchInner = kept
        deferred = [t for entry in inner.deferred or () for t in entry[2:]]
        return {**inner.saved, **storages(deferred)}

    def backward(self, output: Tensor, grad: Tensor | None, kept: Any) -> None:
        torch.autograd.backward(output, grad)

    def backward_input(
        self, value: Tensor | None, output: Tensor, grad: Tensor | None, kept: Any
    ) -> Callable[[], None]:
        deferred = kept.deferred = []
        torch.autograd.backward(output, grad)
        stack, first = self.model.stack, self.first

        def weights() -> None:
            assert stack.weight.grad is not None
            assert stack.bias.grad is not None
            for layer, group, z, g in deferred:
                product = torch.zeros_like(stack.weight[0, 0])
                stack.weight.grad[first + layer, group] += product.addmm_(z.t(), g)
                stack.bias.grad[first + layer, group] += g.sum(0)
            kept.deferred = None

        return weights
