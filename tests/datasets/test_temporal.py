"""Readers of published dynamic graphs, and the generator."""

import json
from pathlib import Path

import numpy as np
import pytest

from gnn_dist.datasets import temporal
from gnn_dist.errors import InputError


def test_england_covid_is_read_as_published(shared_data: Path) -> None:
    path = shared_data / "dynamic" / "england_covid.json"
    sequence = temporal.england_covid(path)
    raw = json.loads(path.read_text())
    assert (sequence.num_nodes, sequence.num_snapshots, sequence.num_features) == (129, 53, 8)
    counts = [len(raw["edge_mapping"]["edge_index"][str(t)]) for t in range(53)]
    assert [sequence.num_edges(t) for t in range(53)] == counts
    cases = np.array(raw["y"], float)
    cases = (cases - cases.mean(0)) / cases.std(0)
    np.testing.assert_allclose(sequence.x[5, :, 2], cases[7], atol=1e-5)
    np.testing.assert_allclose(sequence.y[5], cases[13], atol=1e-5)
    pairs = np.array(raw["edge_mapping"]["edge_index"]["3"])
    weights = dict(zip(map(tuple, pairs), raw["edge_mapping"]["edge_weight"]["3"], strict=True))
    csc = sequence.snapshot(3)
    for edge, weight in zip(csc.edge_index().T.tolist(), csc.weight, strict=True):
        assert weights[tuple(edge)] == weight


def test_chickenpox_is_one_graph_with_a_signal(shared_data: Path) -> None:
    sequence = temporal.chickenpox(shared_data / "dynamic" / "chickenpox.json")
    assert (sequence.num_nodes, sequence.num_snapshots, sequence.num_features) == (20, 517, 4)
    assert {sequence.num_edges(t) for t in (0, 200, 516)} == {102}
    assert sequence.overlap() == 1.0
    assert sequence.nbytes()["topology"] < 2 * 102 * 8 * 20


def test_tennis_barely_overlaps(shared_data: Path) -> None:
    sequence = temporal.twitter_tennis(shared_data / "dynamic" / "twitter_tennis_rg17.json")
    assert (sequence.num_nodes, sequence.num_snapshots, sequence.num_features) == (1000, 120, 16)
    np.testing.assert_array_equal(sequence.x.sum(axis=2), 2)
    assert sequence.overlap() < 0.2


def test_bitcoin_ratings_are_sorted_by_time_and_classified(shared_data: Path) -> None:
    path = shared_data / "dynamic" / "soc-sign-bitcoinalpha.csv"
    sequence = temporal.bitcoin(path, life=None)
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    assert sequence.num_nodes == np.unique(rows[:, :2]).size
    last = sequence.num_snapshots - 1
    assert sequence.num_edges(last) == len({(a, b) for a, b in rows[:, :2]})
    assert sequence.edge_labels[last].sum() == (rows[:, 2] > 0).sum()
    assert temporal.bitcoin(path, life=10).overlap() > temporal.bitcoin(path, life=1).overlap()


def test_college_messages_are_read(shared_data: Path) -> None:
    path = shared_data / "dynamic" / "CollegeMsg.txt"
    sequence = temporal.college_messages(path, every=1e12, merge="count")
    assert sequence.num_nodes == 1899
    assert sequence.num_edges(0) == 20296
    assert sequence.snapshot(0).weight.sum() == 59835


def test_the_generator_keeps_its_promises() -> None:
    sequence = temporal.synthetic(400, 5000, 6, change=0.1, seed=3)
    assert [sequence.num_edges(t) for t in range(6)] == [5000] * 6
    for t in range(1, 6):
        gone = np.setdiff1d(sequence.keys(t - 1), sequence.keys(t)).size
        assert 0.08 <= gone / 5000 <= 0.1
    grown = temporal.synthetic(400, 5000, 6, growth=0.2, seed=3)
    active = grown.active.sum(axis=1)
    np.testing.assert_allclose(active[1:] / active[:-1], 1.2, atol=0.02)
    assert grown.num_edges(5) == 5000
    assert grown.num_edges(0) == round(5000 / 1.2**5)
    flat = np.sort(np.bincount(sequence.keys(0) // 400, minlength=400))
    skewed = temporal.synthetic(400, 5000, 1, skew=0.6, seed=3)
    hubs = np.sort(np.bincount(skewed.keys(0) // 400, minlength=400))
    assert hubs[-40:].sum() > 1.5 * flat[-40:].sum()
    again = temporal.synthetic(400, 5000, 6, change=0.1, seed=3)
    np.testing.assert_array_equal(again.x, sequence.x)
    np.testing.assert_array_equal(again.keys(5), sequence.keys(5))


def test_bad_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("1,2,3,10\n1,2,3\n")
    with pytest.raises(InputError, match=r"line 2 is '1,2,3': 3 columns instead of 4"):
        temporal.bitcoin(file)
    file.write_text("1 2 3\n1 two 3\n")
    with pytest.raises(InputError, match="line 2"):
        temporal.college_messages(file)
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no edges"):
        temporal.college_messages(file)
    with pytest.raises(InputError, match="cannot read"):
        temporal.bitcoin(tmp_path / "absent.csv")
    broken = tmp_path / "broken.json"
    broken.write_text('{"edges": [')
    with pytest.raises(InputError, match="not valid JSON"):
        temporal.chickenpox(broken)
    broken.write_text('{"edges": []}')
    with pytest.raises(InputError, match="has no 'FX'"):
        temporal.chickenpox(broken)
    broken.write_text('{"edges": [[0, 1]], "FX": [[1, 2], [1]]}')
    with pytest.raises(InputError, match="table of numbers"):
        temporal.chickenpox(broken, lags=1)
    broken.write_text('{"edges": [[0, 9]], "FX": [[1, 2], [1, 3]]}')
    with pytest.raises(InputError, match="unknown node"):
        temporal.chickenpox(broken, lags=1)
    with pytest.raises(InputError, match="lags"):
        temporal.chickenpox(broken, lags=2)


@pytest.mark.parametrize("args", [{"change": 2.0}, {"num_nodes": 1}, {"skew": 1.0}])
def test_bad_sizes_are_named(args: dict) -> None:
    with pytest.raises(InputError, match="dataset"):
        temporal.synthetic(**args)
