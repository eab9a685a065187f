import dataclasses

import numpy as np
import pytest

from gnn_dist.datasets import list_builtin, load
from gnn_dist.datasets.ogbn_like import SHAPES
from gnn_dist.errors import InputError

# What OGB's paper and site publish: nodes, edges, classes, features, homophily, split sizes.
PUBLISHED = {
    "arxiv": (169_343, 1_166_243, 40, 128, 0.655, (90_941, 29_799, 48_603)),
    "products": (2_449_029, 61_859_140, 47, 100, 0.808, (196_615, 39_323, 2_213_091)),
}


def test_arxiv_has_the_published_size_classes_and_homophily():
    graph = load("ogbn_like", {"name": "arxiv", "undirected": False})
    nodes, edges, classes, features, homophily, split = PUBLISHED["arxiv"]
    assert graph.num_nodes == nodes
    assert graph.num_edges == pytest.approx(edges, rel=0.01)
    assert graph.node["x"].shape == (nodes, features)
    assert np.unique(graph.node["y"]).size == classes == graph.info["num_classes"]
    same = graph.node["y"][graph.indices] == graph.node["y"][graph.destinations()]
    assert same.mean() == pytest.approx(homophily, abs=0.01)
    assert [graph.splits[s].size for s in ("train", "val", "test")] == list(split)
    degrees = np.sort(graph.in_degrees())[::-1]
    assert degrees[0] > 100 * degrees.mean()  # hubs
    assert degrees[: nodes // 100].sum() > 0.2 * edges


def test_products_keeps_its_mean_degree_at_a_smaller_scale():
    graph = load("ogbn_like", {"name": "products", "scale": 0.02})
    nodes, edges, classes, features, homophily, split = PUBLISHED["products"]
    assert graph.num_nodes == round(0.02 * nodes)
    assert graph.num_edges == pytest.approx(0.02 * 2 * edges, rel=0.12)
    assert graph.node["x"].shape[1] == features
    assert graph.info["num_classes"] == classes
    same = graph.node["y"][graph.indices] == graph.node["y"][graph.destinations()]
    assert same.mean() == pytest.approx(homophily, abs=0.02)
    assert graph.splits["train"].size == pytest.approx(0.02 * split[0], abs=1)
    back = set(zip(graph.destinations()[:5000], graph.indices[:5000], strict=True))
    rows = [graph.indices[graph.indptr[u] : graph.indptr[u + 1]] for _, u in back]
    assert all(v in row for (v, _), row in zip(back, rows, strict=True))


def test_the_shapes_are_the_published_ones():
    for name, (nodes, edges, classes, features, homophily, split) in PUBLISHED.items():
        shape = dataclasses.asdict(SHAPES[name])
        given = [shape[k] for k in ("num_nodes", "num_edges", "num_classes", "num_features")]
        assert given == [nodes, edges, classes, features]
        assert shape["homophily"] == homophily
        assert [round(share * nodes) for share in shape["split"]] == list(split)


def test_it_says_that_it_is_synthetic():
    graph = load("ogbn_like", {"scale": 0.005})
    assert graph.info["synthetic"] is True
    assert "synthetic" in graph.info["name"]
    (summary,) = [item.summary for item in list_builtin() if item.name == "ogbn_like"]
    assert summary.startswith("Synthetic")


def test_a_seed_gives_one_graph_and_another_seed_another():
    a, b = (load("ogbn_like", {"scale": 0.005, "seed": 4}) for _ in range(2))
    assert a.digest == b.digest
    assert a.digest != load("ogbn_like", {"scale": 0.005, "seed": 5}).digest


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"name": "mag"}, "there is no 'mag'; use one of arxiv, products"),
        ({"scale": 0}, r"ogbn_like\.scale"),
        ({"scale": 1e-5}, "leaves 2 nodes for 40 classes"),
        ({"undirected": 1}, r"ogbn_like\.undirected"),
        ({"signal": -1}, r"ogbn_like\.signal"),
    ],
)
def test_a_wrong_argument_is_named(args, words):
    with pytest.raises(InputError, match=words):
        load("ogbn_like", args)
