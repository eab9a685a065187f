"""A pipeline schedule as data: for each rank the actions that it takes, in order.

A table can come from a generator, from a person or from a file; ``check`` says whether it can run.
"""

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gnn_dist.errors import InputError

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)


class Action(NamedTuple):
    """``kind``: F forward, B backward, I gradient of the input, W gradient of the weights."""

    kind: str
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro}"


@dataclass(frozen=True)
class Schedule:
    """Attributes:
    name: for people.
    routes: for each micro-batch the rank of each stage, ``routes[micro][stage]``.
    table: for each rank its actions.
    """

    name: str
    routes: tuple[tuple[int, ...], ...]
    table: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        return len(self.table)

    @property
    def num_stages(self) -> int:
        return len(self.routes[0])

    @property
    def num_micro(self) -> int:
        return len(self.routes)

    def rank_of(self, action: Action) -> int:
        return self.routes[action.micro][action.stage]

    def stages_of(self, rank: int) -> list[int]:
        """Stages of which ``rank`` computes at least one micro-batch."""
        return sorted({s for route in self.routes for s, r in enumerate(route) if r == rank})

    def holders(self, stage: int) -> list[int]:
        """Ranks that compute ``stage``; their gradients are summed."""
        return sorted({route[stage] for route in self.routes})

    def dependencies(self, action: Action) -> list[Action]:
        """What must be done before ``action``, on whichever rank."""
        kind, stage, micro = action
        if kind == FORWARD:
            return [Action(FORWARD, stage - 1, micro)] if stage else []
        if kind == WEIGHT:
            return [Action(INPUT, stage, micro)]
        found = [Action(FORWARD, stage, micro)]
        if stage + 1 < self.num_stages:
            after = Action(BACKWARD, stage + 1, micro)
            split = Action(INPUT, stage + 1, micro)
            found.append(split if split in self._actions() else after)
        return found

    def peak_in_flight(self) -> list[int]:
        """For each rank the most micro-batch activations (of any stage) held at once."""
        peaks = []
        for row in self.table:
            held = peak = 0
            for action in row:
                held += (action.kind == FORWARD) - (action.kind in (BACKWARD, WEIGHT))
                peak = max(peak, held)
            peaks.append(peak)
        return peaks

    def to_json(self) -> str:
        return json.dumps(
            {
                "name": self.name,
                "routes": self.routes,
                "table": [[str(a) for a in row] for row in self.table],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Schedule":
        """Read what ``to_json`` wrote, or a person did. Checked."""
        try:
            data: dict[str, Any] = json.loads(text)
            table = tuple(tuple(parse(a) for a in row) for row in data["table"])
            routes = tuple(tuple(int(r) for r in route) for route in data["routes"])
            schedule = cls(str(data.get("name", "custom")), routes, table)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"pipeline.table: cannot be read ({error}); give JSON with `routes` (a list of "
                "ranks, one a stage, for each micro-batch) and `table` (a list of actions such as "
                "F0.3, for each rank)"
            ) from error
        check(schedule)
        return schedule

    def _actions(self) -> frozenset[Action]:
        cached = self.__dict__.get("_all")
        if cached is None:
            cached = frozenset(a for row in self.table for a in row)
            object.__setattr__(self, "_all", cached)
        return cached


def parse(text: str) -> Action:
    """``F0.3`` is the forward pass of micro-batch 3 through stage 0."""
    try:
        kind, (stage, micro) = text[0], text[1:].split(".")
        action = Action(kind, int(stage), int(micro))
    except (ValueError, IndexError, TypeError):
        action = None
    if action is None or action.kind not in KINDS:
        raise InputError(
            f"pipeline.table: {text!r} is no action; write a kind ({', '.join(KINDS)}), the stage, "
            "a dot and the micro-batch, as in F0.3"
        )
    return action


def check(schedule: Schedule, max_in_flight: int | Sequence[int] | None = None) -> None:
    """Raise ``InputError`` for a table that cannot run.

    Every action once, on the rank of its route; a backward pass whole or split, not both;
    dependencies met without a deadlock; at most ``max_in_flight`` activations held a rank.
    """
    name = f"pipeline schedule {schedule.name!r}"
    if not schedule.table or not schedule.routes or not schedule.routes[0]:
        raise InputError(f"{name}: is empty; give at least one rank, micro-batch and stage")
    stages, ranks = schedule.num_stages, schedule.num_ranks
    for micro, route in enumerate(schedule.routes):
        if len(route) != stages or not all(0 <= r < ranks for r in route):
            raise InputError(
                f"{name}: the route of micro-batch {micro} is {list(route)}; name one of the "
                f"{ranks} ranks for each of the {stages} stages"
            )
    _check_complete(schedule, name)
    order(schedule)
    if max_in_flight is not None:
        bounds = [max_in_flight] * ranks if isinstance(max_in_flight, int) else max_in_flight
        for rank, (peak, bound) in enumerate(zip(schedule.peak_in_flight(), bounds, strict=True)):
            if peak > bound:
                raise InputError(
                    f"{name}: rank {rank} holds {peak} activations at once, above the bound of "
                    f"{bound}; run backward passes earlier or choose another schedule"
                )


def _check_complete(schedule: Schedule, name: str) -> None:
    count = Counter(a for row in schedule.table for a in row)
    for rank, row in enumerate(schedule.table):
        for action in row:
            inside = (
                0 <= action.stage < schedule.num_stages and 0 <= action.micro < schedule.num_micro
            )
            if not inside:
                raise InputError(
                    f"{name}: {action} on rank {rank} names a stage or micro-batch that does not "
                    f"exist ({schedule.num_stages} stages, {schedule.num_micro} micro-batches); "
                    "correct the table"
                )
            if count[action] > 1:
                raise InputError(f"{name}: {action} is there {count[action]} times; keep one")
            if schedule.rank_of(action) != rank:
                raise InputError(
                    f"{name}: {action} is on rank {rank}, but its route goes over rank "
                    f"{schedule.rank_of(action)}; move it there"
                )
    for micro in range(schedule.num_micro):
        for stage in range(schedule.num_stages):
            there = {k for k in KINDS if Action(k, stage, micro) in count}
            if there not in ({FORWARD, BACKWARD}, {FORWARD, INPUT, WEIGHT}):
                raise InputError(
                    f"{name}: micro-batch {micro} has {sorted(there) or 'nothing'} in stage "
                    f"{stage}; give F and B, or F, I and W"
                )


def order(schedule: Schedule) -> list[Action]:
    """The actions in one order in which they can happen. Raises ``InputError`` on a deadlock."""
    done: set[Action] = set()
    found: list[Action] = []
    queues = [deque(row) for row in schedule.table]
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue and all(d in done for d in schedule.dependencies(queue[0])):
                action = queue.popleft()
                done.add(action)
                found.append(action)
                moved = True
    stuck = [(rank, queue[0]) for rank, queue in enumerate(queues) if queue]
    if stuck:
        waits = "; ".join(
            f"rank {rank} at {action} waits for "
            + ", ".join(
                f"{d} of rank {schedule.rank_of(d)}"
                for d in schedule.dependencies(action)
                if d not in done
            )
            for rank, action in stuck
        )
        raise InputError(
            f"pipeline schedule {schedule.name!r}: cannot go on: {waits}; change the order of "
            "these actions"
        )
    return found
