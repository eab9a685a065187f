import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import plugins
from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.features import (
    BUILTIN,
    AllParts,
    CacheContext,
    FeatureStore,
    Lookahead,
    Presample,
    Ranked,
    Score,
    Workload,
)
from gnn_dist.features.halo import halo_of_host
from gnn_dist.features.holder import Holder
from gnn_dist.features.tables import RowType
from gnn_dist.storage import PartitionedGraph, assemble

BYTE = RowType(np.dtype(np.uint8), np.dtype(np.uint8), (1,))
Trace = Sequence[Sequence[int]]


class Given(Ranked):
    """Keeps the ids it is told, best first."""

    def __init__(self, *ids: int) -> None:
        self.ids = np.array(ids, np.int64)

    def scores(self, context):
        return self.ids, -np.arange(self.ids.size, dtype=float)


def over(policy, **args) -> Lookahead:
    """Lookahead over a ranking that is an object, not a name."""
    made = Lookahead("none", **args)
    made.base = policy
    return made


def context(capacity: int, graph: PartitionedGraph | None = None, **more) -> CacheContext:
    graph = graph or assemble(random_graph(), (np.arange(60) % 2).astype(np.int32), 2)
    placement = Placement.build(rank=0, hosts=["a", "b"], num_parts=graph.num_parts)
    halo = halo_of_host(graph, placement)
    return CacheContext(graph, placement, AllParts(graph), halo, capacity, **more)


def replay(trace: Trace, policy, capacity: int, *, window=1, ahead=0, window_rows=None) -> int:
    """Rows sent after the start; the rows themselves are checked on the way."""
    arrays = [np.array(sorted(set(batch)), np.int64) for batch in trace]
    holder = Holder(policy, BYTE, capacity, window_rows)
    ids = np.sort(policy.start(context(capacity)))
    holder.fill(ids, ids.astype(np.uint8)[:, None])
    sent = 0
    for start in range(0, len(arrays), window):
        stop = start + window
        missing = holder.plan(arrays[start:stop], arrays[stop : stop + ahead])
        here = set(holder.pool.ids.tolist()) | set(missing.tolist())
        assert set().union(*map(set, trace[start:stop])) <= here
        holder.finish(missing, missing.astype(np.uint8)[:, None])
        slots = holder.pool.find(holder.pool.ids)
        assert (holder.pool.table[slots, 0] == holder.pool.ids).all()
        if window_rows is not None:
            assert len(holder.pool) <= capacity + window_rows
        sent += missing.size
    return sent


def fewest_sent(trace: Trace, capacity: int) -> int:
    """The optimum over every choice of what to keep after each batch."""
    costs = {frozenset(): 0}
    for batch in map(frozenset, trace):
        after: dict[frozenset, int] = {}
        for kept, cost in costs.items():
            total = cost + len(batch - kept)
            here = sorted(kept | batch)
            for size in range(min(capacity, len(here)) + 1):
                for choice in itertools.combinations(here, size):
                    key = frozenset(choice)
                    after[key] = min(after.get(key, total), total)
        costs = after
    return min(costs.values())


traces = st.lists(st.sets(st.integers(0, 6), max_size=4).map(sorted), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(trace=traces, capacity=st.integers(0, 3))
def test_lookahead_over_a_known_schedule_is_optimal(trace, capacity):
    sent = replay(trace, Lookahead("none"), capacity, ahead=len(trace), window_rows=0)
    assert sent == fewest_sent(trace, capacity)


@settings(max_examples=60, deadline=None)
@given(
    trace=st.lists(st.sets(st.integers(0, 9), max_size=6).map(sorted), min_size=1, max_size=9),
    capacity=st.integers(0, 4),
    ranked=st.permutations(range(10)),
    ahead=st.integers(0, 4),
)
def test_lookahead_keeps_the_soonest_needed_then_the_best_ranked(trace, capacity, ranked, ahead):
    kept = set(ranked[:capacity])
    sent = 0
    for now, batch in enumerate(trace):
        sent += len(set(batch) - kept)
        known = trace[now + 1 : now + 1 + ahead]
        soon = {v: k for k in reversed(range(len(known))) for v in known[k]}
        order = sorted(kept | set(batch), key=lambda v: (soon.get(v, ahead), ranked.index(v)))
        kept = set(order[:capacity])
    policy = over(Given(*ranked))
    assert replay(trace, policy, capacity, ahead=ahead, window_rows=0) == sent


@settings(max_examples=60, deadline=None)
@given(
    trace=st.lists(st.sets(st.integers(0, 9), max_size=6).map(sorted), min_size=1, max_size=9),
    fixed=st.sets(st.integers(0, 9), max_size=4),
    window=st.integers(1, 4),
    rounds_ahead=st.integers(0, 2),
)
def test_a_union_is_sent_once_and_held_as_long_as_known_batches_need_it(
    trace, fixed, window, rounds_ahead
):
    sent, held = 0, set(fixed)
    for start in range(0, len(trace), window):
        needed = set().union(*trace[start : start + window])
        sent += len(needed - held)
        later = trace[start + window : start + window * (1 + rounds_ahead)]
        held = set(fixed) | ((held | needed) & set().union(*later))
    got = replay(
        trace, Given(*sorted(fixed)), len(fixed), window=window, ahead=window * rounds_ahead
    )
    assert got == sent


@settings(max_examples=60, deadline=None)
@given(
    trace=st.lists(st.sets(st.integers(0, 9), max_size=6).map(sorted), min_size=1, max_size=9),
    window_rows=st.integers(0, 5),
    ahead=st.integers(0, 4),
    capacity=st.integers(0, 3),
    moves=st.booleans(),
)
def test_what_is_held_beyond_the_cache_stays_within_the_window(
    trace, window_rows, ahead, capacity, moves
):
    ranked = Given(*range(capacity))
    policy = over(ranked) if moves else ranked
    replay(trace, policy, capacity, ahead=ahead, window_rows=window_rows)


def massivegnn(trace, halo, degree, capacity, gamma, delta):
    """The two scoreboards, node by node: rows sent after the start."""
    kept = sorted(halo, key=lambda v: (-degree[v], v))[:capacity]
    worth = dict.fromkeys(kept, 1.0)
    access = dict.fromkeys(halo, 0.0)
    alpha = gamma**delta * (1 + 1e-9)
    sent = 0
    for number, batch in enumerate(map(set, trace), 1):
        before = set(worth)
        for v in worth:
            if v not in batch:
                worth[v] *= gamma
        for v in batch:
            if v in access and v not in worth:
                access[v] += 1
        if number % delta == 0:
            out = sorted((v for v in worth if worth[v] < alpha), key=lambda v: (worth[v], v))
            new = sorted(
                (v for v in halo if v not in worth and access[v] > 0),
                key=lambda v: (-access[v], v),
            )
            for old, fresh in zip(out, new, strict=False):
                access[old] = worth.pop(old)
                worth[fresh] = access[fresh]
        sent += len((batch | set(worth)) - before)
    return sent


@pytest.mark.parametrize(("gamma", "delta"), [(0.9, 1), (0.995, 2), (0.5, 3)])
def test_score_follows_the_two_scoreboards(gamma, delta):
    where = context(0)
    halo = where.halo.tolist()
    degree = np.concatenate([np.diff(where.graph.part(p).indptr) for p in range(2)])
    rng = np.random.default_rng(delta)
    trace = [rng.choice(np.arange(30, 60), 8, replace=False).tolist() for _ in range(40)]
    for capacity in (0, 3, 10):
        sent = replay(trace, Score(gamma, delta), capacity)
        assert sent == massivegnn(trace, halo, degree, capacity, gamma, delta)


def test_score_charges_what_it_replaces():
    graph = assemble(random_graph(), (np.arange(60) % 2).astype(np.int32), 2)

    def work(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=2)
        store = FeatureStore(graph, placement, exchange, Score(0.9, 2), fraction=0.2)
        rng = np.random.default_rng(rank)
        for _ in range(20):
            store.fetch("x", rng.integers(0, 60, 12))
        return store.counts

    for counts in run_threads(2, work):
        assert counts.rows["replaced"] > 0
        assert counts.transferred == sum(counts.rows[k] for k in ("filled", "remote", "replaced"))


def test_presample_keeps_what_rehearsals_needed_most():
    seen = {-1: [[31, 32], [31, 33, 1]], -2: [[32, 31], [34, 2, 3]]}
    workload = Workload(
        np.arange(3),
        np.full(3, 0.5),
        (2,),
        epoch=lambda e: (np.array(batch) for batch in seen[e]),
    )
    got = Presample(epochs=2).start(context(2, workload=workload))
    assert got.tolist() == [31, 32]


class Odd(Ranked):
    """Somebody's own policy."""

    def scores(self, context):
        odd = context.halo[context.halo % 2 == 1]
        return odd, np.ones(odd.size)


def test_every_policy_brings_identical_features_and_only_counts_differ():
    graph = assemble(random_graph(80, 600), (np.arange(80) % 4).astype(np.int32), 4)
    hosts = ["a", "b"]
    rng = np.random.default_rng(0)
    batches = [[rng.integers(0, 80, 15) for _ in hosts] for _ in range(8)]
    policies = {
        **{name: (name, {}) for name in BUILTIN},
        "lookahead over degree": ("lookahead", {"base": "degree"}),
        "own": ("own", {}),
    }

    def work(rank, exchange, name, args, window, ahead, window_bytes):
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=4)
        seeds = np.flatnonzero([placement.is_local(p) for p in graph.owner(np.arange(80))])
        workload = Workload(
            seeds, np.full(seeds.size, 0.1), (3, 2), epoch=lambda e: (b[rank] for b in batches)
        )
        policy = Odd() if name == "own" else plugins.build("cache", name, args, BUILTIN)
        store = FeatureStore(
            graph, placement, exchange, policy,
            fraction=0.2, window_bytes=window_bytes, workload=workload,
        )  # fmt: skip
        asked = [{"x": b[rank]} for b in batches]
        rows = [
            got["x"].numpy()
            for start in range(0, len(asked), window)
            for got in store.fetch_window(
                asked[start : start + window], asked[start + window :][:ahead]
            )
        ]
        return np.concatenate(rows), store.counts

    plain = run_threads(2, lambda r, e: work(r, e, "none", {}, 1, 0, None))
    sent = set()
    for name, args in policies.values():
        for window, ahead, limit in ((1, 0, None), (1, 3, 0), (3, 3, None), (3, 2, 100)):
            run = run_threads(2, lambda r, e, n=name, a=args, w=(window, ahead, limit): work(
                r, e, n, a, *w))  # fmt: skip
            for (rows, counts), (expected, baseline) in zip(run, plain, strict=True):
                np.testing.assert_array_equal(rows, expected)
                assert counts.needed == baseline.needed
            sent.add(sum(counts.transferred for _, counts in run))
    assert len(sent) > 5


def test_a_policy_is_named_shortly_or_by_dotted_path():
    built = plugins.build("cache", "gnn_dist.features.Degree", {}, BUILTIN)
    assert type(built) is type(plugins.build("cache", "degree", {}, BUILTIN))
    assert isinstance(plugins.build("cache", "score", {"delta": 3}, BUILTIN), Score)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Score(gamma=1.5), "gamma: 1.5"),
        (lambda: Score(delta=0), "delta: 0"),
        (lambda: Score(alpha=-1), "alpha: -1"),
        (lambda: Presample(epochs=0), "epochs: 0"),
        (lambda: Lookahead("score"), "'score' gives no scores"),
        (lambda: Lookahead("nothing"), "none named 'nothing'"),
        (lambda: plugins.build("cache", "vip", {"gamma": 1}, BUILTIN), "no argument 'gamma'"),
        (lambda: plugins.build("cache", "vip", {}, BUILTIN).start(context(1)), "workload"),
        (lambda: Presample().start(context(1)), "workload"),
    ],
)
def test_a_wrong_argument_is_named(make, words):
    with pytest.raises(InputError, match=words):
        make()


class Answers(Ranked):
    """Gives at the start, and after a round, what it is told."""

    moves = True

    def __init__(self, answer):
        self.answer = answer

    def scores(self, context):
        raise AssertionError

    def start(self, context):
        return self.answer

    def keep(self, round):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "NoneType, not int64"),
        (np.array([0.5]), "ndarray, not int64"),
        (np.array([3, 3]), "an id twice"),
        (np.arange(9), "9 ids where 4 rows"),
        (np.array([-1]), "-1 to -1 where ids run from 0 to 59"),
        (np.array([60]), "60 to 60"),
    ],
)
def test_an_answer_that_is_no_set_of_ids_names_the_policy(answer, words):
    cut = assemble(random_graph(), (np.arange(60) % 2).astype(np.int32), 2)
    row = cut.schema.node["x"].shape[0] * 4

    def work(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=2)
        with pytest.raises(InputError, match=rf"cache: Answers\.start gives .*{words}"):
            FeatureStore(cut, placement, exchange, Answers(answer), max_bytes=4 * row, cached="x")
        return True

    assert run_threads(2, work) == [True, True]


def test_what_is_kept_is_checked_in_every_round():
    holder = Holder(Answers(np.array([5, 5])), BYTE, 4, None)
    with pytest.raises(InputError, match=r"Answers\.keep gives an id twice"):
        holder.plan([np.array([1])], [])
