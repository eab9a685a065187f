"""Runs a rank's row of a schedule: computes, sends and receives, and tells when it did what."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gnn_dist.errors import InputError
from gnn_dist.nn.deep.inner import storages
from gnn_dist.strategies.pipeline.bubbles import Bubbles
from gnn_dist.strategies.pipeline.link import Arrival, Link
from gnn_dist.strategies.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    check,
)
from gnn_dist.strategies.pipeline.simulate import Span
from gnn_dist.strategies.pipeline.stages import Stage

M = TypeVar("M")
_AHEAD = 2  # messages whose receipt is begun before they are needed


@dataclass(slots=True)
class Step:
    """What one global batch did on this rank.

    Attributes:
        loss: sum of the losses that this rank's last stages gave.
        spans: actions with start and end, in seconds of the machine's monotonic clock.
        waited: seconds spent waiting for messages.
        peak_bytes: most bytes held for backward passes at once.
    """

    loss: float = 0.0
    spans: list[Span] = field(default_factory=list)
    waited: float = 0.0
    peak_bytes: int = 0


@dataclass(slots=True)
class _Held:
    value: Tensor | None
    output: Tensor
    kept: Any
    bytes: int = 0
    weights: Callable[[], None] | None = None


class PipelineExecutor(Generic[M]):
    """One rank of a pipeline.

    Args:
        schedule: the table; checked.
        stages: the stages of this rank, by number.
        link: to the other ranks.
        bubbles: opened while this rank waits, so that other work is done meanwhile.
        clock: seconds at which what was computed so far is there.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage[M]],
        link: Link,
        bubbles: Bubbles | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check(schedule)
        needed = schedule.stages_of(link.rank)
        if sorted(stages) != needed:
            raise InputError(
                f"pipeline: rank {link.rank} computes the stages {needed} of the schedule "
                f"{schedule.name!r}, but was given {sorted(stages)}"
            )
        self.schedule, self.stages = schedule, dict(stages)
        self._link = link
        self._bubbles = bubbles or Bubbles()
        self._clock = clock

    def run(self, micros: Sequence[M]) -> Step:
        """One global batch: gradients accumulate in the parameters of this rank's stages.

        ``micros``: all micro-batches of the global batch, on every rank.
        """
        schedule = self.schedule
        if len(micros) != schedule.num_micro:
            raise InputError(
                f"pipeline: {len(micros)} micro-batches for a schedule of {schedule.num_micro}"
            )
        run = _Run(self, micros)
        for action in schedule.table[self._link.rank]:
            run.do(action)
        self._link.flush()
        return run.step


class _Run(Generic[M]):
    """The state of one global batch."""

    def __init__(self, owner: PipelineExecutor[M], micros: Sequence[M]) -> None:
        self.step = Step()
        self._micros = micros
        self._schedule, self._stages = owner.schedule, owner.stages
        self._link, self._bubbles = owner._link, owner._bubbles
        self._clock, self._rank = owner._clock, owner._link.rank
        self._held: dict[tuple[int, int], _Held] = {}
        self._local: dict[tuple[str, int, int], Tensor] = {}
        self._coming: dict[tuple[str, int, int], Arrival] = {}
        self._to_come = [
            key for a in self._schedule.table[self._rank] if (key := self._expects(a)) is not None
        ]
        self._begun = 0
        self._bytes = 0
        self._own: set[tuple[int, int]] = set()  # whose value came over the link

    def do(self, action: Action) -> None:
        kind, stage, micro = action
        incoming = self._incoming(action)
        start = self._clock()
        if kind == FORWARD:
            out = self._forward(stage, micro, incoming)
        elif kind == WEIGHT:
            held = self._held.pop((stage, micro))
            assert held.weights is not None
            held.weights()
            self._bytes -= held.bytes
            out = None
        else:
            out = self._backward(kind, stage, micro, incoming)
        self.step.spans.append(Span(self._rank, action, start, self._clock()))
        if out is not None:
            self._deliver(action, out)

    def _forward(self, stage: int, micro: int, incoming: Tensor | None) -> Tensor | None:
        value = None if incoming is None else incoming.detach().requires_grad_()
        runner = self._stages[stage]
        with torch.enable_grad():
            output, kept = runner.forward(self._micros[micro], value)
        if value is not None and not runner.keeps_input and (stage, micro) in self._own:
            value.untyped_storage().resize_(0)  # its shape is all that the gradient needs
        held = self._held[stage, micro] = _Held(value, output, kept)
        self._count(held, runner)
        if stage + 1 == self._schedule.num_stages:
            self.step.loss += float(output.detach())
            return None
        return output.detach()

    def _backward(
        self, kind: str, stage: int, micro: int, incoming: Tensor | None
    ) -> Tensor | None:
        held, runner = self._held[stage, micro], self._stages[stage]
        if kind == BACKWARD:
            del self._held[stage, micro]
            runner.backward(held.output, incoming, held.kept)
            self._bytes -= held.bytes
        else:
            held.weights = runner.backward_input(held.value, held.output, incoming, held.kept)
            self._count(held, runner)
        if held.value is None:
            return None
        grad, held.value.grad = held.value.grad, None
        assert grad is not None, f"stage {stage} gave no gradient of its input"
        return grad.contiguous()

    def _count(self, held: _Held, runner: Stage[M]) -> None:
        found = {**storages((held.value, held.output)), **runner.held(held.kept)}
        self._bytes += sum(found.values()) - held.bytes
        held.bytes = sum(found.values())
        self.step.peak_bytes = max(self.step.peak_bytes, self._bytes)

    def _deliver(self, action: Action, tensor: Tensor) -> None:
        kind, stage, micro = action
        forward = kind == FORWARD
        key = (FORWARD, stage + 1, micro) if forward else (BACKWARD, stage - 1, micro)
        to = self._schedule.routes[micro][key[1]]
        if to == self._rank:
            self._local[key] = tensor
        else:
            self._link.send(tensor, to, self._tag(key), self._what(key))

    def _expects(self, action: Action) -> tuple[str, int, int] | None:
        """The message that an action needs from elsewhere, by direction and where it goes."""
        kind, stage, micro = action
        last = self._schedule.num_stages - 1
        if kind == WEIGHT or (kind == FORWARD and stage == 0):
            return None
        if kind in (BACKWARD, INPUT) and stage == last:
            return None
        return (FORWARD if kind == FORWARD else BACKWARD, stage, micro)

    def _source(self, key: tuple[str, int, int]) -> int:
        direction, stage, micro = key
        return self._schedule.routes[micro][stage - 1 if direction == FORWARD else stage + 1]

    def _incoming(self, action: Action) -> Tensor | None:
        key = self._expects(action)
        self._begin()
        if key is None:
            return None
        if key in self._local:
            return self._local.pop(key)
        self._to_come.remove(key)
        self._begun -= 1
        arrival = self._coming.pop(key)
        start = time.perf_counter()
        with self._bubbles.open():
            tensor = arrival.wait()
        self.step.waited += time.perf_counter() - start
        self._begin()
        if key[0] == FORWARD:
            self._own.add(key[1:])
        return tensor

    def _begin(self) -> None:
        """Begin to receive the next few messages, so that they travel while this rank computes."""
        while self._to_come and self._begun < min(_AHEAD, len(self._to_come)):
            key = self._to_come[self._begun]
            source = self._source(key)
            if source == self._rank:
                del self._to_come[self._begun]
                continue
            direction, stage, micro = key
            runner, batch = self._stages[stage], self._micros[micro]
            forward = direction == FORWARD
            shape = runner.input_shape(batch) if forward else runner.output_shape(batch)
            self._coming[key] = self._link.receive(
                shape, runner.dtype, source, self._tag(key), self._what(key)
            )
            self._begun += 1

    def _tag(self, key: tuple[str, int, int]) -> int:
        direction, stage, micro = key
        return (micro * self._schedule.num_stages + stage) * 2 + (direction == BACKWARD)

    @staticmethod
    def _what(key: tuple[str, int, int]) -> str:
        direction, stage, micro = key
        kind = "activation" if direction == FORWARD else "gradient"
        return f"{kind} of micro-batch {micro} for stage {stage}"
