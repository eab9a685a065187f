"""What a vertex and an edge cost in a batch, and partitions that are balanced by it."""

import numpy as np
import pytest
from support.graphs import random_graph
from support.split_jobs import job

from gnn_dist import partitioners, plugins
from gnn_dist.batch import BatchIndex
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.loading import EpochPlan
from gnn_dist.sampling import BUILTIN as SAMPLERS
from gnn_dist.sampling import LocalTopology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.split.weights import edge_draws, origin, partition_weights
from gnn_dist.training import jobs


def weighed(kind: str, **changes):
    return job("split", **{"partition.weights": kind, "sampler.fanouts": [3, 2], **changes})


def by_edges(one, graph: Graph, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights from lists of the drawn edges, one by one."""
    whole = PartitionedGraph.from_graph(graph)
    train, original = whole.split("train")
    zeros = np.zeros(train.size, np.int64)
    plan = EpochPlan(train, original, zeros, one.train.batch_size, 1, one.seed)
    args = {"fanouts": one.sampler.fanouts, "replace": one.sampler.replace, "edge_ids": True}
    sampler = plugins.build("sampler", one.sampler.name, args, SAMPLERS)
    destination = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
    place = {int(i): k for k, i in enumerate(ids)}
    vertices, edges = np.zeros(graph.num_nodes), np.zeros(graph.num_edges)
    batches = 0
    for epoch in range(epochs):
        order = plan.order(-1 - epoch)
        for number in range(plan.num_batches):
            seeds = plan.share(plan.batch(order, number), 0)
            batch = sampler.sample(
                LocalTopology(whole.part(0)),
                seeds,
                seed=one.seed,
                index=BatchIndex(-1 - epoch, number),
                global_seeds=seeds.size,
            )
            batches += 1
            frontier = set(seeds.tolist())
            drawn = batch.edges(np.arange(graph.num_nodes))
            for hop in range(len(one.sampler.fanouts)):
                for v in frontier:
                    vertices[v] += 1
                for _, u, v, edge in drawn[drawn[:, 0] == hop]:
                    assert graph.indices[place[int(edge)]] == u
                    assert destination[place[int(edge)]] == v
                    vertices[v] += 1
                    edges[place[int(edge)]] += 1
                    frontier = frontier | {int(u)}
            for v in frontier:
                vertices[v] += 1
    return vertices / batches, edges / batches


@pytest.mark.parametrize(
    "changes",
    [{}, {"sampler.replace": True}, {"sampler.name": "labor"}, {"partition.presample_epochs": 2}],
)
def test_presampled_weights_are_counts_of_drawn_rows_and_edges(changes):
    graph = random_graph(60, 400, seed=3)
    one = weighed("presample", **changes)
    found = partition_weights(one, graph)
    expected = by_edges(one, graph, one.partition.presample_epochs)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.allclose(mine, theirs, rtol=1e-12)
        assert mine.sum() > 0


def test_a_sampler_of_ones_own_need_not_take_what_the_job_leaves_as_it_is():
    graph = random_graph(60, 400, seed=3)
    own = {"sampler.name": "support.split_jobs.Plain"}
    found = partition_weights(weighed("presample", **own), graph)
    expected = partition_weights(weighed("presample"), graph)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(mine, theirs)
    with pytest.raises(InputError, match="takes no argument 'replace'"):
        partition_weights(weighed("presample", **own, **{"sampler.replace": True}), graph)


def test_analysed_weights_are_the_mean_of_what_is_drawn():
    graph = random_graph(300, 1500, seed=4)
    changes = {"train.batch_size": 20, "partition.presample_epochs": 40}
    found = partition_weights(weighed("vip", **changes), graph)
    drawn = partition_weights(weighed("presample", **changes), graph)
    for mine, theirs in zip(found, drawn, strict=True):
        assert mine.sum() == pytest.approx(theirs.sum(), rel=0.03)
        assert np.corrcoef(mine, theirs)[0, 1] > 0.97


def test_analysed_weights_are_exact_where_all_is_drawn():
    graph = random_graph(60, 400, seed=3)
    train = graph.splits["train"]
    one = weighed("vip", **{"sampler.fanouts": [-1, -1], "train.batch_size": train.size})
    found = partition_weights(one, graph)
    expected = by_edges(one, graph, 1)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("replace", [False, True])
def test_an_edge_of_a_weighted_draw_counts_by_its_share(replace):
    source, destination = np.array([1, 2, 3, 4, 0]), np.array([0, 0, 0, 1, 1])
    weight = np.array([6.0, 3.0, 0.0, 1.0, 1.0])
    graph = Graph.from_edges(source, destination, 5, edge={"w": weight})
    once = edge_draws(graph, 1, replace, "w")
    assert once.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 0.5, 0.5])
    twice = edge_draws(graph, 2, replace, "w")
    taken = [4 / 3, 2 / 3, 0.0, 1.0, 1.0] if replace else [1.0, 1.0, 0.0, 1.0, 1.0]
    assert twice.tolist() == pytest.approx(taken)
    assert edge_draws(graph, -1, replace, "w").tolist() == [1.0] * 5


@pytest.mark.parametrize("name", ["metis", "kaminpar"])
def test_a_weighted_partition_balances_work_and_is_made_again_for_another_sampler(tmp_path, name):
    pytest.importorskip({"metis": "pymetis"}.get(name, name))
    values = {
        "partition.name": name,
        "dataset": {"name": "sbm", "args": {"num_nodes": 600, "num_classes": 4}},
        "partition.parts": 4,
        "output": str(tmp_path),
    }
    one = weighed("vip", **values)
    graph = jobs.partition(one)
    node_weights, _ = partition_weights(one, jobs.load_graph(one.dataset))
    assignment = graph.owner(np.arange(600))
    by_part = np.bincount(assignment, node_weights[np.asarray(graph.original_ids())])
    assert by_part.max() / by_part.mean() < 1.1
    assert graph.manifest.partitioner.weights == origin(one)
    assert jobs.partition(one).digest == graph.digest
    changed = {**values, "sampler.fanouts": [2, 2], "partition.path": str(tmp_path / "partition")}
    with pytest.raises(InputError, match="was made with"):
        jobs.partition(weighed("vip", **changed))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("vip", {"sampler.name": "labor"}, "use presample"),
        ("presample", {"sampler.name": "ladies"}, "draws vertex by vertex; 'ladies' does not"),
        ("vip", {"sampler.weights": "none"}, "no edge tensor 'none'"),
    ],
)
def test_what_cannot_be_weighed_is_named(kind, changes, words):
    with pytest.raises(InputError, match=words):
        partition_weights(weighed(kind, **changes), random_graph(60, 400, seed=3))


def test_a_partitioner_that_takes_no_weights_says_so():
    graph = random_graph(60, 400, seed=3)
    node_weights, edge_weights = partition_weights(weighed("vip"), graph)
    with pytest.raises(InputError, match=r"takes no .*weights"):
        partitioners.partition(
            graph, 2, "random", seed=0, node_weights=node_weights, edge_weights=edge_weights
        )
