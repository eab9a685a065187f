"""``auto`` takes what its counts and measurements say, and says it alike on every rank."""

import numpy as np
import pytest
import torch
from support.ranks import run_ranks
from support.split_jobs import cut, job

from gnn_dist import strategies
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.strategies import auto
from gnn_dist.strategies.auto import Link, Machine, compare, step_seconds
from gnn_dist.strategies.data import build_parts
from gnn_dist.strategies.split.counts import EDGES, SOURCES, VERTICES
from gnn_dist.strategies.split.plan import count_first, planned_placement
from gnn_dist.strategies.split.trial import Trial

FAST = Link(1e-4, 1e10)
SLOW = Link(1e-3, 1e7)
RANKS = 3


def machine(network: Link = FAST, near: Link = FAST, cores: int = 8) -> Machine:
    return Machine(network, near, (0, 0), cores, 1)


def trial(**values) -> Trial:
    return Trial(**{"edges": 10, "rows": 10, "load": 0.01, "compute": 0.1, **values})


def test_a_step_is_as_long_as_what_is_longest_in_it():
    both = [trial(), trial(compute=0.2)]
    assert step_seconds(both, machine(), True) == pytest.approx(0.2)
    assert step_seconds(both, machine(), False) == pytest.approx(0.21)
    assert step_seconds(both, machine(cores=1), True) == pytest.approx(0.32)
    loading = [trial(load_bytes=10_000_000, load_rounds=3), trial()]
    assert step_seconds(loading, machine(network=SLOW), True) == pytest.approx(1.013)
    hidden = [trial(shuffles=(600_000, 10)), trial(shuffles=(0, 400_000), compute=0.05)]
    assert step_seconds(hidden, machine(near=SLOW), True) == pytest.approx(0.1 + 0.1 + 0.002)
    summed = [trial(gradient_bytes=1_000_000)] * 2
    assert step_seconds(summed, machine(network=SLOW), True) == pytest.approx(0.201)
    # the fifth of the processor's time before an exchange is what the other's use may fall into
    both = [trial(load_bytes=1_000_000, shuffles=(400_000,) * 5, load_rounds=1)] * 2
    waits = 0.1 + 5 * 0.041 + 0.101 - 0.1 / 5
    assert step_seconds(both, machine(SLOW, SLOW), True) == pytest.approx(waits)


def test_the_faster_is_taken_and_the_link_decides():
    data = [trial(compute=0.2, load_bytes=100_000), trial(compute=0.2)]
    shuffled = {"step_bytes": 4_000_000, "shuffles": (1_000_000,) * 4}
    split = [trial(near_bytes=1000, **shuffled), trial(**shuffled)]
    fast = compare({"data": data, "split": split}, machine(), True)
    slow = compare({"data": data, "split": split}, machine(near=SLOW), True)
    assert (fast.chosen, slow.chosen) == ("split", "data")
    for found in (fast, slow):
        assert f"strategy {found.chosen} is taken" in found.text()
        assert [row["strategy"] for row in found.rows] == ["data", "split"]


class Prefer:
    """Stands for the model of time."""

    def __init__(self, name: str) -> None:
        self.rows = {"data": 100_000.0, "split": 100_000.0, name: 0.0}

    def __call__(self, trials, machine, ahead):
        return self.rows["split" if trials[0].shuffles else "data"]


def chosen(world: World, jobs: list[Config], prefer: str) -> list[tuple]:
    auto.step_seconds = Prefer(prefer)
    out = []
    for one in jobs:
        strategy = strategies.build(one, world, cut(RANKS))
        before = strategy.communication()
        steps = []
        for _, share in strategy.shares(0, 0, strategy.num_batches()):
            report = strategy.backward(share)
            flat = torch.cat([p.grad.reshape(-1) for p in strategy.model.parameters()])
            steps.append((report.loss, flat.clone()))
        out.append((strategy.name, strategy.choice, before, steps))
    return out


@pytest.mark.parametrize("prefer", ["data", "split"])
def test_counts_are_exact_and_the_one_chosen_trains_as_if_it_had_been_named(prefer):
    few = {"cluster.workers": RANKS, "batch_size": 30}
    jobs = [job("auto", **few), job(prefer, **few)]
    ranks = run_ranks(chosen, RANKS, (jobs, prefer), timeout=120)
    assert len({rank[0][1] for rank in ranks}) == 1
    name, choice, before, steps = ranks[0][0]
    _, _, _, expected = ranks[0][1]
    assert name == prefer
    assert f"strategy {prefer} is taken" in choice
    assert sum(before["features"]["rows"].values()) == 0
    assert before["sampling_bytes"] == 0
    for (loss, flat), (loss_expected, flat_expected) in zip(steps, expected, strict=True):
        assert loss == loss_expected
        assert torch.equal(flat, flat_expected)
    one = jobs[0]
    graph, sampler = cut(RANKS), build_parts(one, cut(RANKS)).sampler
    placement = planned_placement(one, graph)
    for row, kept in zip(before["compared"], (3, 0), strict=True):
        batch = count_first(one, graph, sampler, placement, kept).values[1].sum(axis=0)
        assert row["edges"] == batch[:, EDGES].sum()
        rows = batch[1, SOURCES] if kept else batch[0, VERTICES]
        assert row["feature rows"] == rows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampler.name": "ladies"}, "draws vertex by vertex"),
        ({"cache.name": "degree", "cache.fraction": 0.5}, "reads no row of another rank"),
    ],
)
def test_what_cannot_be_split_is_data_and_the_reason_is_told(changes, words):
    one = job("auto", **{"cluster.workers": 2, **changes})
    strategies.check(one, cut(2))
    assert words in strategies.plan(one, cut(2)).text()


def test_a_staged_host_need_not_have_every_part_to_decide(monkeypatch):
    graph = cut(2)

    def absent(self, index):
        raise InputError(f"part {index} is not in the staged copy")

    monkeypatch.setattr(type(graph), "part", absent)
    assert auto._impossible(job("auto"), graph, 2) == ""


def test_one_rank_is_data():
    strategy = strategies.build(job("auto"), World.local(), cut(3))
    assert strategy.name == "data"
    assert "one rank" in strategy.choice
    assert strategies.plan(job("auto"), cut(3)).text() == strategy.choice


def test_a_plan_puts_both_side_by_side():
    one = job("auto", **{"cluster.workers": RANKS})
    plan = strategies.plan(one, cut(RANKS))
    assert plan.data.a_batch(EDGES).sum() > plan.split.a_batch(EDGES).sum()
    lines = plan.text().splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["data", "split"]
    assert np.isclose(
        float(lines[2].split()[1].replace(",", "")), plan.split.a_batch(EDGES).sum(), atol=1
    )
