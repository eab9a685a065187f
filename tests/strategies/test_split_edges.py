"""Where a batch is odd: empty shares, isolated seeds, fewer seeds than ranks; and many steps."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.ranks import run_ranks
from support.split_jobs import MODELS, cut, job

from gnn_dist import storage, strategies
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.graph import Graph
from gnn_dist.nn import gcn_norm

STEPS = 20


def isolated(num_parts: int) -> storage.PartitionedGraph:
    """Half of the nodes have no edge; the last part owns nodes without edges alone."""
    whole = random_graph(40, 160, seed=6)
    rng = np.random.default_rng(0)
    count = 80
    graph = Graph(
        np.concatenate([whole.indptr, np.full(40, whole.indptr[-1])]),
        whole.indices,
        node={"x": rng.standard_normal((count, 5)), "y": rng.integers(0, 3, count)},
        splits={"train": np.arange(0, count, 3)},
        info={"num_classes": 3},
    )
    assignment = np.arange(count) % max(num_parts - 1, 1)
    assignment[70:] = num_parts - 1
    return storage.assemble(graph, assignment.astype(np.int32), num_parts)


def paths(num_parts: int) -> storage.PartitionedGraph:
    """A graph whose batches lie in one part: every other rank has an empty share."""
    source = np.arange(39)
    rng = np.random.default_rng(1)
    graph = Graph.from_edges(
        source,
        source + 1,
        40,
        node={"x": rng.standard_normal((40, 5)), "y": rng.integers(0, 3, 40)},
        splits={"train": np.arange(5, 20)},
        info={"num_classes": 3},
    )
    assignment = np.where(np.arange(40) < 25, 0, 1 + np.arange(40) % max(num_parts - 1, 1))
    return storage.assemble(
        gcn_norm(graph), np.minimum(assignment, num_parts - 1).astype(np.int32), num_parts
    )


def banded(num_parts: int) -> storage.PartitionedGraph:
    """Parts that few edges leave, so that layers over a network come in halves."""
    rng = np.random.default_rng(2)
    count = 240
    destination = np.repeat(np.arange(count), 6)
    source = (destination + rng.integers(-4, 5, destination.size)) % count
    graph = Graph.from_edges(
        source,
        destination,
        count,
        node={"x": rng.standard_normal((count, 5)), "y": rng.integers(0, 3, count)},
        splits={"train": np.arange(0, count, 2)},
        info={"num_classes": 3},
    )
    assignment = np.arange(count) * num_parts // count
    return storage.assemble(gcn_norm(graph), assignment.astype(np.int32), num_parts)


GRAPHS = {"isolated": isolated, "paths": paths, "banded": banded, "random": cut}


def train(world: World, graph_name: str, num_parts: int, jobs: list[Config]) -> list:
    """For each job: losses of ``STEPS`` steps, the weights after them, layers in halves."""
    found = []
    for one in jobs:
        strategy = strategies.build(one, world, GRAPHS[graph_name](num_parts))
        optimizer = torch.optim.Adam(strategy.model.parameters(), lr=1e-2)
        losses, halves, epoch = [], 0, 0
        while len(losses) < STEPS:
            stop = min(strategy.num_batches(), STEPS - len(losses))
            for _, share in strategy.shares(epoch, 0, stop):
                losses.append(strategy.backward(share).loss)
                optimizer.step()
                layers = getattr(share[0], "layers", ())
                halves += sum(layer.halves is not None for layer in layers)
            epoch += 1
        weights = torch.cat([p.detach().reshape(-1) for p in strategy.model.parameters()])
        found.append((losses, weights, halves))
    return found


@pytest.mark.parametrize(
    ("graph_name", "size", "batch_size"),
    [("isolated", 3, 5), ("paths", 4, 2), ("banded", 2, 24), ("random", 4, 30), ("random", 1, 30)],
)
def test_many_steps_give_the_weights_of_one_process(graph_name, size, batch_size):
    models = [*MODELS]
    right = {"model.args": {"hidden": 8, "gcn_norm": "right"}}
    # the edge tensor that gcn reads comes with a self-loop at every node
    bare = {"gcn": right} if graph_name == "isolated" else {}
    jobs = [job("split", model, batch_size, **bare.get(model, {})) for model in models]
    if graph_name == "paths":
        jobs.append(job("split", "sage", batch_size, **{"split.data_parallel_layers": 1}))
        models = [*models, "sage"]
    alone = [job("data", model, batch_size, **bare.get(model, {})) for model in models]
    expected = train(World.local(), graph_name, 1, alone)
    ranks = (
        run_ranks(train, size, (graph_name, size, jobs), timeout=300)
        if size > 1
        else [train(World.local(), graph_name, 3, jobs)]
    )
    for found in ranks:
        for (losses, weights, _), (losses_alone, weights_alone, _) in zip(
            found, expected, strict=True
        ):
            assert losses == pytest.approx(losses_alone, rel=1e-8)
            scale = float(weights_alone.abs().max())
            assert torch.allclose(weights, weights_alone, rtol=1e-8, atol=1e-8 * scale)
    if graph_name == "banded":
        assert all(halves > STEPS / 2 for found in ranks for _, _, halves in found)
