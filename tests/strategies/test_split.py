"""Every vertex once: the same loss and gradients as ``data``, and no row of another rank read."""

import numpy as np
import pytest
import torch
from support.ranks import run_ranks
from support.split_jobs import MODELS, cut, job

from gnn_dist import config, strategies
from gnn_dist.batch import global_digest
from gnn_dist.cluster import World
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureRows
from gnn_dist.sampling import NeighborSampler


def run_epoch(world: World, num_parts: int, jobs: list[config.Config]) -> list[list[tuple]]:
    """For each job: (loss, gradients as one vector, this rank's share) of every batch."""
    found = []
    for one in jobs:
        strategy = strategies.build(one, world, cut(num_parts))
        steps = []
        for _, share in strategy.shares(0, 0, strategy.num_batches()):
            report = strategy.backward(share)
            flat = torch.cat([p.grad.reshape(-1) for p in strategy.model.parameters()])
            steps.append((report.loss, flat.clone()))
        rows = strategy.communication()["features"]["rows"]
        assert rows["owned"] > 0
        assert rows["shared"] == rows["remote"] == 0
        found.append(steps)
    return found


VARIANTS: list[tuple[str, dict, dict]] = [
    *((model, {}, {}) for model in MODELS),
    ("gcn", {"model.args": {"hidden": 8, "gcn_norm": "right"}}, {}),
    ("sage", {"sampler.name": "labor"}, {}),
    ("sage", {}, {"split.data_parallel_layers": 1}),
    ("gat", {}, {"split.data_parallel_layers": 2}),
    ("sage", {}, {"cluster.placement": "auto", "loader.prefetch": 0}),
]
"""(model, changes of both strategies, changes of ``split``)"""


def variants(strategy: str, batch_size: int) -> list[config.Config]:
    return [
        job(strategy, model, batch_size, **both, **(own if strategy == "split" else {}))
        for model, both, own in VARIANTS
    ]


@pytest.fixture(scope="module")
def one_process():
    return {size: run_epoch(World.local(), 1, variants("data", size)) for size in (17, 3)}


@pytest.mark.parametrize(("size", "batch_size"), [(1, 17), (2, 17), (4, 3)])
def test_loss_and_gradients_are_those_of_one_process(size, batch_size, one_process):
    jobs = variants("split", batch_size)
    ranks = (
        run_ranks(run_epoch, size, (size, jobs), timeout=120)
        if size > 1
        else [run_epoch(World.local(), 3, jobs)]
    )
    for found in ranks:
        for steps, expected in zip(found, one_process[batch_size], strict=True):
            assert len(steps) == len(expected) > 3
            for (loss_found, flat_found), (loss, flat) in zip(steps, expected, strict=True):
                assert loss_found == pytest.approx(loss, rel=1e-10)
                scale = float(flat.abs().max())
                assert torch.allclose(flat_found, flat, rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_one_host_agree_with_one_process_in_single_precision(size, one_process):
    """As people run it: rows in their tables and in the memory of their senders, batches ahead."""
    host = {"train.precision": "float32", "cluster.placement": "auto", "loader.prefetch": 4}
    jobs = [job("split", model, **{**both, **own, **host}) for model, both, own in VARIANTS]
    for found in run_ranks(run_epoch, size, (size, jobs), timeout=120):
        for steps, expected in zip(found, one_process[17], strict=True):
            for (loss_found, flat_found), (loss, flat) in zip(steps, expected, strict=True):
                assert loss_found == pytest.approx(loss, rel=1e-5)
                scale = float(flat.abs().max())
                assert torch.allclose(flat_found.double(), flat, rtol=1e-4, atol=1e-5 * scale)


def parts_of_an_epoch(world: World, num_parts: int, layers: int) -> list[tuple]:
    one = job("split", **{"split.data_parallel_layers": layers, "sampler.args": {"edge_ids": True}})
    strategy = strategies.build(one, world, cut(num_parts))
    # in two goes, as a run that goes on inside an epoch
    goes = [(0, 2), (2, strategy.num_batches())]
    return [share[0] for first, stop in goes for _, share in strategy.shares(0, first, stop)]


@pytest.mark.parametrize(("size", "layers"), [(1, 0), (2, 0), (4, 0), (3, 1)])
def test_batches_are_those_of_data_and_no_vertex_is_drawn_twice(size, layers):
    graph = cut(size)
    book = np.asarray(graph.original_ids())
    whole = strategies.build(
        job("data", **{"sampler.args": {"edge_ids": True}}), World.local(), graph
    )
    batches = [share[0] for _, share in whole.shares(0, 0, whole.num_batches())]
    ranks = run_ranks(parts_of_an_epoch, size, (size, layers), timeout=120)
    for k, batch in enumerate(batches):
        parts = [rank[k] for rank in ranks]
        assert global_digest(parts, book) == batch.digest(book)
        inputs = np.concatenate([part.input_nodes.numpy() for part in parts])
        assert np.unique(inputs).size == inputs.size == batch.input_nodes.numel()
        for depth in range(3 - layers):
            drawn = [part.layers[depth].block.num_dst for part in parts]
            assert sum(drawn) == batch.blocks[depth].num_dst


def first_inputs(world: World, num_parts: int, layers: int) -> list[tuple]:
    """The input rows of every batch: copied, and left in their tables."""
    found = []
    for precision in ("float64", "float32"):
        one = job(
            "split",
            batch_size=7,
            **{"train.precision": precision, "split.data_parallel_layers": layers},
        )
        strategy = strategies.build(one, world, cut(num_parts))
        batches = [share[0] for _, share in strategy.shares(0, 0, strategy.num_batches())]
        found.append([batch.x for batch in batches])
    return list(zip(*found, strict=True))


@pytest.mark.parametrize(("size", "layers"), [(1, 0), (2, 0), (4, 0), (3, 1)])
def test_own_rows_are_left_in_their_tables_and_all_are_those_that_would_be_copied(size, layers):
    for rank in run_ranks(first_inputs, size, (5, layers), timeout=120):
        for copied, left in rank:
            assert isinstance(copied, torch.Tensor)
            assert isinstance(left, FeatureRows)
            assert torch.equal(left.materialise(), copied.to(left.dtype))


class OwnBatches(NeighborSampler):
    """Says itself what a batch is."""

    def sample(self, *args, **kwargs):
        return super().sample(*args, **kwargs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampler.name": "ladies"}, "draws vertex by vertex, and 'ladies'"),
        ({"sampler.name": f"{__name__}.OwnBatches"}, "OwnBatches' draws whole batches"),
        ({"split.data_parallel_layers": 3}, "3 of 3 layers leaves none to split"),
        ({"cache.name": "degree", "cache.fraction": 0.5}, "reads no row of another rank"),
        ({"cluster.replication": 2, "cluster.workers": 2}, "replication: 2 is of no use to"),
        ({"sampler.bulk": 4}, "bulk: 4 is of no use to .* set 1, or use the strategy data"),
        ({"sampler.engine": "matrix"}, "each rank draws for its own vertices; set fused"),
        ({"model.name": "support.models.BlocksOnly", "model.args": {}}, "has no layers and"),
    ],
)
def test_what_cannot_be_split_is_named(changes, words):
    with pytest.raises(InputError, match=words):
        strategies.check(job("split", **changes), cut(2))
