"""What the layers of a deep model cost on this rank, measured on a few micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.nn.deep import DeepGNN
from gnn_dist.nn.deep.inner import storages
from gnn_dist.nn.deep.model import snap
from gnn_dist.strategies.pipeline.balance import LayerTime
from gnn_dist.strategies.pipeline.plan import Profile
from gnn_dist.strategies.pipeline.stages import DeepMicro, DeepPipelineStage
from gnn_dist.strategies.timing import now

_LAYERS = 4  # measured at once
_BATCHES = 4
_TRIES = 3  # of each micro-batch; the fastest counts
LATENCY, BANDWIDTH = 1e-4, 2e9
"""Seconds and bytes a second, assumed of links where one process has none to measure."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What one layer of a deep model costs on this rank, by a micro-batch's nodes and edges.

    Attributes:
        layers: of the model, all of one shape.
        forward, input, weight: seconds.
        kept: bytes that a layer keeps for its backward pass.
        fixed: bytes that a stage keeps besides its layers.
        deferred: bytes a node that it keeps where gradients of weights are computed apart.
        boundary: bytes a node that travel between stages.
        latency, bandwidth: of links, in seconds and bytes a second.
    """

    layers: int
    forward: LayerTime
    input: LayerTime
    weight: LayerTime
    kept: LayerTime
    fixed: LayerTime
    deferred: float
    boundary: float
    latency: float = LATENCY
    bandwidth: float = BANDWIDTH

    def profile(self, sizes: Sequence[tuple[int, int]]) -> Profile:
        """Of micro-batches of these (nodes, edges)."""

        def grid(cost: Callable[[float, float], float]) -> list[list[float]]:
            row = [cost(nodes, edges) for nodes, edges in sizes]
            return [row] * self.layers

        return Profile(
            grid(self.forward),
            grid(self.input),
            grid(self.weight),
            grid(self.kept),
            [self.boundary * nodes for nodes, _ in sizes],
            self.latency,
            self.bandwidth,
            deferred=grid(lambda n, _: self.deferred * n),
            fixed=[self.fixed(nodes, edges) for nodes, edges in sizes],
        )


def measure(
    model: DeepGNN, micros: Sequence[DeepMicro], loss: Callable[[Tensor, Tensor], Tensor]
) -> LayerCosts:
    """Seconds and bytes fitted as ``a N + b E + c`` on a few of the micro-batches.

    All layers have one shape, so a few are measured for all. Leaves gradients as they were.
    """
    config = model.config
    spread = sorted(micros, key=lambda m: m.num_nodes)
    step = max(1, len(spread) // _BATCHES)
    sample = spread[::step][-_BATCHES:]
    count = min(_LAYERS, config.layers)
    _time(model, sample[-1], count, loss)  # memory is mapped and code is compiled
    times = []
    for micro in sample:
        tries = [_time(model, micro, count, loss) for _ in range(_TRIES)]
        times.append([min(seconds) for seconds in zip(*tries, strict=True)])
    held = [[_held(model, micro, c, loss) for c in (1, count)] for micro in sample]
    kept = [(many - one) / max(count - 1, 1) for one, many in held]

    def fit(values: Sequence[float]) -> LayerTime:
        nodes, edges = [m.num_nodes for m in sample], [m.num_edges for m in sample]
        return LayerTime.fit(nodes, edges, [max(v, 1e-9) for v in values])

    forward, inputs, weights = (fit([t[k] / count for t in times]) for k in range(3))
    element = model.stack.gain.element_size()
    copies, _, width = model.boundary_shape(1)
    return LayerCosts(
        config.layers,
        forward,
        inputs,
        weights,
        fit(kept),
        fit([one - layer for (one, _), layer in zip(held, kept, strict=True)]),
        float(element * config.groups * (config.columns + config.group_width)),
        float(element * copies * width),
    )


def _arriving(stage: DeepPipelineStage, micro: DeepMicro) -> Tensor:
    """What a stage is given: different numbers on the grid, as blocks in the middle have it;
    selecting among equal ones takes several times as long."""
    config, device = stage.model.config, stage.model.stack.gain.device
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(stage.input_shape(micro), generator=draw).to(device, stage.dtype)
    if config.grid is not None:
        value = snap(value, config.grid)
    return value.detach().requires_grad_()


def _held(
    model: DeepGNN, micro: DeepMicro, count: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> int:
    """Bytes that a stage of ``count`` blocks holds between its forward and its backward pass: what
    autograd saves (but parameters), masks, and what the stage is given and gives."""
    stage = DeepPipelineStage(model, 0, count, loss)
    value = _arriving(stage, micro)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved.update(storages([tensor]))
        return tensor.detach()  # the tensor itself would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.blocks(value, micro.topology, 0, count)
    saved.update(stage.held(model.stack.last_inner))
    saved.update(storages([value, out]))
    if not stage.keeps_input:
        saved.pop(value.untyped_storage().data_ptr())
    for address in storages(model.parameters()):
        saved.pop(address, None)
    return sum(saved.values())


def _time(
    model: DeepGNN, micro: DeepMicro, count: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, float, float]:
    """Seconds of forward, input gradients and weight gradients of ``count`` blocks."""
    device = model.stack.gain.device
    saved = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    stage = DeepPipelineStage(model, 0, count, loss)
    value = _arriving(stage, micro)
    start = now(device)
    out = model.blocks(value, micro.topology, 0, count)
    kept = model.stack.last_inner
    after_forward = now(device)
    rest = stage.backward_input(value, out, torch.ones_like(out), kept)
    after_input = now(device)
    rest()
    end = now(device)
    for p, grad in zip(model.parameters(), saved, strict=True):
        p.grad = grad
    return after_forward - start, after_input - after_forward, end - after_input
