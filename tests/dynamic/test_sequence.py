"""Snapshot sequences: delta decoding, weights, masks, slices and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.dynamic import SnapshotSequence, from_events
from gnn_dist.dynamic.sequence import KEYFRAME_EVERY
from gnn_dist.errors import InputError


def edge_set(sequence: SnapshotSequence, t: int) -> set[tuple[int, int]]:
    return set(map(tuple, sequence.snapshot(t).edge_index().T.tolist()))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[np.ndarray]]:
    nodes = draw(st.integers(1, 7))
    ids = st.integers(0, nodes - 1)
    graph = st.lists(st.tuples(ids, ids), max_size=12)
    snapshots = draw(st.lists(graph, min_size=1, max_size=6))
    return nodes, [np.array(g, np.int64).reshape(-1, 2).T for g in snapshots]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_snapshot_decodes_to_the_edges_it_was_given(case: tuple) -> None:
    nodes, edges = case
    sequence = SnapshotSequence.from_lists(edges, nodes)
    for t, pairs in enumerate(edges):
        assert edge_set(sequence, t) == set(map(tuple, pairs.T.tolist()))
        assert sequence.num_edges(t) == len(edge_set(sequence, t))
    for t, keys in enumerate(sequence.key_range(0, len(edges))):
        np.testing.assert_array_equal(keys, sequence.keys(t))


def test_small_changes_are_stored_as_deltas_and_large_ones_as_keyframes() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 30, (2, 200))
    edges = [base]
    for t in range(1, 2 * KEYFRAME_EVERY):
        now = edges[-1].copy()
        now[:, t % 200] = rng.integers(0, 30, 2)
        edges.append(now)
    edges.append(rng.integers(0, 30, (2, 5)))
    sequence = SnapshotSequence.from_lists(edges, 30)
    keyframes = [t for t, frame in enumerate(sequence.frames) if frame.keyframe]
    assert keyframes == [0, KEYFRAME_EVERY, 2 * KEYFRAME_EVERY]
    whole = 8 * sum(sequence.num_edges(t) for t in range(sequence.num_snapshots))
    assert sequence.nbytes()["topology"] < whole / 10
    for t, pairs in enumerate(edges):
        assert edge_set(sequence, t) == set(map(tuple, pairs.T.tolist()))


def test_weights_are_summed_and_stored_once_where_they_do_not_change() -> None:
    edges = [np.array([[0, 0, 1], [1, 1, 2]]), np.array([[0], [1]])]
    shared = SnapshotSequence.from_lists(
        edges, 3, weights=[np.array([1.0, 2.0, 5.0]), np.array([3.0])]
    )
    assert not shared.per_snapshot_weights
    np.testing.assert_array_equal(shared.snapshot(0).weight, [3.0, 5.0])
    np.testing.assert_array_equal(shared.snapshot(1).weight, [3.0])
    own = SnapshotSequence.from_lists(
        edges, 3, weights=[np.array([1.0, 2.0, 5.0]), np.array([4.0])]
    )
    assert own.per_snapshot_weights
    np.testing.assert_array_equal(own.snapshot(1).weight, [4.0])
    ones = SnapshotSequence.from_lists(edges[1:], 3, weights=[np.array([1.0])])
    assert ones.weights is None


def test_a_slice_is_the_sequence_of_its_snapshots() -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 10, (2, 40))
    edges = [base[:, : 30 + t] for t in range(8)]
    sequence = SnapshotSequence.from_lists(
        edges, 10, weights=[rng.random(30 + t) for t in range(8)], y=rng.random((8, 10))
    )
    part = sequence[3:6]
    assert part.num_snapshots == 3
    for t in range(3):
        np.testing.assert_array_equal(part.keys(t), sequence.keys(t + 3))
        np.testing.assert_array_equal(part.snapshot(t).weight, sequence.snapshot(t + 3).weight)
    np.testing.assert_array_equal(part.y, sequence.y[3:6])
    with pytest.raises(InputError, match="non-empty slice"):
        sequence[5:5]


def test_inactive_nodes_have_zero_features_and_no_edges() -> None:
    edges = [np.array([[0], [1]]), np.array([[0], [2]])]
    active = np.array([[True, True, False], [True, True, True]])
    sequence = SnapshotSequence.from_lists(edges, 3, x=np.ones((2, 3, 2)), active=active)
    np.testing.assert_array_equal(sequence.x[0, 2], 0)
    with pytest.raises(InputError, match="node 1 has edges"):
        SnapshotSequence.from_lists(edges, 3, active=np.array([[True, False, True]] * 2))


@pytest.mark.parametrize("life", [1, 2, None])
def test_an_edge_lives_as_long_as_it_was_given(life: int | None) -> None:
    src = np.array([0, 1, 0, 2, 3])
    dst = np.array([1, 2, 1, 0, 4])
    time = np.array([10, 11, 12, 15, 15])
    sequence = from_events(src, dst, time, 5, every=2, life=life)
    bucket = (time - 10) // 2
    assert sequence.num_snapshots == 3
    for t in range(3):
        alive = [
            (int(u), int(v))
            for u, v, b in zip(src, dst, bucket, strict=True)
            if b <= t and (life is None or b > t - life)
        ]
        assert edge_set(sequence, t) == set(alive)
        born = {n for u, v, b in zip(src, dst, bucket, strict=True) if b <= t for n in (u, v)}
        assert set(np.flatnonzero(sequence.active_at(t))) == born


@pytest.mark.parametrize(("merge", "weight"), [("last", 7.0), ("sum", 9.0), ("count", 2.0)])
def test_repeated_events_merge_as_asked(merge: str, weight: float) -> None:
    sequence = from_events(
        np.array([0, 0]), np.array([1, 1]), np.array([0.0, 0.5]), 2, every=1,
        weight=np.array([2.0, 7.0]), merge=merge,
    )  # fmt: skip
    assert sequence.snapshot(0).weight.tolist() == [weight]


def test_the_last_label_of_a_repeated_edge_is_kept() -> None:
    sequence = from_events(
        np.array([0, 1, 0]), np.array([1, 0, 1]), np.arange(3), 2, every=5,
        labels=np.array([0, 1, 1]),
    )  # fmt: skip
    assert sequence.edge_labels[0].tolist() == [1, 1]


def test_a_time_without_events_gives_an_empty_snapshot() -> None:
    sequence = from_events(np.array([0, 1]), np.array([1, 0]), np.array([0, 9]), 2, every=3)
    assert [sequence.num_edges(t) for t in range(4)] == [1, 0, 0, 1]


GOOD = {"src": [0, 1], "dst": [1, 0], "time": [0, 1], "num_nodes": 2, "every": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": [1, 0]}, "event 1 has time 0 after 1: time goes backwards"),
        ({"time": [0, np.nan]}, "event 1 has time nan"),
        ({"dst": [1, 2]}, "event 1 is 2, an unknown node"),
        ({"src": [-1, 0]}, "event 0 is -1, an unknown node"),
        ({"src": [0.0, 1.0]}, "dtype float64"),
        ({"src": [0]}, "equally long"),
        ({"src": [], "dst": [], "time": []}, "at least one event"),
        ({"every": 0}, "every: is 0"),
        ({"life": 0}, "life: is 0"),
        ({"merge": "mean"}, "merge: is 'mean'"),
        ({"weight": np.ones(3)}, "events.weight"),
    ],
)
def test_bad_events_are_named(change: dict, message: str) -> None:
    given = {**GOOD, **change}
    for name in ("src", "dst", "time"):
        given[name] = np.array(given[name])
    with pytest.raises(InputError, match=message):
        from_events(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": [np.array([[0], [5]])]}, "edge 0 is 0 -> 5, which names an unknown node"),
        ({"edges": [np.array([0, 1, 2])]}, "give int"),
        ({"edges": [np.array([[0.5], [1.0]])]}, "must be integers"),
        ({"edges": []}, "at least one of each"),
        ({"weights": [np.array([1.0, 2.0])]}, r"snapshots.weights\[0\]"),
        ({"weights": [np.array([np.inf])]}, "NaN or infinity"),
        ({"weights": []}, "give one each"),
        ({"x": np.ones((1, 3, 2))}, "snapshots.x"),
        ({"x": np.ones((1, 2))}, "give float"),
        ({"x": np.full((1, 2, 1), np.nan)}, "snapshot 0, node 0 holds NaN"),
        ({"y": np.ones((2, 2))}, "snapshots.y"),
        ({"active": np.ones((1, 2))}, "booleans"),
        ({"edge_labels": [np.array([0.5])]}, "integer class"),
        ({"times": np.array([1.0])}, "give one more"),
    ],
)
def test_bad_snapshots_are_named(change: dict, message: str) -> None:
    given = {"edges": [np.array([[0], [1]])], "num_nodes": 2, **change}
    with pytest.raises(InputError, match=message):
        SnapshotSequence.from_lists(**given)
