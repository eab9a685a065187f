"""What the layers of a deep model cost on this rank, measured on a few micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.nn.deep import DeepGNN
from gnn_dist.nn.deep.model import snap
from gnn_dist.strategies.pipeline.balance import LayerTime
from gnn_dist.strategies.pipeline.plan import Profile
from gnn_dist.strategies.pipeline.stages import DeepMicro, DeepPipelineStage
from gnn_dist.strategies.timing import now

_LAYERS = 4  # measured at once
_BATCHES = 4
_TRIES = 3  # of each micro-batch; the fastest counts


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What one layer of a deep model costs on this rank, by a micro-batch's nodes and edges.

    Attributes:
        layers: of the model, all of one shape.
        forward, input, weight: seconds.
        kept: bytes a node that a layer keeps for its backward pass.
        deferred: bytes a node that it keeps where gradients of weights are computed apart.
        boundary: bytes a node that travel between stages.
        latency, bandwidth: of links, in seconds and bytes a second.
    """

    layers: int
    forward: LayerTime
    input: LayerTime
    weight: LayerTime
    kept: float
    deferred: float
    boundary: float
    latency: float = 1e-4
    bandwidth: float = 2e9

    def profile(self, sizes: Sequence[tuple[int, int]]) -> Profile:
        """Of micro-batches of these (nodes, edges)."""

        def grid(cost: Callable[[float, float], float]) -> list[list[float]]:
            row = [cost(nodes, edges) for nodes, edges in sizes]
            return [row] * self.layers

        return Profile(
            grid(self.forward),
            grid(self.input),
            grid(self.weight),
            grid(lambda n, _: self.kept * n),
            [self.boundary * nodes for nodes, _ in sizes],
            self.latency,
            self.bandwidth,
            deferred=grid(lambda n, _: self.deferred * n),
        )


def measure(
    model: DeepGNN, micros: Sequence[DeepMicro], loss: Callable[[Tensor, Tensor], Tensor]
) -> LayerCosts:
    """Costs fitted as ``a N + b E + c`` on a few of the micro-batches.

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
    nodes, edges = [m.num_nodes for m in sample], [m.num_edges for m in sample]
    forward, inputs, weights = (
        LayerTime.fit(nodes, edges, [max(t[k], 1e-9) / count for t in times]) for k in range(3)
    )
    element = model.stack.gain.element_size()
    copies, _, width = model.boundary_shape(1)
    return LayerCosts(
        config.layers,
        forward,
        inputs,
        weights,
        _kept_bytes(model, element),
        float(element * config.groups * (config.columns + config.group_width)),
        float(element * copies * width),
    )


def _kept_bytes(model: DeepGNN, element: int) -> float:
    """Bytes a node that one block keeps for its backward pass."""
    config = model.config
    if config.mode == "reversible":
        return 0.0
    shrink = {None: 1.0, "bf16": 2 / element, "int8": 1.1 / element}[config.compression]
    state = config.width * element * shrink
    if config.mode == "checkpoint":
        return state
    packed = config.groups * (config.kept * element + config.group_width / 8)
    if config.packed:
        return state + packed
    return state + packed + config.groups * config.columns * element * shrink


def _time(
    model: DeepGNN, micro: DeepMicro, count: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, float, float]:
    """Seconds of forward, input gradients and weight gradients of ``count`` blocks."""
    device = model.stack.gain.device
    saved = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    stage = DeepPipelineStage(model, 0, count, loss)
    # From different numbers on the grid, as blocks in the middle have it: selecting among equal
    # ones takes several times as long.
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(stage.input_shape(micro), generator=draw).to(device, stage.dtype)
    if model.config.grid is not None:
        value = snap(value, model.config.grid)
    value = value.detach().requires_grad_()
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
