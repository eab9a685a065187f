"""What a schedule will do: when each action runs, how long in all, how much is held."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gnn_dist.strategies.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    order,
    parse,
)

_NAMES = {FORWARD: "forward", BACKWARD: "backward", INPUT: "input", WEIGHT: "weight"}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds and bytes of every stage for every micro-batch.

    Attributes:
        forward, input, weight: ``[stage][micro]`` seconds; a whole backward pass takes
            ``input + weight``.
        activation: ``[stage][micro]`` bytes held from the forward pass to the end of the backward.
        message: ``[micro]`` bytes that travel between neighbouring stages.
        deferred: ``[stage][micro]`` bytes held besides between the two halves of a split backward
            pass; None for none.
        latency, bandwidth: of a link between ranks, in seconds and bytes a second.
    """

    forward: Sequence[Sequence[float]]
    input: Sequence[Sequence[float]]
    weight: Sequence[Sequence[float]]
    activation: Sequence[Sequence[float]]
    message: Sequence[float]
    latency: float = 0.0
    bandwidth: float = float("inf")
    deferred: Sequence[Sequence[float]] | None = None

    @classmethod
    def uniform(
        cls,
        stages: int,
        micro: int,
        forward: float = 1.0,
        backward: float = 2.0,
        *,
        weight_share: float = 0.5,
        activation: float = 1.0,
        message: float = 0.0,
        latency: float = 0.0,
        bandwidth: float = float("inf"),
    ) -> "Costs":
        def grid(value: float) -> list[list[float]]:
            return [[value] * micro for _ in range(stages)]

        return cls(
            grid(forward),
            grid(backward * (1 - weight_share)),
            grid(backward * weight_share),
            grid(activation),
            [message] * micro,
            latency,
            bandwidth,
        )

    def seconds(self, action: Action) -> float:
        kind, stage, micro = action
        if kind == FORWARD:
            return self.forward[stage][micro]
        inputs, weights = self.input[stage][micro], self.weight[stage][micro]
        return {BACKWARD: inputs + weights, INPUT: inputs, WEIGHT: weights}[kind]

    def link(self, micro: int) -> float:
        return self.latency + self.message[micro] / self.bandwidth


class Span(NamedTuple):
    """An action on a rank from ``start`` to ``end``, in seconds."""

    rank: int
    action: Action
    start: float
    end: float

    def moved(self, seconds: float) -> "Span":
        return self._replace(start=self.start + seconds, end=self.end + seconds)


@dataclass(frozen=True)
class Timeline:
    """Spans of a step, simulated or measured.

    Attributes:
        peak_bytes: for each rank the most bytes of activations held at once.
    """

    name: str
    num_ranks: int
    spans: tuple[Span, ...]
    peak_bytes: tuple[float, ...] = ()

    @property
    def makespan(self) -> float:
        return max(s.end for s in self.spans) - min(s.start for s in self.spans)

    @property
    def bubble(self) -> float:
        """Share of the ranks' time that is idle."""
        busy = sum(s.end - s.start for s in self.spans)
        return 1.0 - busy / (self.num_ranks * self.makespan)

    def busy(self, rank: int) -> float:
        return sum(s.end - s.start for s in self.spans if s.rank == rank)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: spans are [action, rank, start, end], from the first start on."""
        first = min(s.start for s in self.spans)
        spans = [
            [str(s.action), s.rank, round(s.start - first, 6), round(s.end - first, 6)]
            for s in self.spans
        ]
        return {
            "name": self.name,
            "ranks": self.num_ranks,
            "spans": spans,
            "peak_bytes": list(self.peak_bytes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Timeline":
        """What ``as_dict`` gave."""
        spans = tuple(Span(rank, parse(a), start, end) for a, rank, start, end in values["spans"])
        return cls(values["name"], values["ranks"], spans, tuple(values["peak_bytes"]))

    def chrome_trace(self) -> str:
        """For chrome://tracing and Perfetto."""
        events = [
            {
                "name": f"{_NAMES[s.action.kind]} {s.action.micro}",
                "cat": _NAMES[s.action.kind],
                "ph": "X",
                "ts": s.start * 1e6,
                "dur": (s.end - s.start) * 1e6,
                "pid": 0,
                "tid": s.rank,
                "args": {"stage": s.action.stage, "micro_batch": s.action.micro},
            }
            for s in self.spans
        ]
        ranks = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": r, "args": {"name": f"rank {r}"}}
            for r in range(self.num_ranks)
        ]
        return json.dumps({"traceEvents": ranks + events, "displayTimeUnit": "ms"})

    def gantt_svg(self, width: int = 900, row: int = 26, seconds: float | None = None) -> str:
        """A picture: a row a rank, a box an action with its micro-batch.

        seconds: of the whole width, to set pictures beside each other; None for the makespan.
        """
        colours = {FORWARD: "#4c78a8", BACKWARD: "#f58518", INPUT: "#eeca3b", WEIGHT: "#72b7b2"}
        first = min(s.start for s in self.spans)
        scale = (width - 70) / (seconds or self.makespan)
        height = self.num_ranks * row + 24
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="11">'
        ]
        for rank in range(self.num_ranks):
            y = rank * row
            parts.append(f'<text x="0" y="{y + row * 0.65:.1f}">rank {rank}</text>')
            parts.append(
                f'<rect x="60" y="{y + 2}" width="{width - 70}" height="{row - 4}" fill="#eeeeee"/>'
            )
        for s in self.spans:
            x, y = 60 + (s.start - first) * scale, s.rank * row + 2
            w = max((s.end - s.start) * scale, 0.5)
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{row - 4}" '
                f'fill="{colours[s.action.kind]}" stroke="#ffffff" stroke-width="0.5">'
                f"<title>{s.action}: {s.start - first:.4g} to {s.end - first:.4g} s</title></rect>"
            )
            if w > 12:
                parts.append(
                    f'<text x="{x + w / 2:.2f}" y="{y + row * 0.55:.1f}" text-anchor="middle" '
                    f'fill="#ffffff">{s.action.micro}</text>'
                )
        label = f"{self.name}: {self.makespan:.4g} s, bubble {100 * self.bubble:.1f}%"
        parts.append(f'<text x="60" y="{height - 6}">{label}</text>')
        kinds = [k for k in colours if any(s.action.kind == k for s in self.spans)]
        for k, kind in enumerate(kinds):
            x = width - 10 - 90 * (len(kinds) - k)
            parts.append(
                f'<rect x="{x}" y="{height - 15}" width="10" height="10" fill="{colours[kind]}"/>'
                f'<text x="{x + 14}" y="{height - 6}">{_NAMES[kind]}</text>'
            )
        parts.append("</svg>")
        return "".join(parts)


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Every action begins once its rank is free and its inputs have arrived."""
    end: dict[Action, float] = {}
    free = [0.0] * schedule.num_ranks
    spans = []
    for action in order(schedule):
        rank = schedule.rank_of(action)
        start = free[rank]
        for before in schedule.dependencies(action):
            crosses = schedule.rank_of(before) != rank
            start = max(start, end[before] + (costs.link(action.micro) if crosses else 0.0))
        end[action] = free[rank] = start + costs.seconds(action)
        spans.append(Span(rank, action, start, end[action]))
    peaks = held_bytes(schedule, costs)
    return Timeline(schedule.name, schedule.num_ranks, tuple(spans), tuple(peaks))


def held_bytes(schedule: Schedule, costs: Costs) -> list[float]:
    """Peak of what each rank holds, from forward passes to the ends of backward passes."""
    peaks = []
    for row in schedule.table:
        held = peak = 0.0
        for kind, stage, micro in row:
            activation = costs.activation[stage][micro]
            deferred = 0.0 if costs.deferred is None else costs.deferred[stage][micro]
            if kind == FORWARD:
                held += activation
            elif kind == INPUT:
                held += deferred
            peak = max(peak, held)
            if kind == BACKWARD:
                held -= activation
            elif kind == WEIGHT:
                held -= activation + deferred
        peaks.append(peak)
    return peaks
