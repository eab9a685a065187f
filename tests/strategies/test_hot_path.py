"""Bulk sampling, windows, caches and copies change what is moved and when: never a loss."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.ranks import run_ranks

from gnn_dist import config, storage, strategies
from gnn_dist.cluster import World
from gnn_dist.errors import InputError

RANKS, EPOCHS = 4, 2
WINDOW = {"cache.window": 4, "cache.ahead": 3}
SETTINGS = {
    "plain": {},
    "bulk": {"sampler.bulk": 16},
    "union": {"cache.window": 12},
    "everything": {
        "sampler.bulk": 5, **WINDOW, "cache.name": "lookahead", "cache.fraction": 0.25,
        "loader.prefetch": 0,
    },
    "few bytes": {"sampler.bulk": 3, **WINDOW, "cache.window_bytes": 200},
    "two copies": {"cluster.replication": 2, "sampler.bulk": 4},
    "four copies": {"cluster.replication": 4, "sampler.bulk": 4, "cache.window": 2},
    **{
        policy: {**WINDOW, "sampler.bulk": 2, "cache.name": policy, "cache.fraction": 0.25}
        for policy in ("degree", "presample", "vip", "score")
    },
}  # fmt: skip
SAMPLERS = {
    name: {"sampler.name": name, "sampler.fanouts": sizes, "sampler.bulk": 3}
    for name, sizes in {"labor": [4, 3], "ladies": [40, 60], "fastgcn": [60, 80]}.items()
}


def job(changed: dict) -> config.Config:
    return config.load(
        None,
        {
            "dataset.name": "unused",
            "sampler.fanouts": [4, 3],
            "model.name": "sage",
            "model.args": {"hidden": 8, "dropout": 0.3},
            "train.batch_size": 17,
            "train.epochs": EPOCHS,
            "loader.prefetch": 3,
            "cluster.placement": "per-rank",
            "seed": 5,
            **changed,
        },
    )


def parts() -> storage.PartitionedGraph:
    whole = random_graph(400, 3000, seed=2)
    assignment = np.random.default_rng(4).integers(0, RANKS, 400).astype(np.int32)
    return storage.assemble(whole, assignment, RANKS)


def losses(world: World, changed: dict) -> tuple[list[float], dict, dict]:
    """The loss of every step, what was moved (over all ranks), and seconds of the last step."""
    strategy = strategies.build(job(changed), world, parts())
    optimizer = torch.optim.Adam(strategy.model.parameters(), lr=0.05)
    found, report = [], None
    for epoch in range(EPOCHS):
        for _, share in strategy.shares(epoch, 0, strategy.num_batches()):
            report = strategy.backward(share)
            optimizer.step()
            found.append(report.loss)
    assert report is not None
    return found, strategy.communication(), report.seconds


def all_settings(world: World) -> dict[str, tuple]:
    return {name: losses(world, changed) for name, changed in {**SETTINGS, **SAMPLERS}.items()}


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple]:
    every = run_ranks(all_settings, RANKS, timeout=120)
    assert all(rank.keys() == {**SETTINGS, **SAMPLERS}.keys() for rank in every)
    for rank in every:  # a loss is equal on every rank
        assert {name: run[0] for name, run in rank.items()} == {
            name: run[0] for name, run in every[0].items()
        }
    return every[0]


@pytest.mark.parametrize("setting", list(SETTINGS)[1:])
def test_the_loss_curve_is_that_of_the_plain_run_to_the_last_bit(runs, setting):
    plain = runs["plain"][0]
    assert len(plain) == EPOCHS * 12
    assert plain[-1] < plain[0]
    assert runs[setting][0] == plain


def test_bulk_sampling_saves_rounds_and_not_more_than_its_counts_of_rows_cost(runs):
    steps = EPOCHS * 12
    plain, bulk = runs["plain"][1], runs["bulk"][1]
    # Two rounds a hop, summed over ranks; an epoch of 12 batches is one bulk of 16.
    assert plain["sampling_rounds"] == RANKS * steps * 4
    assert bulk["sampling_rounds"] == RANKS * EPOCHS * 4
    header = 4 * 12 * (RANKS - 1) * RANKS * EPOCHS * 2  # int32 a batch, to others, each hop
    padding = 2 * 8 * 3 * steps * RANKS * (RANKS - 1)  # of answers, in the plain run at most
    assert abs(bulk["sampling_bytes"] - header - plain["sampling_bytes"]) <= padding
    features = runs["union"][1]["features"]
    start = 1 + 2 * 2  # the empty fill; the forecast asks for probabilities, twice a hop
    assert features["rounds"] == RANKS * (EPOCHS + start)  # one window an epoch
    assert plain["features"]["rounds"] == RANKS * (steps + 1)


def test_a_union_of_batches_sends_no_row_twice(runs):
    plain, union = runs["plain"][1]["features"], runs["union"][1]["features"]
    held = union["rows"]["remote"] + union["rows"]["cached"]
    assert held == plain["rows"]["remote"]
    assert union["rows"]["remote"] < 0.8 * held


def test_copies_of_the_graph_are_paid_back_in_bytes(runs):
    moved = [runs[name][1] for name in ("bulk", "two copies", "four copies")]
    sampling = [m["sampling_bytes"] for m in moved]
    rows = [m["features"]["rows"]["remote"] for m in moved]
    assert sampling[0] > 1.3 * sampling[1] > 0
    assert rows[0] > 1.3 * rows[1] > 0
    assert sampling[2] == rows[2] == 0
    assert moved[2]["sampling_rounds"] == 0


@pytest.mark.parametrize("setting", ["union", "vip", "degree", "everything"])
def test_what_was_foreseen_stands_beside_what_was_counted(runs, setting):
    foreseen = runs[setting][1]["cache"]
    assert len(foreseen) == RANKS
    predicted = np.mean([f["remote_rows_predicted"] for f in foreseen])
    measured = np.mean([f["remote_rows"] for f in foreseen])
    needed = np.mean([f["needed_rows"] for f in foreseen])
    assert abs(predicted - measured) < 0.05 * needed
    assert needed == pytest.approx(
        np.mean([f["needed_rows_predicted"] for f in foreseen]), rel=0.05
    )
    counted = runs[setting][1]["features"]["rows"]
    assert sum(f["remote_rows"] for f in foreseen) * EPOCHS * 12 == pytest.approx(counted["remote"])


def test_time_waited_for_features_is_part_of_the_wait_of_a_step(runs):
    for _, _, seconds in runs.values():
        assert 0 <= seconds["wait_features"] <= seconds["wait"] + 1e-9


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_trains_on_ranks_as_in_one_process(runs, sampler):
    alone, _, _ = losses(World.local(), SAMPLERS[sampler])
    assert runs[sampler][0][:4] == pytest.approx(alone[:4], rel=1e-4)
    assert runs[sampler][0] == pytest.approx(alone, rel=0.02)  # float32: Adam spreads roundings


@pytest.mark.parametrize("sampler", [{}, *SAMPLERS.values()])
def test_the_matrix_engine_gives_the_same_losses(sampler):
    first = {**sampler, "train.batch_size": 100}
    fused = losses(World.local(), first)[0]
    assert losses(World.local(), {**first, "sampler.engine": "matrix"})[0] == fused


def test_a_plan_says_beforehand_what_the_report_says_of_the_run(runs):
    plan = strategies.plan(job({**SETTINGS["vip"], "cluster.workers": RANKS}), parts())
    for rank, found in zip(plan.ranks, runs["vip"][1]["cache"], strict=True):
        assert rank.remote == pytest.approx(found["remote_rows_predicted"], rel=1e-3)
        assert rank.hit_rate == pytest.approx(found["hit_rate_predicted"], rel=1e-3)
    assert plan.rounds == 2 * 2 / 2 + 2 / 4
    assert len(plan.text().splitlines()) == RANKS + 2
    copies = strategies.plan(job({"cluster.workers": 2, "cluster.replication": 2}), parts())
    assert copies.ranks == ()
    assert "nothing is asked of others" in copies.text()


def test_copies_must_fit_the_hosts():
    with pytest.raises(InputError, match=r"cluster.replication: 2 copies on 1 hosts"):
        strategies.build(job({"cluster.replication": 2}), World.local(), parts())


def test_a_cache_without_a_size_is_a_mistake():
    with pytest.raises(InputError, match=r"cache.fraction: the cache 'vip' may keep nothing"):
        job({"cache.name": "vip"})
