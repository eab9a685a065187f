"""What a rank is foreseen to ask of other hosts, beside what its loader asks."""

import pytest
from support.graphs import communities_in_two_parts
from support.threads import run_threads

from gnn_dist import config, plugins
from gnn_dist.cluster import Placement
from gnn_dist.features import BUILTIN, FeatureStore
from gnn_dist.loading import Horizon, Loader
from gnn_dist.sampling import NeighborSampler, PartitionedTopology
from gnn_dist.strategies.access import epoch_plan, foresee, workload

EPOCHS = 6


@pytest.fixture(scope="module")
def parts():
    return communities_in_two_parts()


@pytest.mark.parametrize(
    ("cache", "window", "ahead", "batches"),
    [
        ("lookahead", 8, 8, 40),
        ("vip", 4, 6, 20),
        ("lookahead", 8, 8, 5),  # epochs shorter than what a window and known batches hold
        ("vip", 4, 8, 3),
    ],
)
def test_a_prediction_agrees_with_a_loader_whose_known_batches_reach_into_the_next_epoch(
    parts, cache, window, ahead, batches
):
    train, _ = parts.split("train")
    job = config.load(
        None,
        {
            "dataset.name": "unused", "sampler.fanouts": [4, 6], "train.epochs": EPOCHS,
            "train.batch_size": -(-train.size // batches), "cache.name": cache,
            "cache.fraction": 0.15, "cache.window": window, "cache.ahead": ahead,
        },
    )  # fmt: skip
    sampler = NeighborSampler(job.sampler.fanouts)

    def work(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=2)
        plan = epoch_plan(job, parts, placement)
        own = workload(job, plan, sampler, rank)
        policy = plugins.build("cache", cache, {}, BUILTIN)
        store = FeatureStore(parts, placement, exchange, policy, fraction=0.15, workload=own)
        loader = Loader(
            plan,
            sampler,
            PartitionedTopology(parts, placement, exchange),
            store,
            seed=0,
            rank=rank,
            horizon=Horizon(4, window, ahead),
            prefetch=0,
        )
        delivered = sum(1 for epoch in range(EPOCHS) for _ in loader.epoch(epoch))
        assert delivered == EPOCHS * plan.num_batches == EPOCHS * batches
        return plan, placement, own, loader.counts

    plan, placement, own, counts = run_threads(2, work)[0]
    policy = plugins.build("cache", cache, {}, BUILTIN)
    found = foresee(job, parts, placement, plan, sampler, policy, own)
    assert found is not None
    assert abs(found.hit_rate - counts.hit_rate) < 0.02
    assert abs(found.needed / (counts.needed / (EPOCHS * batches)) - 1) < 0.05
