"""``partition``: any partitioner by any name, its answer checked; weights and balance."""

import sys
import types
import warnings
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from support.graphs import random_graph

from gnn_dist import plugins
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.partitioners import BalanceWarning, balance_weights, partition

GRAPH = random_graph()
N = GRAPH.num_nodes


def stripes(graph, num_parts, *, seed, width=1):
    return (np.arange(graph.num_nodes) // width + seed) % num_parts


def recorded(graph, num_parts, *, node_weights, edge_weights, seed):
    assert node_weights is None or node_weights.dtype == np.float64
    LAST.update(node_weights=node_weights, edge_weights=edge_weights, seed=seed)
    return np.arange(graph.num_nodes) % num_parts


LAST: dict = {}


class Shifted:
    def __init__(self, by: int = 0) -> None:
        self.by = by

    def __call__(self, graph, num_parts, **_):
        return (np.arange(graph.num_nodes) + self.by) % num_parts


def answers(value):
    """A partitioner that returns ``value``, importable as ``fake_parts.answer``."""
    module = types.ModuleType("fake_parts")
    module.answer = lambda graph, num_parts: value
    return module


@pytest.fixture
def custom(monkeypatch):
    module = types.ModuleType("outside_package")
    module.stripes, module.recorded, module.Shifted = stripes, recorded, Shifted
    monkeypatch.setitem(sys.modules, "outside_package", module)
    LAST.clear()


def test_a_function_by_dotted_path_with_arguments_of_its_own(custom):
    answer = partition(GRAPH, 3, "outside_package.stripes", {"width": 7}, seed=0)
    assert answer.dtype == np.int32
    assert answer.tolist() == [v // 7 % 3 for v in range(N)]
    answer = partition(GRAPH, 3, "outside_package.stripes", {}, seed=1)
    assert answer.tolist() == [(v + 1) % 3 for v in range(N)]


def test_a_class_is_built_with_its_arguments(custom):
    answer = partition(GRAPH, 4, "outside_package.Shifted", {"by": 2}, seed=0)
    assert answer.tolist() == [(v + 2) % 4 for v in range(N)]


def test_an_entry_point_of_an_installed_package(custom, monkeypatch):
    entry = EntryPoint("striped", "outside_package:stripes", "gnn_dist.partitioners")

    def entry_points(group, name=None):
        return [entry] if group == entry.group and name in (None, entry.name) else []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    answer = partition(GRAPH, 5, "striped", {"width": 2}, seed=0)
    assert answer.tolist() == [v // 2 % 5 for v in range(N)]
    with pytest.raises(InputError, match=r"none named 'stripy'; use one of .*striped"):
        partition(GRAPH, 5, "stripy", seed=0)


def test_weights_and_seed_reach_the_partitioner(custom):
    node_weights, edge_weights = np.arange(1, N + 1), np.ones(GRAPH.num_edges, np.float32)
    partition(
        GRAPH,
        2,
        "outside_package.recorded",
        seed=9,
        node_weights=node_weights,
        edge_weights=edge_weights,
    )
    assert LAST["seed"] == 9
    assert LAST["node_weights"].tolist() == node_weights.tolist()
    assert LAST["edge_weights"].size == GRAPH.num_edges


def test_balance_becomes_node_weights_for_any_partitioner(custom):
    train = np.zeros(N)
    train[GRAPH.splits["train"]] = 1
    degrees = np.bincount(np.repeat(np.arange(N), np.diff(GRAPH.indptr)), minlength=N)
    for balance, wanted in (
        ("nodes", np.ones(N)),
        ("train", train / train.mean()),
        ("edges", degrees / degrees.mean()),
        (["nodes", "train"], (1 + train / train.mean()) / 2),
    ):
        partition(GRAPH, 2, "outside_package.recorded", {"balance": balance}, seed=0)
        np.testing.assert_allclose(LAST["node_weights"], wanted)
    given = np.arange(N)
    weights = balance_weights(GRAPH, "nodes", given)
    np.testing.assert_allclose(weights, (1 + given / given.mean()) / 2)


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        ("degree", "'degree' is not one of nodes, edges, train"),
        ([], "is empty; name nodes, edges or train"),
        ("train", "'train' needs a train split, and the graph has none"),
    ],
)
def test_a_balance_that_cannot_be_is_named(balance, message):
    graph = Graph.from_edges([0], [1], 4)
    with pytest.raises(InputError, match=message):
        partition(graph, 2, "range", {"balance": balance}, seed=0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.zeros(5, int), r"returned shape \(5,\) for 60 nodes"),
        (np.zeros((60, 1), int), r"returned shape \(60, 1\)"),
        (np.arange(60) % 3 - 1, "puts node 0 in part -1; parts run from 0 to 2"),
        (np.arange(60) % 4, "puts node 3 in part 3; parts run from 0 to 2"),
        (np.arange(60) % 2, "leaves part 2 of 3 empty"),
        (np.arange(60.0) % 3, "of float64; return the part of every node as integers"),
        (np.arange(60) % 3 > 1, "of bool; return"),
        (None, "returned NoneType of object"),
        ("0" * 60, "returned str of"),
        ([[0], [1, 2]], "returned list, which is no array"),
        ({0: 1}, "returned dict of object"),
    ],
)
def test_a_bad_answer_is_named(monkeypatch, answer, message):
    monkeypatch.setitem(sys.modules, "fake_parts", answers(answer))
    with pytest.raises(InputError, match=f"partitioner 'fake_parts.answer': .*{message}"):
        partition(GRAPH, 3, "fake_parts.answer", seed=0)


@pytest.mark.parametrize(
    "answer",
    [
        [v % 3 for v in range(60)],
        torch.arange(60) % 3,
        np.arange(60, dtype=np.uint8) % 3,
        np.arange(60, dtype=np.uint64) % 3,
    ],
)
def test_any_integers_are_a_good_answer(monkeypatch, answer):
    monkeypatch.setitem(sys.modules, "fake_parts", answers(answer))
    result = partition(GRAPH, 3, "fake_parts.answer", seed=0)
    assert result.dtype == np.int32
    assert result.tolist() == [v % 3 for v in range(60)]


def test_an_unbalanced_answer_warns_or_is_refused(monkeypatch):
    answer = np.zeros(60, int)
    answer[:20] = 1
    monkeypatch.setitem(sys.modules, "fake_parts", answers(answer))
    with pytest.warns(BalanceWarning, match="part 0 has 40 of nodes, 1.33 times the mean"):
        partition(GRAPH, 2, "fake_parts.answer", seed=0)
    with pytest.raises(InputError, match=r"part 0 has 40 of nodes.* more than the 1\.1 of max_im"):
        partition(GRAPH, 2, "fake_parts.answer", seed=0, max_imbalance=1.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition(GRAPH, 2, "fake_parts.answer", seed=0, max_imbalance=1.4)


def test_few_nodes_a_part_are_not_called_unbalanced(monkeypatch):
    graph = Graph.from_edges([0], [1], 3)
    monkeypatch.setitem(sys.modules, "fake_parts", answers([0, 1, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition(graph, 2, "fake_parts.answer", seed=0)


@pytest.mark.parametrize(
    ("num_parts", "message"),
    [
        (61, "61 parts for 60 nodes; every part needs a node, so ask for at most 60"),
        (0, "at least 1, not 0"),
        (-2, "at least 1, not -2"),
        (2.0, "must be an integer of at least 1, not 2.0"),
        (True, "not True"),
    ],
)
def test_a_number_of_parts_that_cannot_be(num_parts, message):
    with pytest.raises(InputError, match=f"num_parts: .*{message}"):
        partition(GRAPH, num_parts, "random", seed=0)


@pytest.mark.parametrize("field", ["node_weights", "edge_weights"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[:-1], "give one weight each"),
        (lambda w: w[:, None], "give one weight each"),
        (lambda w: -w, "weights must be finite and at least 0"),
        (lambda w: w * np.nan, "entry 0 is nan; weights must be finite"),
        (lambda w: w * np.inf, "entry 0 is inf"),
        (lambda w: w * 0, "all weights are 0"),
        (lambda w: w.astype(str), "weights must be numbers"),
    ],
)
def test_bad_weights_are_named_before_a_library_sees_them(field, change, message):
    size = N if field == "node_weights" else GRAPH.num_edges
    with pytest.raises(InputError, match=f"{field}: .*{message}"):
        partition(GRAPH, 2, "metis", seed=0, **{field: change(np.ones(size))})


def test_weights_for_one_that_takes_none_are_an_error_and_not_dropped(custom):
    with pytest.raises(InputError, match=r"'outside_package\.stripes' takes no node_weights"):
        partition(GRAPH, 2, "outside_package.stripes", {"balance": "train"}, seed=0)
    with pytest.raises(InputError, match="'random' takes no edge_weights"):
        partition(GRAPH, 2, "random", seed=0, edge_weights=np.ones(GRAPH.num_edges))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("metiss", {}, "none named 'metiss'; use one of fennel, hash"),
        ("no_such_package.part", {}, "cannot import 'no_such_package.part'"),
        ("metis", {"ufactor": 3}, "'metis' takes no argument 'ufactor'; it takes: .*imbalance"),
        ("random", {"seed": 3}, "'seed' is given to every partitioner"),
        ("metis", {"imbalance": 0}, "imbalance: must be between 0 and 10"),
        ("metis", {"cuts": 0}, "cuts: must be at least 1"),
        ("fennel", {"imbalance": -1}, "imbalance: must be at least 0, not -1"),
        ("fennel", {"gamma": 1}, "gamma: must be above 1, not 1"),
        ("ldg", {"order": "bfs"}, "'bfs' is not one of random, natural"),
        ("refennel", {"passes": 0}, "passes: must be at least 1"),
    ],
)
def test_a_wrong_name_or_argument(name, args, message):
    with pytest.raises(InputError, match=message):
        partition(GRAPH, 2, name, args, seed=0)
