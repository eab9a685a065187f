"""Schedules of the literature, made for any number of ranks and micro-batches.

GPipe (Huang et al., NeurIPS 2019), 1F1B (PipeDream-flush; Narayanan et al., 2021), interleaved
1F1B (Megatron-LM), zero bubble H1 (Qi et al., ICLR 2024) and Chimera (Li and Hoefler, SC 2021).
"""

from collections.abc import Callable, Iterator, Mapping

from gnn_dist.errors import InputError
from gnn_dist.strategies.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    check,
)


def _straight(ranks: int, micro: int) -> tuple[tuple[int, ...], ...]:
    if ranks < 1 or micro < 1:
        raise InputError(
            f"pipeline: {ranks} ranks and {micro} micro-batches; give at least one of each"
        )
    return tuple(tuple(range(ranks)) for _ in range(micro))


def gpipe(ranks: int, micro: int) -> Schedule:
    """All forward passes, then all backward passes."""
    table = tuple(
        tuple(Action(kind, r, k) for kind in (FORWARD, BACKWARD) for k in range(micro))
        for r in range(ranks)
    )
    return Schedule("gpipe", _straight(ranks, micro), table)


def one_f_one_b(ranks: int, micro: int) -> Schedule:
    """After the pipeline is full, a backward pass follows each forward pass."""
    rows = []
    for r in range(ranks):
        warm = min(ranks - r - 1, micro)
        row = [Action(FORWARD, r, k) for k in range(warm)]
        for k in range(micro - warm):
            row += [Action(FORWARD, r, warm + k), Action(BACKWARD, r, k)]
        row += [Action(BACKWARD, r, k) for k in range(micro - warm, micro)]
        rows.append(tuple(row))
    return Schedule("1f1b", _straight(ranks, micro), tuple(rows))


def interleaved(ranks: int, micro: int, chunks: int = 2) -> Schedule:
    """1F1B where rank r holds the stages r, r + P, r + 2P, ...: smaller bubbles, more messages.

    Micro-batches go through a rank's chunks in turns of P. Where ``micro`` is no multiple of P,
    the last turn is shorter.
    """
    if chunks < 1:
        raise InputError(f"pipeline.chunks: {chunks} is below 1; give at least 1")
    stages = ranks * chunks
    routes = tuple(tuple(s % ranks for s in range(stages)) for _ in range(micro))
    full = -(-micro // ranks) * ranks
    total = full * chunks

    def nth(kind: str, rank: int, n: int) -> Action:
        chunk = n // ranks % chunks
        chunk = chunk if kind == FORWARD else chunks - 1 - chunk
        return Action(kind, chunk * ranks + rank, n // (ranks * chunks) * ranks + n % ranks)

    rows = []
    for r in range(ranks):
        warm = min((ranks - r - 1) * 2 + (chunks - 1) * ranks, total)
        row = [nth(FORWARD, r, n) for n in range(warm)]
        for n in range(total - warm):
            row += [nth(FORWARD, r, warm + n), nth(BACKWARD, r, n)]
        row += [nth(BACKWARD, r, n) for n in range(total - warm, total)]
        rows.append(tuple(a for a in row if a.micro < micro))
    return Schedule(f"interleaved-{chunks}", routes, tuple(rows))


def zero_bubble_h1(ranks: int, micro: int) -> Schedule:
    """Backward passes split in two; the gradients of the weights fill the bubbles.

    No rank holds more activations than the first rank of 1F1B does.
    """

    rows = []
    for r in range(ranks):
        warm = min(ranks - r - 1, micro)
        row = [Action(FORWARD, r, k) for k in range(warm)]
        for k in range(micro):
            if warm + k < micro:
                row.append(Action(FORWARD, r, warm + k))
            row.append(Action(INPUT, r, k))
            if k >= r:  # rank r lets r of them wait, as many as it has room for
                row.append(Action(WEIGHT, r, k - r))
        row += [Action(WEIGHT, r, k) for k in range(max(micro - r, 0), micro)]
        rows.append(tuple(row))
    return Schedule("zb-h1", _straight(ranks, micro), tuple(rows))


def chimera(ranks: int, micro: int) -> Schedule:
    """Two pipelines in opposite directions over the same ranks; every rank holds two stages.

    In each turn of P micro-batches one half goes down and one half goes up.
    """
    if ranks % 2:
        raise InputError(
            f"pipeline.schedule: chimera needs an even number of ranks, not {ranks}; use 1f1b"
        )
    down = tuple(range(ranks))
    half = ranks // 2
    routes = tuple(down if k % ranks < half else down[::-1] for k in range(micro))
    _straight(ranks, micro)

    def pick(rank: int, ready: list[Action], held: int) -> Action | None:
        back = [a for a in ready if a.kind == BACKWARD]
        if back:
            return min(back, key=lambda a: (a.micro // ranks, a.stage, a.micro))
        ahead = [a for a in ready if a.kind == FORWARD]
        if ahead and held < ranks:
            # the pipeline that is further on first: it is the one others wait for
            return min(ahead, key=lambda a: (a.micro // ranks, -a.stage, a.micro))
        return None

    return _greedy("chimera", routes, (FORWARD, BACKWARD), pick, {FORWARD: 1, BACKWARD: 2})


def _greedy(
    name: str,
    routes: tuple[tuple[int, ...], ...],
    kinds: tuple[str, ...],
    pick: Callable[[int, list[Action], int], Action | None],
    cost: Mapping[str, int],
) -> Schedule:
    """Play time forward in unit costs; each free rank does what ``pick`` says of what is ready."""
    stages, ranks = len(routes[0]), max(max(r) for r in routes) + 1
    empty = Schedule(
        name,
        routes,
        (tuple(Action(k, s, m) for k in kinds for m in range(len(routes)) for s in range(stages)),),
    )
    waiting: list[set[Action]] = [set() for _ in range(ranks)]
    for action in empty.table[0]:
        waiting[routes[action.micro][action.stage]].add(action)
    finish: dict[Action, int] = {}
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    free, held = [0] * ranks, [0] * ranks
    now = 0
    while any(waiting):
        for rank in range(ranks):
            if free[rank] > now or not waiting[rank]:
                continue
            ready = [
                a
                for a in waiting[rank]
                if all(finish.get(d, now + 1) <= now for d in empty.dependencies(a))
            ]
            picked = pick(rank, sorted(ready), held[rank])
            if picked is None:
                continue
            waiting[rank].remove(picked)
            rows[rank].append(picked)
            held[rank] += (picked.kind == FORWARD) - (picked.kind in (BACKWARD, WEIGHT))
            free[rank] = now + cost[picked.kind]
            finish[picked] = free[rank]
        now += 1
        if now > 64 * (len(finish) + stages + 1) * max(cost.values()):
            raise AssertionError(f"the generator of {name} does not end")
    return Schedule(name, routes, tuple(tuple(row) for row in rows))


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble_h1,
    "chimera": chimera,
}


def generate(name: str, ranks: int, micro: int, chunks: int = 2) -> Schedule:
    """A schedule by name, checked. ``chunks``: stages a rank, for ``interleaved``."""
    if name not in SCHEDULES:
        raise InputError(
            f"pipeline.schedule: there is none named {name!r}; use {', '.join(SCHEDULES)}"
        )
    if name == "interleaved":
        schedule = interleaved(ranks, micro, chunks)
    else:
        schedule = SCHEDULES[name](ranks, micro)
    check(schedule)
    return schedule


def all_schedules(ranks: int, micro: int) -> Iterator[Schedule]:
    """Every schedule that exists for these numbers."""
    for name in SCHEDULES:
        if name != "chimera" or ranks % 2 == 0:
            yield generate(name, ranks, micro)
