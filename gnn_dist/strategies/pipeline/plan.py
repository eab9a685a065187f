"""Candidates of schedule, cut and number of micro-batches, simulated and compared."""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from gnn_dist.errors import InputError
from gnn_dist.strategies.pipeline.balance import partition
from gnn_dist.strategies.pipeline.generators import SCHEDULES, generate
from gnn_dist.strategies.pipeline.schedule import Schedule
from gnn_dist.strategies.pipeline.simulate import Costs, Timeline, simulate


@dataclass(frozen=True, slots=True)
class Profile:
    """What a layer costs for each micro-batch of a global batch.

    Attributes:
        forward, input, weight: ``[layer][micro]`` seconds.
        activation: ``[layer][micro]`` bytes that a layer keeps until its backward pass.
        boundary: ``[micro]`` bytes between stages.
        fixed: ``[micro]`` bytes that a stage keeps besides its layers; None for its boundary alone.
        deferred: ``[layer][micro]`` bytes that a layer keeps for the gradients of its weights where
            these are computed apart; None for none.
        latency, bandwidth: of links.
        overhead: seconds that every action costs beside its layers.
    """

    forward: Sequence[Sequence[float]]
    input: Sequence[Sequence[float]]
    weight: Sequence[Sequence[float]]
    activation: Sequence[Sequence[float]]
    boundary: Sequence[float]
    latency: float = 0.0
    bandwidth: float = float("inf")
    overhead: float = 0.0
    deferred: Sequence[Sequence[float]] | None = None
    fixed: Sequence[float] | None = None

    @property
    def stage_bytes(self) -> Sequence[float]:
        """``[micro]`` bytes that a stage keeps besides its layers."""
        return self.boundary if self.fixed is None else self.fixed

    @property
    def num_layers(self) -> int:
        return len(self.forward)

    @property
    def num_micro(self) -> int:
        return len(self.boundary)

    def stage_costs(self, bounds: Sequence[int]) -> Costs:
        """Of the stages between ``bounds``."""

        def grid(layers: Sequence[Sequence[float]], extra: Sequence[float]) -> list[list[float]]:
            return [
                [
                    sum(layers[k][m] for k in range(bounds[s], bounds[s + 1])) + extra[m]
                    for m in range(self.num_micro)
                ]
                for s in range(len(bounds) - 1)
            ]

        overhead, nothing = [self.overhead] * self.num_micro, [0.0] * self.num_micro
        return Costs(
            grid(self.forward, overhead),
            grid(self.input, overhead),
            grid(self.weight, nothing),
            grid(self.activation, self.stage_bytes),
            list(self.boundary),
            self.latency,
            self.bandwidth,
            None if self.deferred is None else grid(self.deferred, nothing),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a global batch. ``bounds``: first layer of each stage, and the end."""

    schedule: Schedule
    bounds: tuple[int, ...]
    timeline: Timeline
    fits: bool

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def peak_mib(self) -> float:
        """Of activations, on the rank that holds most."""
        return max(self.timeline.peak_bytes) / 2**20

    def row(self) -> dict[str, object]:
        """For a table."""
        return {
            "schedule": self.name,
            "stages": len(self.bounds) - 1,
            "layers a stage": "-".join(
                str(b - a) for a, b in zip(self.bounds, self.bounds[1:], strict=False)
            ),
            "makespan_s": self.timeline.makespan,
            "bubble_percent": 100 * self.timeline.bubble,
            "peak_mib": self.peak_mib,
            "fits": "yes" if self.fits else "no",
        }


def candidates(
    profile: Profile,
    ranks: int,
    *,
    memory_limit: float = float("inf"),
    schedules: Sequence[str] = tuple(SCHEDULES),
    chunks: Sequence[int] = (2, 4),
) -> list[Candidate]:
    """Every schedule with its best cut, the best first: the fastest of those that fit; those that
    do not fit come last, the smallest first.

    memory_limit: bytes of activations a rank may hold.
    """
    found = []
    for name in schedules:
        if name == "chimera" and ranks % 2:
            continue
        for pieces in chunks if name == "interleaved" else (1,):
            if ranks * pieces > profile.num_layers or (ranks == 1 and pieces > 1):
                continue
            schedule = generate(name, ranks, profile.num_micro, pieces)
            found.append(candidate(profile, schedule, memory_limit=memory_limit))
    if not found:
        raise InputError(
            f"pipeline: {profile.num_layers} layers cannot be cut for {ranks} ranks; use fewer"
        )
    return ranked(found)


def candidate(
    profile: Profile,
    schedule: Schedule,
    *,
    memory_limit: float = float("inf"),
    seconds: Sequence[float] | None = None,
) -> Candidate:
    """A schedule with its best cut: the fastest that fits, or the fastest of all if none does.

    seconds: of each layer, where these were measured in another way than the profile's.
    """
    layer_seconds = seconds or [
        sum(f) + sum(i) + sum(w)
        for f, i, w in zip(profile.forward, profile.input, profile.weight, strict=True)
    ]
    bounds = partition(layer_seconds, schedule.num_stages)
    timeline = simulate(schedule, profile.stage_costs(bounds))
    if max(timeline.peak_bytes) > memory_limit:
        bounds, timeline = _under(profile, schedule, layer_seconds, memory_limit, bounds)
    fits = max(timeline.peak_bytes) <= memory_limit
    return Candidate(schedule, tuple(bounds), timeline, fits)


def ranked(found: Sequence[Candidate]) -> list[Candidate]:
    """The best first."""
    return sorted(found, key=_order)


def _order(candidate: Candidate) -> tuple[bool, float]:
    timeline = candidate.timeline
    return not candidate.fits, timeline.makespan if candidate.fits else max(timeline.peak_bytes)


def _under(
    profile: Profile,
    schedule: Schedule,
    layer_seconds: Sequence[float],
    limit: float,
    fallback: list[int],
) -> tuple[list[int], Timeline]:
    """A cut whose stages hold less, where the fastest one holds too much."""
    stages = schedule.num_stages
    flying = schedule.peak_in_flight()
    share = [max(flying[rank] for rank in schedule.holders(s)) for s in range(stages)]
    memory = [max(a) for a in profile.activation]
    edge = max(profile.stage_bytes)
    bounds = fallback
    with contextlib.suppress(InputError):  # none fits: the caller says so
        bounds = partition(
            layer_seconds, stages, memory=memory, limit=[limit / n - edge for n in share]
        )
    return bounds, simulate(schedule, profile.stage_costs(bounds))


def plan(profile: Profile, ranks: int, *, memory_limit: float = float("inf")) -> Candidate:
    """The fastest candidate under the memory limit. Warns and takes the smallest if none fits."""
    best = candidates(profile, ranks, memory_limit=memory_limit)[0]
    warn_if_too_large(best, memory_limit)
    return best


def warn_if_too_large(best: Candidate, memory_limit: float) -> None:
    """Where not even the best of the candidates considered fits."""
    if not best.fits:
        warnings.warn(
            f"pipeline: no schedule fits {memory_limit / 2**20:,.4g} MiB of activations a rank "
            f"(pipeline.memory_mib); taking {best.name}, which needs {best.peak_mib:,.4g}; use "
            "more workers, smaller micro-batches or model.mode: reversible",
            stacklevel=3,
        )
