"""Schedules: the checker, known makespans, memory, the planner, the cut."""

import itertools
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.errors import InputError
from gnn_dist.strategies.pipeline.balance import LayerTime, imbalance, partition, worth_replanning
from gnn_dist.strategies.pipeline.generators import all_schedules, generate
from gnn_dist.strategies.pipeline.plan import Profile, candidates, plan
from gnn_dist.strategies.pipeline.schedule import Action, Schedule, check, parse
from gnn_dist.strategies.pipeline.simulate import Costs, Timeline, simulate

SIZES = [(1, 1), (1, 4), (2, 1), (2, 4), (2, 5), (3, 7), (4, 2), (4, 4), (4, 8), (4, 9), (6, 13)]


@pytest.mark.parametrize(("ranks", "micro"), SIZES)
def test_every_schedule_is_complete_and_cannot_deadlock(ranks, micro):
    names = set()
    for schedule in all_schedules(ranks, micro):
        check(schedule)
        names.add(schedule.name)
        for kind_count in (schedule.table,):
            actions = [a for row in kind_count for a in row]
            forward = [a for a in actions if a.kind == "F"]
            assert len(forward) == len(set(forward)) == micro * schedule.num_stages
        assert Schedule.from_json(schedule.to_json()) == schedule
    assert len(names) == (5 if ranks % 2 == 0 else 4)


@pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (4, 8), (4, 4), (8, 16)])
def test_makespans_are_those_of_the_literature(ranks, micro):
    """Unit costs F = 1, B = 2 (I = W = 1): bubbles of (P - 1)(F + B), of that over v, and less."""
    p, m = ranks, micro

    def span(name, **kw):
        schedule = generate(name, p, m, **kw)
        stages = schedule.num_stages
        return simulate(schedule, Costs.uniform(stages, m, p / stages, 2 * p / stages)).makespan

    assert span("gpipe") == pytest.approx(3 * m + 3 * (p - 1))
    assert span("1f1b") == pytest.approx(3 * m + 3 * (p - 1))
    assert span("interleaved", chunks=2) == pytest.approx(3 * m + 3 * (p - 1) / 2)
    assert span("interleaved", chunks=4) == pytest.approx(3 * m + 3 * (p - 1) / 4)
    assert span("zb-h1") == pytest.approx(3 * m + (p - 1))
    assert span("chimera") < span("1f1b") - (p - 1) / 2


@pytest.mark.parametrize(("ranks", "micro"), [(4, 4), (4, 16), (6, 12)])
def test_activations_held_are_bounded(ranks, micro):
    assert generate("gpipe", ranks, micro).peak_in_flight() == [micro] * ranks
    one = generate("1f1b", ranks, micro)
    assert one.peak_in_flight() == [min(ranks - r, micro) for r in range(ranks)]
    assert max(generate("zb-h1", ranks, micro).peak_in_flight()) <= ranks
    assert max(generate("chimera", ranks, micro).peak_in_flight()) <= ranks
    check(one, max_in_flight=ranks)
    with pytest.raises(InputError, match=r"rank 0 holds 4 activations.*bound of 3"):
        check(generate("1f1b", 4, 16), max_in_flight=3)


def _schedule(rows, routes=((0, 1), (0, 1))):
    table = tuple(tuple(parse(a) for a in row.split()) for row in rows)
    return Schedule("mine", tuple(map(tuple, routes)), table)


GOOD = ("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 I1.1 W1.1")


def test_a_users_table_is_accepted():
    check(_schedule(GOOD))
    assert Schedule.from_json(_schedule(GOOD).to_json()).peak_in_flight() == [2, 1]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (("F0.0 F0.1 B0.0", GOOD[1]), r"micro-batch 1 has \['F'\] in stage 0"),
        (("F0.0 F0.1 B0.0 B0.1 B0.1", GOOD[1]), r"B0\.1 is there 2 times"),
        (("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1 W1.1"), r"\['B', 'F', 'W'\] in stage 1"),
        (("F0.0 F0.1 B0.0 B0.1 F1.0", "B1.0 F1.1 B1.1"), r"F1\.0 is on rank 0, but its route"),
        (("B0.0 F0.0 F0.1 B0.1", GOOD[1]), r"rank 0 at B0\.0 waits for F0\.0 of rank 0"),
        (("F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"), r"waits for B1\.0 of rank 1; rank 1 at"),
        (("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 W1.1 I1.1"), r"W1\.1 waits for I1\.1"),
        (("F0.0 F0.1 B0.0 B0.1 F0.2", GOOD[1]), r"F0\.2 on rank 0 names .* does not exist"),
    ],
)
def test_a_table_that_cannot_run_is_refused_with_its_reason(rows, says):
    with pytest.raises(InputError, match=says):
        check(_schedule(rows))


@pytest.mark.parametrize("text", ["{", '{"routes": 3}', '{"routes": [[0]], "table": [["X0.0"]]}'])
def test_a_table_that_cannot_be_read_is_refused(text):
    with pytest.raises(InputError, match=r"pipeline\.table"):
        Schedule.from_json(text)


def _longest_path(schedule, costs):
    """The makespan as the longest path over rank order and dependencies, by brute force."""
    nodes = [a for row in schedule.table for a in row]
    edges = {a: [] for a in nodes}
    for row in schedule.table:
        for a, b in itertools.pairwise(row):
            edges[b].append((a, 0.0))
    for b in nodes:
        for a in schedule.dependencies(b):
            crosses = schedule.rank_of(a) != schedule.rank_of(b)
            edges[b].append((a, costs.link(b.micro) if crosses else 0.0))
    end = dict.fromkeys(nodes, 0.0)
    for _ in range(len(nodes)):
        for b in nodes:
            start = max((end[a] + w for a, w in edges[b]), default=0.0)
            end[b] = start + costs.seconds(b)
    return max(end.values())


@pytest.mark.parametrize(("ranks", "micro"), [(2, 5), (4, 6)])
def test_the_simulated_makespan_is_the_longest_path(ranks, micro):
    rng = np.random.default_rng(ranks)
    for schedule in all_schedules(ranks, micro):
        grids = [rng.uniform(0.5, 3, (schedule.num_stages, micro)).tolist() for _ in range(4)]
        costs = Costs(*grids, message=rng.uniform(1, 9, micro).tolist(), latency=0.2, bandwidth=20)
        timeline = simulate(schedule, costs)
        assert timeline.makespan == pytest.approx(_longest_path(schedule, costs))
        busy = sum(costs.seconds(s.action) for s in timeline.spans)
        assert timeline.bubble == pytest.approx(1 - busy / ranks / timeline.makespan)


def test_pictures_can_be_read():
    timeline = simulate(generate("zb-h1", 3, 5), Costs.uniform(3, 5))
    trace = json.loads(timeline.chrome_trace())["traceEvents"]
    boxes = [e for e in trace if e["ph"] == "X"]
    assert len(boxes) == 3 * 5 * 3
    assert max(e["ts"] + e["dur"] for e in boxes) == pytest.approx(timeline.makespan * 1e6)
    picture = ET.fromstring(timeline.gantt_svg())
    assert len(picture.findall(".//{*}title")) == 3 * 5 * 3


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9), st.integers(1, 5), st.booleans())
def test_the_cut_is_the_best_of_all(seconds, stages, limited):
    layers = len(seconds)
    memory = [1.0 + (k % 3) for k in range(layers)]
    limit = 4.0 if limited else float("inf")
    best = float("inf")
    for inner in itertools.combinations(range(1, layers), stages - 1):
        bounds = [0, *inner, layers]
        parts = list(itertools.pairwise(bounds))
        if max(sum(memory[a:b]) for a, b in parts) <= limit:
            best = min(best, max(sum(seconds[a:b]) for a, b in parts))
    if stages > layers or best == float("inf"):
        with pytest.raises(InputError, match="pipeline"):
            partition(seconds, stages, memory=memory, limit=limit)
        return
    bounds = partition(seconds, stages, memory=memory, limit=limit)
    assert bounds[0] == 0
    assert bounds[-1] == layers
    parts = list(itertools.pairwise(bounds))
    assert all(a < b for a, b in parts)
    assert max(sum(seconds[a:b]) for a, b in parts) == pytest.approx(best)


def test_layer_times_are_recovered_from_measurements():
    rng = np.random.default_rng(0)
    nodes, edges = rng.integers(1000, 50000, 12), rng.integers(1000, 200000, 12)
    truth = LayerTime(3e-7, 4e-8, 2e-4)
    seconds = [truth(n, e) * rng.uniform(0.98, 1.02) for n, e in zip(nodes, edges, strict=True)]
    fitted = LayerTime.fit(nodes, edges, seconds)
    for n, e in ((10_000, 20_000), (40_000, 150_000)):
        assert fitted(n, e) == pytest.approx(truth(n, e), rel=0.03)
    same = LayerTime.fit([1000], [2000], [0.5])
    assert same(1000, 2000) == pytest.approx(0.5)
    with pytest.raises(InputError, match="positive time"):
        LayerTime.fit([1], [1], [0.0])
    assert imbalance([1.0, 1.0, 1.6]) == pytest.approx(1.3333, rel=1e-3)
    assert worth_replanning([1.0, 1.0, 1.6])
    assert not worth_replanning([1.0, 1.1])


def _profile(layers=12, micro=8, activation=10.0, boundary=4.0):
    return Profile(
        [[1.0] * micro] * layers,
        [[1.0] * micro] * layers,
        [[1.0] * micro] * layers,
        [[activation] * micro] * layers,
        [boundary] * micro,
    )


def test_the_planner_takes_the_fastest_that_fits():
    profile = _profile()
    found = candidates(profile, 4)
    assert [c.timeline.makespan for c in found] == sorted(c.timeline.makespan for c in found)
    best = plan(profile, 4)
    assert best.timeline.makespan == min(c.timeline.makespan for c in found)
    gpipe = next(c for c in found if c.name == "gpipe")
    one = next(c for c in found if c.name == "1f1b")
    assert max(gpipe.timeline.peak_bytes) == 8 * (3 * 10 + 4)
    assert max(one.timeline.peak_bytes) == 4 * (3 * 10 + 4)
    limit = 4 * 34.0
    under = candidates(profile, 4, memory_limit=limit)
    assert all(max(c.timeline.peak_bytes) <= limit for c in under if c.fits)
    assert not next(c for c in under if c.name == "gpipe").fits
    assert plan(profile, 4, memory_limit=limit).fits
    with pytest.warns(UserWarning, match="no schedule fits"):
        plan(profile, 4, memory_limit=1.0)


def test_reversible_stages_hold_boundaries_only():
    kept = plan(_profile(activation=0.0), 4).timeline.peak_bytes
    assert max(kept) <= 8 * 4.0


def test_dependencies_cross_ranks_where_routes_do():
    schedule = generate("chimera", 4, 4)
    assert schedule.holders(0) == [0, 3]
    assert schedule.stages_of(1) == [1, 2]
    assert schedule.dependencies(Action("B", 0, 0)) == [Action("F", 0, 0), Action("B", 1, 0)]


def test_what_a_split_backward_pass_puts_off_is_counted():
    routes = ((0,), (0,))
    table = (tuple(parse(a) for a in ["F0.0", "F0.1", "I0.0", "I0.1", "W0.0", "W0.1"]),)
    costs = Costs([[1, 1]], [[1, 1]], [[1, 1]], [[10, 20]], [0, 0], deferred=[[3, 5]])
    # both activations, then both of what was put off
    assert simulate(Schedule("own", routes, table), costs).peak_bytes == (38,)
    table = (tuple(parse(a) for a in ["F0.0", "I0.0", "W0.0", "F0.1", "I0.1", "W0.1"]),)
    assert simulate(Schedule("own", routes, table), costs).peak_bytes == (25,)


def test_a_timeline_is_read_back_as_it_was():
    timeline = simulate(generate("zb-h1", 2, 4), Costs.uniform(2, 4))
    again = Timeline.from_dict(json.loads(json.dumps(timeline.as_dict())))
    assert again == timeline
