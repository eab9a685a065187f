import numpy as np
import pytest

from gnn_dist import datasets
from gnn_dist.datasets import edges
from gnn_dist.errors import InputError


def _homophily(graph):
    y = graph.node["y"]
    return (y[graph.indices] == y[graph.destinations()]).mean()


def _top_share(graph):
    """The share of edges that the 1% of nodes with the most have."""
    degrees = np.sort(graph.in_degrees())[::-1]
    return degrees[: degrees.size // 100].sum() / degrees.sum()


def _matrix(graph):
    import scipy.sparse as sp

    n = graph.num_nodes
    return sp.csc_matrix((np.ones(graph.num_edges), graph.indices, graph.indptr), (n, n))


@pytest.mark.parametrize("name", ["sbm", "rmat"])
@pytest.mark.parametrize("homophily", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_homophily_is_the_share_of_edges_within_a_class(name, homophily):
    graph = datasets.load(
        name, {"num_nodes": 20_000, "avg_degree": 8, "homophily": homophily, "num_features": 1}
    )
    # R-MAT drops repeated edges, which are more frequent within a class.
    assert abs(_homophily(graph) - homophily) < (0.01 if name == "sbm" else 0.04)


def test_uniform_homophily_is_that_of_chance():
    graph = datasets.load("sbm", {"num_classes": 8, "homophily": 1 / 8})
    assert abs(_homophily(graph) - 1 / 8) < 0.01


@pytest.mark.parametrize("name", ["sbm", "rmat"])
def test_graphs_are_simple_undirected_and_of_the_size_asked_for(name):
    graph = datasets.load(name, {"num_nodes": 5_000, "avg_degree": 12})
    matrix = _matrix(graph)
    assert matrix.diagonal().sum() == 0
    assert matrix.max() == 1
    assert (matrix != matrix.T).nnz == 0
    mean = graph.in_degrees().mean()
    assert 0.85 * 12 < mean <= 12
    assert graph.node["x"].shape == (5_000, 64)
    assert graph.node["x"].dtype == np.float32
    assert np.bincount(graph.node["y"]).tolist() == [500] * 10
    assert {k: v.size for k, v in graph.splits.items()} == {
        "train": 3_000,
        "val": 1_000,
        "test": 1_000,
    }
    everyone = np.concatenate(list(graph.splits.values()))
    assert np.unique(everyone).size == 5_000


def test_directed_rmat_has_each_edge_in_one_direction():
    graph = datasets.load("rmat", {"num_nodes": 3_000, "avg_degree": 6, "undirected": False})
    matrix = _matrix(graph)
    assert 0.9 * 6 < graph.in_degrees().mean() <= 6
    assert matrix.multiply(matrix.T).nnz < 0.2 * matrix.nnz


def test_skew_grows_with_the_arguments():
    flat = datasets.load("sbm", {"num_features": 1})
    shares = [
        _top_share(datasets.load("sbm", {"degree_exponent": g, "num_features": 1}))
        for g in (4.0, 3.0, 2.2)
    ]
    assert [_top_share(flat), *shares] == sorted([_top_share(flat), *shares])
    assert _top_share(flat) < 0.03
    assert shares[-1] > 0.15
    even = datasets.load("rmat", {"a": 0.25, "b": 0.25, "c": 0.25, "num_features": 1})
    hubs = datasets.load("rmat", {"num_features": 1})
    assert _top_share(even) < 0.03
    assert _top_share(hubs) > 0.1


def test_degrees_follow_the_power_law_asked_for():
    graph = datasets.load(
        "sbm",
        {
            "num_nodes": 60_000,
            "num_classes": 2,
            "avg_degree": 16,
            "degree_exponent": 2.7,
            "num_features": 1,
        },
    )
    degrees = graph.in_degrees()
    low = 40
    tail = degrees[degrees >= low]
    # Maximum likelihood for a discrete power law (Clauset, Shalizi, Newman, 2009, eq. 3.7).
    exponent = 1 + tail.size / np.log(tail / (low - 0.5)).sum()
    assert abs(exponent - 2.7) < 0.15


def test_rmat_quadrants_are_drawn_with_their_probabilities():
    pairs = 200_000
    src, dst = np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    a, b, c = 0.5, 0.2, 0.2
    bounds = np.rint(np.cumsum([a, b, c]) * 65536).astype(np.int64)
    edges.rmat_pairs(np.uint64(3), 1 << 10, 1, 1.0, 10, bounds, src, dst)
    assert src.min() >= 0  # every pair was drawn
    for level in range(10):
        row, column = src >> level & 1, dst >> level & 1
        found = [((row == r) & (column == k)).mean() for r, k in ((0, 0), (0, 1), (1, 0), (1, 1))]
        # Self-loops are drawn again, which takes a little from the diagonal quadrants.
        np.testing.assert_allclose(found, [a, b, c, 1 - a - b - c], atol=0.01)


def test_the_alias_table_draws_in_proportion():
    weights = np.array([5.0, 0.0, 1.0, 3.0, 0.5, 0.5])
    keep, other = edges.alias_table(weights)
    share = keep.copy()
    for i, j in enumerate(other):
        share[j] += 1 - keep[i]
    np.testing.assert_allclose(share / share.sum(), weights / weights.sum(), atol=1e-12)


@pytest.mark.parametrize("name", ["sbm", "rmat"])
def test_a_seed_gives_one_graph_and_another_seed_another(name):
    args = {"num_nodes": 500, "num_features": 7}
    one, two = (datasets.load(name, {**args, "seed": 4}) for _ in range(2))
    assert one.digest == two.digest
    other = datasets.load(name, {**args, "seed": 5})
    assert other.digest != one.digest
    assert (other.node["x"] != one.node["x"]).mean() > 0.99


def test_features_are_class_means_plus_unit_noise():
    graph = datasets.load(
        "sbm", {"num_nodes": 30_000, "num_classes": 3, "num_features": 33, "signal": 0.7}
    )
    x, y = graph.node["x"], graph.node["y"]
    means = np.array([x[y == k].mean(axis=0) for k in range(3)])
    rest = x - means[y]
    assert abs(rest.std() - 1) < 0.01
    assert abs((rest**3).mean()) < 0.02
    assert abs((rest**4).mean() - 3) < 0.05  # normal
    assert 0.5 < means.std() < 0.9
    between = np.corrcoef(rest.T)[~np.eye(33, dtype=bool)]
    assert np.abs(between).max() < 5 / np.sqrt(30_000)
    blank = datasets.load("sbm", {"num_nodes": 3_000, "signal": 0})
    assert abs(blank.node["x"][blank.node["y"] == 0].mean()) < 0.03


def test_neighbours_tell_the_class_better_than_features_alone():
    """What the data set is for: nearest class mean, on own and on averaged features."""
    graph = datasets.load("sbm", {"num_nodes": 6_000})
    x, y = graph.node["x"], graph.node["y"]
    train, test = graph.splits["train"], graph.splits["test"]
    mean = _matrix(graph).T @ x / np.maximum(graph.in_degrees(), 1)[:, None]

    def accuracy(features):
        centres = np.array([features[train][y[train] == k].mean(axis=0) for k in range(10)])
        distance = ((features[test][:, None] - centres) ** 2).sum(axis=2)
        return (distance.argmin(axis=1) == y[test]).mean()

    assert accuracy(mean) > accuracy(x) + 0.1
    assert accuracy(x) > 0.15


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sbm", {"num_nodes": 2, "num_classes": 1, "avg_degree": 1}),
        ("sbm", {"num_nodes": 7, "num_classes": 7, "avg_degree": 2, "homophily": 1.0}),
        ("rmat", {"num_nodes": 3, "num_classes": 2, "avg_degree": 1}),
        ("rmat", {"num_nodes": 1000, "num_classes": 1, "avg_degree": 0}),
        ("rmat", {"num_nodes": 5, "num_classes": 5, "avg_degree": 4, "homophily": 0.0}),
    ],
)
def test_the_smallest_graphs_are_made(name, args):
    graph = datasets.load(name, {**args, "num_features": 1})
    assert graph.num_nodes == args["num_nodes"]
    assert graph.num_edges <= 2 * round(graph.num_nodes * args["avg_degree"] / 2)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("sbm", {"num_nodes": 1}, "sbm.num_nodes: must be a whole number, from 2"),
        ("sbm", {"num_nodes": 2.5}, "must be a whole number"),
        ("sbm", {"num_nodes": 10, "num_classes": 11}, "sbm.num_classes: .* from 1 to 10, not 11"),
        ("sbm", {"homophily": 1.5}, "sbm.homophily: must be a number, from 0 to 1, not 1.5"),
        ("sbm", {"homophily": float("nan")}, "sbm.homophily"),
        ("sbm", {"avg_degree": -1}, "sbm.avg_degree"),
        ("sbm", {"avg_degree": 1e9}, "sbm.avg_degree"),
        ("sbm", {"degree_exponent": 1.5}, "sbm.degree_exponent: must be a number, at least 2"),
        ("sbm", {"signal": "much"}, "sbm.signal"),
        ("rmat", {"a": 0.6, "b": 0.3, "c": 0.3}, r"a \+ b \+ c is 1.2"),
        ("rmat", {"a": -0.1}, "rmat.a"),
        ("rmat", {"undirected": "yes"}, "rmat.undirected: must be true or false"),
        ("rmat", {"split": {"train": 0.9, "test": 0.3}}, "add up to 1.2"),
        ("rmat", {"split": {"train": "most"}}, "split.train: must be a fraction"),
        ("rmat", {"split": 0.5}, "must give a fraction for each split"),
        ("rmat", {"split": {"dev": 0.5}}, "has 'dev'; the splits are"),
    ],
)
def test_arguments_out_of_range_are_refused(name, args, message):
    with pytest.raises(InputError, match=message):
        datasets.load(name, args)
