"""The partitioners that come with the package, against loops written here."""

import importlib.util
import sys
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.graphs import random_graph

from gnn_dist import rng
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.partitioners import BUILTIN, partition
from gnn_dist.partitioners.multilevel import undirected
from gnn_dist.partitioners.weights import fill_empty, integer_weights

OPTIONAL = ("kaminpar", "mtkahypar")


def _needs(name: str):
    absent = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(absent, reason=f"the extra {name} is absent")


SEEDLESS = ("range", "mtkahypar")
"""Partitioners whose answer takes no chances, or need not on a small graph."""
NAMES = [pytest.param(n, marks=_needs(n)) if n in OPTIONAL else n for n in BUILTIN]
GOOD = [name for name in NAMES if name not in ("random", "hash", "range")]


def communities(num_nodes=2_000, blocks=4, degree=10, inside=0.8, seed=0) -> Graph:
    """A stochastic block model whose node order says nothing about its blocks."""
    random = np.random.default_rng(seed)
    block = random.integers(0, blocks, num_nodes)
    members = [np.flatnonzero(block == b) for b in range(blocks)]
    dst = random.integers(0, num_nodes, degree * num_nodes)
    src = random.integers(0, num_nodes, dst.size)
    for k in np.flatnonzero(random.random(dst.size) < inside):
        src[k] = random.choice(members[block[dst[k]]])
    splits = {"train": np.flatnonzero(random.random(num_nodes) < 0.3)}
    return Graph.from_edges(src, dst, num_nodes, node={"block": block}, splits=splits)


@pytest.fixture(scope="module")
def sbm() -> Graph:
    return communities()


def cut_weight(graph: Graph, assignment: np.ndarray, weights: np.ndarray | None = None) -> float:
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    crosses = assignment[destinations] != assignment[graph.indices]
    return float((crosses if weights is None else weights[crosses]).sum())


@pytest.mark.filterwarnings("ignore::gnn_dist.partitioners.BalanceWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_parts", [1, 2, 7, 20])
def test_answers_depend_on_the_seed_and_nothing_else(name, num_parts):
    graph = random_graph(300, 2_000)
    answer = partition(graph, num_parts, name, seed=3)
    assert set(answer.tolist()) == set(range(num_parts))
    np.testing.assert_array_equal(partition(graph, num_parts, name, seed=3), answer)
    if num_parts in (2, 7) and name not in SEEDLESS:
        assert (partition(graph, num_parts, name, seed=4) != answer).any()


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 12))
    ids = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(ids, ids), max_size=30))
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(src, dst, num_nodes)
    num_parts = draw(st.integers(1, num_nodes))
    weights = st.sampled_from([0.0, 0.5, 1.0, 3.0])
    node_weights = np.array(draw(st.lists(weights, min_size=num_nodes, max_size=num_nodes)))
    edge_weights = np.array(draw(st.lists(weights, min_size=len(edges), max_size=len(edges))))
    return graph, num_parts, node_weights, edge_weights


@pytest.mark.filterwarnings("ignore::gnn_dist.partitioners.BalanceWarning")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(graphs())
@example(
    (Graph.from_edges([1], [3], 4), 4, np.array([1.0, 0.0, 0.0, 3.0]), np.ones(1))
)  # fewer nodes with a weight than parts: KaMinPar itself does not end on these
def test_any_graph_gets_parts_that_are_all_used(name, drawn):
    graph, num_parts, node_weights, edge_weights = drawn
    weights = {}
    if name not in ("random", "hash") and node_weights.any():
        weights["node_weights"] = node_weights
    if name not in ("random", "hash", "range", "mtkahypar") and edge_weights.any():
        weights["edge_weights"] = edge_weights
    for given_weights in ({}, weights):
        answer = partition(graph, num_parts, name, seed=0, **given_weights)
        assert set(answer.tolist()) == set(range(num_parts))


def test_random_parts_differ_by_at_most_one_node():
    sizes = np.bincount(partition(random_graph(100, 10), 7, "random", seed=1))
    assert sizes.min() == 14
    assert sizes.max() == 15


def test_hash_puts_a_node_in_the_same_part_whatever_the_graph():
    few = partition(random_graph(100, 10), 4, "hash", seed=1)
    many = partition(random_graph(1_000, 10), 4, "hash", seed=1)
    assert (many[:100] == few).all()
    assert np.bincount(many).min() > 200


def test_range_keeps_node_order_and_shares_weight_evenly():
    graph = random_graph(1_000, 5_000)
    answer = partition(graph, 6, "range", seed=0)
    assert (np.diff(answer) >= 0).all()
    assert set(np.bincount(answer)) <= {166, 167}
    for balance, weight in (
        ("edges", graph.in_degrees()),
        ("train", np.isin(np.arange(1_000), graph.splits["train"])),
    ):
        answer = partition(graph, 6, "range", {"balance": balance}, seed=0)
        assert (np.diff(answer) >= 0).all()
        load = np.bincount(answer, weight)
        assert load.max() - load.mean() <= weight.max()


def reference_stream(graph, num_parts, order, capacity, value, weights, node_weights, passes=1):
    """Fennel or LDG in dictionaries: each node to the part of the largest value."""
    neighbours = defaultdict(list)
    for v in range(graph.num_nodes):
        for k in range(graph.indptr[v], graph.indptr[v + 1]):
            u = int(graph.indices[k])
            if u != v:
                neighbours[v].append((u, weights[k]))
                neighbours[u].append((v, weights[k]))
    part: dict[int, int] = {}
    load = [0.0] * num_parts
    rounds = []
    for _ in range(passes):
        for v in order.tolist():
            old = part.get(v)
            if old is not None:
                load[old] -= node_weights[v]
            score = [0.0] * num_parts
            for u, w in neighbours[v]:
                if u in part:
                    score[part[u]] += w
            allowed = [p for p in range(num_parts) if load[p] + node_weights[v] <= capacity]
            allowed = allowed or [int(np.argmin(load))]
            values = {p: value(score[p], load[p], node_weights[v]) for p in allowed}
            top = max(values.values())
            ties = [p for p in allowed if values[p] == top]
            part[v] = old if old in ties else min(ties, key=lambda p: (load[p], p))
            load[part[v]] += node_weights[v]
        rounds.append(np.array([part[v] for v in range(graph.num_nodes)]))
    return rounds


def order_of(graph, seed):
    return rng.permutation(rng.fold(seed, rng.Stream.PARTITION), np.arange(graph.num_nodes))


@pytest.mark.filterwarnings("ignore::gnn_dist.partitioners.BalanceWarning")
@pytest.mark.parametrize("num_parts", [3, 30])  # counts are pushed, and neighbours read back
@pytest.mark.parametrize("weighted", [False, True])
def test_ldg_and_fennel_follow_their_formulas(num_parts, weighted):
    graph = random_graph(200, 500 if num_parts == 30 else 2_000)
    random = np.random.default_rng(1)
    given = {}
    node_weights, weights = np.ones(graph.num_nodes), np.ones(graph.num_edges)
    if weighted:  # multiples of 1/4, so that sums do not depend on their order
        node_weights = random.integers(1, 9, graph.num_nodes) / 4
        weights = random.integers(0, 9, graph.num_edges) / 4
        given = {"node_weights": node_weights, "edge_weights": weights}
    n, m = node_weights.sum(), weights.sum()
    order = order_of(graph, 5)

    capacity = 1.05 * n / num_parts
    [wanted] = reference_stream(
        graph, num_parts, order, capacity, lambda s, x, w: s * (1 - x / capacity), weights,
        node_weights,
    )  # fmt: skip
    assert set(wanted) == set(range(num_parts))  # no empty part to be filled
    got = partition(graph, num_parts, "ldg", seed=5, **given)
    assert got.tolist() == wanted.tolist()

    alpha = m * num_parts**0.5 / n**1.5
    [wanted] = reference_stream(
        graph, num_parts, order, 1.1 * n / num_parts,
        lambda s, x, w: s - w * (alpha * 1.5 * x**0.5), weights, node_weights,
    )  # fmt: skip
    assert set(wanted) == set(range(num_parts))
    got = partition(graph, num_parts, "fennel", seed=5, **given)
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("num_parts", [4, 30])
def test_refennel_streams_again_and_keeps_the_lowest_cut(num_parts):
    graph = communities(400, degree=6)
    alpha = graph.num_edges * num_parts**0.5 / graph.num_nodes**1.5
    rounds = reference_stream(
        graph, num_parts, order_of(graph, 2), 1.1 * graph.num_nodes / num_parts,
        lambda s, x, w: s - w * (alpha * 1.5 * x**0.5),
        np.ones(graph.num_edges), np.ones(graph.num_nodes), passes=4,
    )  # fmt: skip
    for passes in (1, 2, 4):
        got = partition(graph, num_parts, "refennel", {"passes": passes}, seed=2)
        cuts = [cut_weight(graph, r) for r in rounds[:passes]]
        assert cut_weight(graph, got) == min(cuts)
        assert got.tolist() == rounds[int(np.argmin(cuts))].tolist()
    assert cut_weight(graph, rounds[1]) < cut_weight(graph, rounds[0])


def test_more_than_255_parts_are_streamed_too():
    graph = random_graph(2_000, 8_000)
    answer = partition(graph, 300, "fennel", seed=0)
    assert np.bincount(answer, minlength=300).max() <= 1.1 * 2_000 / 300 + 1


def test_cuts_of_communities_are_as_good_as_the_method(sbm):
    takes = {name: {"imbalance": 0.1} for name in ("ldg", "fennel", "refennel", "metis")}
    cut = {
        name: cut_weight(sbm, partition(sbm, 4, name, args, seed=1)) / sbm.num_edges
        for name, args in {"random": {}, "hash": {}, "range": {}, **takes}.items()
    }
    planted = cut_weight(sbm, sbm.node["block"]) / sbm.num_edges
    for name in ("random", "hash", "range"):
        assert cut[name] == pytest.approx(0.75, abs=0.02)
    for name in ("ldg", "fennel"):
        assert cut[name] < 0.6
    assert cut["refennel"] <= cut["fennel"]
    assert cut["refennel"] < 0.3
    assert cut["metis"] <= 1.01 * min(cut.values())
    assert cut["metis"] < planted + 0.01


@_needs("kaminpar")
def test_kaminpar_finds_the_communities(sbm):
    cut = cut_weight(sbm, partition(sbm, 4, "kaminpar", seed=1))
    assert cut < 1.1 * cut_weight(sbm, sbm.node["block"])


@pytest.mark.parametrize("name", GOOD)
def test_loads_are_balanced_by_what_was_asked(sbm, name):
    for balance, weight in (
        ("edges", sbm.in_degrees()),
        ("train", np.isin(np.arange(sbm.num_nodes), sbm.splits["train"])),
    ):
        answer = partition(sbm, 4, name, {"balance": balance}, seed=0)
        load = np.bincount(answer, weight)
        assert load.max() / load.mean() < 1.12


WEIGHS_EDGES = [name for name in GOOD if getattr(name, "values", (name,)) != ("mtkahypar",)]


@pytest.mark.parametrize("name", WEIGHS_EDGES)
def test_heavy_edges_are_kept_whole(name):
    # A ring of heavy pairs: every second edge weighs 100 and can be kept, 4 of the others are cut.
    n = 400
    src, dst = np.arange(n), (np.arange(n) + 1) % n
    graph = Graph.from_edges(src, dst, n)
    heavy = np.where(graph.indices % 2 == 0, 100.0, 1.0)
    answer = partition(graph, 4, name, {"imbalance": 0.1}, seed=0, edge_weights=heavy)
    pairs = answer.reshape(-1, 2)
    broken = np.count_nonzero(pairs[:, 0] != pairs[:, 1])
    assert broken <= {"metis": 0, "kaminpar": 0}.get(name, 20)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_the_undirected_graph_is_that_of_scipy(drawn):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    graph, _, _, edge_weights = drawn
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    for weights in (None, edge_weights):
        values = np.ones(graph.num_edges) if weights is None else weights
        shape = (graph.num_nodes, graph.num_nodes)
        wanted = scipy_sparse.coo_matrix((values, (graph.indices, destinations)), shape).toarray()
        wanted = wanted + wanted.T
        np.fill_diagonal(wanted, 0)
        indptr, neighbours, sums = undirected(graph, weights)
        got = scipy_sparse.csr_matrix((sums, neighbours, indptr), shape)
        assert got.has_canonical_format or got.nnz == np.count_nonzero(wanted)
        np.testing.assert_allclose(got.toarray(), wanted)
        assert (sums > 0).all()


def test_weights_become_integers_in_proportion_whose_sum_fits():
    assert integer_weights(np.array([0.0, 3.0, 5.0])).tolist() == [0, 3, 5]
    weights = np.random.default_rng(0).random(1_000)
    weights[0] = 0
    whole = integer_weights(weights)
    assert whole[0] == 0
    assert whole.sum() <= 1 << 30
    np.testing.assert_allclose(whole / whole.sum(), weights / weights.sum(), atol=1e-8)
    large = integer_weights(np.array([1e12, 1.0, 1e12]))
    assert large.tolist()[1] == 1
    assert large.sum() <= 1 << 30


def test_an_empty_part_takes_the_lightest_node_of_the_largest():
    filled = fill_empty(np.array([0, 0, 0, 2, 2], np.int32), 4, np.array([3.0, 1.0, 2.0, 5.0, 4.0]))
    assert filled.tolist() == [0, 1, 3, 2, 2]  # part 0 is the larger again on a tie


@_needs("kaminpar")
def test_kaminpar_presets_and_threads():
    graph = random_graph(300, 2_000)
    for args in ({"preset": "fast"}, {"preset": "strong"}, {"threads": 2}):
        assert np.unique(partition(graph, 3, "kaminpar", args, seed=0)).size == 3
    with pytest.raises(InputError, match=r"preset: 'best' is not one of .*default"):
        partition(graph, 3, "kaminpar", {"preset": "best"}, seed=0)
    with pytest.raises(InputError, match="threads: must be at least 1"):
        partition(graph, 3, "kaminpar", {"threads": 0}, seed=0)


@_needs("kaminpar")
def test_kaminpar_is_handed_the_undirected_graph_with_its_weights(tmp_path):
    import kaminpar

    from gnn_dist.partitioners.multilevel import _write_parhip

    graph = random_graph(50, 300)
    indptr, neighbours, weights = undirected(graph, None)
    node_weights = np.arange(1.0, 51)
    for loads in (None, node_weights):
        _write_parhip(tmp_path / "g", indptr, neighbours, weights, loads)
        read = kaminpar.load_graph(str(tmp_path / "g"), kaminpar.GraphFileFormat.PARHIP)
        assert (read.n(), read.m()) == (50, neighbours.size)
        for v in range(50):
            row = slice(indptr[v], indptr[v + 1])
            wanted = list(zip(neighbours[row].tolist(), weights[row].tolist(), strict=True))
            assert sorted(read.neighbors(v)) == sorted(wanted)
            assert read.node_weight(v) == (1 if loads is None else v + 1)

    _write_parhip(tmp_path / "g", indptr, neighbours, weights, np.arange(50.0))
    read = kaminpar.load_graph(str(tmp_path / "g"), kaminpar.GraphFileFormat.PARHIP)
    kept = [read.node_weight(v) for v in range(50)]
    assert kept[0] == 1
    assert kept[1] > 800_000
    assert kept[1:] == [v * kept[1] for v in range(1, 50)]


def test_without_kaminpar_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    with pytest.raises(InputError, match=r"pip install 'gnn-dist\[kaminpar\]', or use metis"):
        partition(random_graph(), 2, "kaminpar", seed=0)
