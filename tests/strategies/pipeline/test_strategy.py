"""The strategy on real ranks: the same gradients, losses and predictions however it is computed."""

import itertools
import json
import time
from typing import ClassVar

import numpy as np
import pytest
import torch
from support.deep_jobs import job as _job
from support.deep_jobs import small_graph as _graph
from support.ranks import run_ranks

from gnn_dist.cluster import World
from gnn_dist.config import Config, Pipeline
from gnn_dist.errors import InputError
from gnn_dist.nn.deep import model as deep_model
from gnn_dist.strategies.pipeline import PipelineStrategy, Profile, generate, simulate
from gnn_dist.strategies.pipeline import strategy as module
from gnn_dist.strategies.pipeline.bubbles import Ahead
from gnn_dist.strategies.pipeline.strategy import rebalance


def _one_batch(world: World, job: Config, schedules: list[str], parts: int = 1):
    """By schedule: loss, seeds, gradients, predictions, communication."""
    found = {}
    for name in schedules:
        strategy = PipelineStrategy.build(job, world, _graph(parts))
        strategy._settings = Pipeline(schedule=name)
        _, share = next(iter(strategy.shares(0, 0, 1)))
        report = strategy.backward(share)
        grads = [p.grad.clone() for p in strategy.model.parameters()]
        predicted = strategy.predict("test") if name == schedules[0] else None
        found[name] = (report.loss, report.seeds, grads, predicted, strategy.communication())
    return found


def _alone(job: Config, parts: int = 1):
    """One process that adds up the gradients of the micro-batches, without the executor."""
    strategy = PipelineStrategy.build(job, World.local(), _graph(parts))
    _, share = next(iter(strategy.shares(0, 0, 1)))
    strategy.model.zero_grad(set_to_none=True)
    total = 0.0
    for micro in share.micros:
        output = strategy.model(micro.batch.x, micro.batch.blocks)
        loss = strategy._task.loss_sum(output, micro.target) / share.seeds
        loss.backward()
        total += float(loss.detach())
    return total, share.seeds, [p.grad for p in strategy.model.parameters()]


SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "chimera"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gradients_of_the_deep_model_are_those_of_one_process(ranks):
    job = _job("float32", model={"dropout": 0.1})
    loss, seeds, wanted = _alone(job)
    names = SCHEDULES[:4] if ranks == 1 else SCHEDULES
    if ranks == 1:
        answers = [_one_batch(World.local(), job, names)]
    else:
        answers = run_ranks(_one_batch, ranks, (job, names), timeout=150)
    for found in answers:
        for name, (value, count, grads, _, moved) in found.items():
            assert count == seeds
            assert value == pytest.approx(loss, rel=1e-6)
            assert (moved["pipeline_bytes"] > 0) == (ranks > 1)
            if ranks > 1:  # one boundary a micro-batch in flight, and what zb-h1 puts off
                assert moved["pipeline_peak_bytes_measured"] == pytest.approx(
                    moved["pipeline_peak_bytes_simulated"],
                    abs=4 * 4,  # and the losses
                )
            for got, want in zip(grads, wanted, strict=True):
                if name == "chimera":  # each direction's micro-batches are summed first
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
                else:
                    assert torch.equal(got, want), name


def _peaks(world: World, job: Config, models: list[dict]):
    """Measured and foreseen bytes of the rank that holds most, by model."""
    found = []
    for model in models:
        args = {**job.model.args, **model}
        this = job.model_copy(update={"model": job.model.model_copy(update={"args": args})})
        moved = _one_batch(world, this, ["1f1b"])["1f1b"][-1]
        found.append([moved[f"pipeline_peak_bytes_{k}"] for k in ("measured", "simulated")])
    return found


def test_what_a_rank_holds_is_foreseen():
    models = [
        {"mode": mode, "conv": conv, "direction": "both"}
        for mode in ("plain", "checkpoint")
        for conv in ("mean", "attention")
    ]
    models += [{"grid": None, "saved_indices": True}, {"initial_residual": 0.1}]
    models += [{"mode": "plain", "packed": True, "compression": "int8"}]
    for found in run_ranks(_peaks, 2, (_job("float32", max_nodes=400), models), timeout=150):
        for model, (measured, foreseen) in zip(models, found, strict=True):
            assert foreseen == pytest.approx(measured, rel=0.002), model


@pytest.mark.parametrize(("mode", "states"), [("reversible", 0), ("checkpoint", 1)])
def test_what_operators_of_other_devices_hold_is_foreseen(mode, states, monkeypatch):
    """``states``: of 16 float32 a node, kept by each block."""
    monkeypatch.setattr(deep_model, "uses_kernels", lambda state: False)
    job = _job("float32", model={"mode": mode})
    strategy = PipelineStrategy.build(job, World.local(), _graph())
    _, share = next(iter(strategy.shares(0, 0, 1)))
    profile = strategy._profile(share.micros)
    for k, micro in enumerate(share.micros):
        state = micro.num_nodes * 16 * 4
        assert profile.activation[3][k] == pytest.approx(states * state, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_operators_of_other_devices_give_the_same_gradients(ranks):
    job = _job("float64", model={"grid": None})
    loss, _, wanted = _alone(job)
    answers = (
        [_with_operators(World.local(), job)]
        if ranks == 1
        else run_ranks(_with_operators, ranks, (job,), timeout=150)
    )
    for value, grads in answers:
        assert value == pytest.approx(loss, rel=1e-9)
        for got, want in zip(grads, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


def _with_operators(world: World, job: Config):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep_model, "uses_kernels", lambda state: False)
        found = _one_batch(world, job, ["1f1b"])["1f1b"]
    return found[0], found[2]


@pytest.mark.parametrize(
    ("sampler", "args", "model"),
    [
        ("circuits", {}, {"mode": "plain", "direction": "both"}),
        ("parts", {"hops": 2}, {"mode": "checkpoint", "conv": "gcn", "initial_residual": 0.1}),
        ("clusters", {"clusters": 2}, {"conv": "attention"}),
    ],
)
def test_float64_gradients_agree_over_hosts_schedules_and_units(sampler, args, model):
    parts = 1 if sampler == "circuits" else 6
    alone = _job(sampler=sampler, model=model, **args)
    loss, _, wanted = _alone(alone, parts)
    job = _job(sampler=sampler, placement="per-rank", model=model, **args)
    for found in run_ranks(_one_batch, 2, (job, ["chimera"], parts), timeout=150):
        value, _, grads, _, _ = found["chimera"]
        assert value == pytest.approx(loss, rel=1e-12)
        for got, want in zip(grads, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)


def test_predictions_are_those_of_each_circuit_alone():
    job = _job()
    ids, outputs, targets = _one_batch(World.local(), job, ["1f1b"])["1f1b"][3]
    split, labels = _graph().split("test")[1], _graph().part(0).node["y"]
    np.testing.assert_array_equal(ids.numpy(), np.sort(split))
    np.testing.assert_allclose(targets.numpy().reshape(-1), labels[ids.numpy()].reshape(-1))
    apart = _job(placement="per-rank")
    first, second = run_ranks(_one_batch, 2, (apart, ["1f1b"], 4), timeout=150)
    assert second["1f1b"][3] is None
    torch.testing.assert_close(first["1f1b"][3][0], ids)
    torch.testing.assert_close(first["1f1b"][3][1], outputs, rtol=1e-9, atol=1e-12)


def _two_epochs(world: World, job: Config):
    """Digest of the micro-batches, and how much was built while waiting."""
    strategy = PipelineStrategy.build(job, world, _graph())
    seen = []
    for epoch in range(2):
        for index, share in strategy.shares(epoch, 0, strategy.num_batches()):
            seen.append((tuple(index), [m.batch.seeds.tolist() for m in share.micros]))
            strategy.backward(share)
    return seen, strategy.num_batches(), strategy.bounds, len(strategy.candidates)


def test_batches_and_resumed_epochs_do_not_depend_on_ranks():
    job = _job()
    seen, count, _, _ = _two_epochs(World.local(), job)
    assert len(seen) == 2 * count
    assert seen[0][1] != seen[count][1]
    answers = run_ranks(_two_epochs, 2, (job,), timeout=120)
    assert answers[0][3] > 4  # rank 0 has measured and compared
    assert answers[0][2] == answers[1][2]
    for other, _, _, _ in answers:
        assert other == seen
    strategy = PipelineStrategy.build(job, World.local(), _graph())
    rest = [
        (tuple(i), [m.batch.seeds.tolist() for m in s.micros])
        for i, s in strategy.shares(1, count - 1, count)
    ]
    assert rest == seen[-1:]


class CountedAhead(Ahead):
    """Remembers what was made."""

    made: ClassVar[list[Ahead]] = []

    def __init__(self, jobs, bubbles) -> None:
        super().__init__(jobs, bubbles)
        self.made.append(self)


def _prepared(world: World, job: Config):
    """Micro-batches of the second global batch that were built while rank 1 waited for rank 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Ahead", CountedAhead)
        strategy = PipelineStrategy.build(job, world, _graph())
        shares = strategy.shares(0, 0, 2)
        _, share = next(shares)
        strategy._profile(share.micros)
        time.sleep(0.3 * (world.rank == 0))
        strategy.backward(share)
        next(shares)
        shares.close()
    first, second = CountedAhead.made
    return first.done_in_bubbles, second.done_in_bubbles


def test_the_next_batch_is_prepared_while_a_rank_waits():
    answers = run_ranks(_prepared, 2, (_job(micro_batches=1),), timeout=60)
    before, meanwhile = answers[1]
    assert before == 0
    assert meanwhile > 0


def _layers(count: int, micro: int = 4, kept: float = 10.0) -> Profile:
    """Layers alike that keep 10 bytes of a micro-batch, with boundaries of 4 bytes."""
    grid = [[1.0] * micro] * count
    return Profile(grid, grid, grid, [[kept] * micro] * count, [4.0] * micro)


def test_layers_move_to_the_faster_rank():
    one = generate("1f1b", 2, 4)
    assert rebalance(_layers(8), one, [0, 4, 8], [3.0, 1.0]) == [0, 3, 8]
    assert rebalance(_layers(4), one, [0, 2, 4], [1.0, 1.0]) == [0, 2, 4]


@pytest.mark.parametrize(
    ("old", "limit", "new"),
    [
        ([0, 4, 12], float("inf"), [0, 6, 12]),  # rank 0 would hold 2 * (6 * 10 + 4) = 128
        ([0, 4, 12], 100.0, [0, 4, 12]),  # 2 * 44 and 84; five layers would be 2 * 54
        ([0, 2, 12], 110.0, [0, 5, 12]),
        ([0, 2, 12], 50.0, [0, 2, 12]),  # nothing fits
    ],
)
def test_layers_move_only_as_far_as_the_memory_limit_lets_them(old, limit, new):
    profile, schedule = _layers(12), generate("1f1b", 2, 4)
    seconds = [float(b - a) for a, b in itertools.pairwise(old)]
    found = rebalance(profile, schedule, old, seconds, limit)
    assert found == new
    if found != old:
        assert max(simulate(schedule, profile.stage_costs(found)).peak_bytes) <= limit


def _uneven(world: World, job: Config, watched: int):
    strategy = PipelineStrategy.build(job, world, _graph())
    strategy._settings = Pipeline(schedule="1f1b")
    strategy._chosen, strategy.bounds = ("1f1b", 1), [0, 1, 8]
    before = [p.detach().clone() for p in strategy.model.parameters()]
    grads = []
    for epoch in range(watched + 1):
        for _, share in strategy.shares(epoch, 0, 1):
            strategy.backward(share)
            grads.append([p.grad.clone() for p in strategy.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(before, strategy.model.parameters(), strict=True))
    return strategy.bounds, grads


def test_an_uneven_cut_is_mended_and_changes_no_gradient():
    answers = run_ranks(_uneven, 2, (_job("float32"), module._WATCHED), timeout=120)
    bounds, grads = answers[0]
    assert answers[1][0] == bounds
    assert bounds[1] > 1
    even = PipelineStrategy.build(_job("float32"), World.local(), _graph())
    for epoch in (0, module._WATCHED):
        _, share = next(iter(even.shares(epoch, 0, 1)))
        even.backward(share)
        for a, b in zip(grads[epoch], even.model.parameters(), strict=True):
            assert torch.equal(a, b.grad)


def _limited(world: World, job: Config):
    """Cut and peak of every step of a job whose schedule is named, and the first gradients."""
    strategy = PipelineStrategy.build(job, world, _graph())
    found, grads = [], []
    for epoch in range(module._WATCHED + 1):
        _, share = next(iter(strategy.shares(epoch, 0, 1)))
        strategy.backward(share)
        found.append((strategy.bounds, strategy.last_step.peak_bytes))
        grads.append([p.grad.clone() for p in strategy.model.parameters()])
    return found, grads[0]


@pytest.mark.parametrize("mode", ["plain", "checkpoint"])
@pytest.mark.parametrize("own", [False, True], ids=["named", "table"])
def test_a_job_keeps_to_the_cut_that_its_memory_limit_asks_for(own, mode, tmp_path):
    """As `gnn-dist plan` shows it, also where layers would move for the sake of time."""
    job = _job("float32", model={"mode": mode})
    cluster = job.cluster.model_copy(update={"workers": 2})
    job = job.model_copy(update={"cluster": cluster, "pipeline": Pipeline(schedule="1f1b")})
    free = PipelineStrategy.plan(job, _graph())
    assert free.chosen.bounds == (0, 4, 8)
    table = tmp_path / "table.json"
    table.write_text(free.chosen.schedule.to_json())
    limit = 0.8 * free.chosen.peak_mib
    named = {"table": table} if own else {"schedule": "1f1b"}
    job = job.model_copy(update={"pipeline": Pipeline(memory_mib=limit, **named)})
    planned = PipelineStrategy.plan(job, _graph()).chosen
    assert planned.fits
    assert planned.bounds[1] < 4
    answers = run_ranks(_limited, 2, (job,), timeout=120)
    _, _, wanted = _alone(job)
    for found, grads in answers:
        assert found[0][0] == list(planned.bounds)
        assert max(peak for _, peak in found) <= limit * 2**20
        assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_a_table_of_ones_own_trains(tmp_path):
    """GPipe over three stages, the middle one on rank 1, which splits its backward passes."""
    job = _job("float32")
    _, share = next(iter(PipelineStrategy.build(job, World.local(), _graph()).shares(0, 0, 1)))
    numbers = range(len(share.micros))
    rows = [
        [f"F0.{m}" for m in numbers] + [f"{a}.{m}" for m in numbers for a in ("F2", "B2")],
        [f"F1.{m}" for m in numbers] + [f"{a}1.{m}" for m in numbers for a in "IW"],
    ]
    rows[0] += [f"B0.{m}" for m in numbers]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"routes": [[0, 1, 0] for _ in numbers], "table": rows}))
    cluster = job.cluster.model_copy(update={"workers": 2})
    job = job.model_copy(update={"cluster": cluster, "pipeline": Pipeline(table=table)})
    _, _, wanted = _alone(job)
    for found, grads in run_ranks(_limited, 2, (job,), timeout=60):
        assert len(found[0][0]) == 4
        assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_a_named_schedule_that_does_not_fit_is_said():
    job = _job().model_copy(update={"pipeline": Pipeline(schedule="gpipe", memory_mib=1e-3)})
    strategy = PipelineStrategy.build(job, World.local(), _graph())
    _, share = next(iter(strategy.shares(0, 0, 1)))
    with pytest.warns(UserWarning, match=r"0\.001 MiB.*pipeline\.memory_mib.*taking gpipe"):
        strategy.backward(share)


def test_units_are_packed_under_a_budget_of_nodes_and_one_of_time():
    def costs(**args: float) -> list[float]:
        job = _job("float32", alpha=1.0, beta=2.0, max_nodes=1000, **args)
        strategy = PipelineStrategy.build(job, World.local(), _graph())
        shares = [share for _, share in strategy.shares(0, 0, strategy.num_batches())]
        return [m.num_nodes + 2 * m.num_edges for share in shares for m in share.micros]

    free = costs()
    limit = 0.6 * sum(free)
    held = costs(max_cost=limit)
    assert len(free) == 1 < len(held)
    assert max(held) <= limit
    assert sum(held) == sum(free)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sampler": {"name": "neighbor"}}, "gives no sub-graphs.*circuits, parts, clusters"),
        ({"sampler": {"name": "parts", "args": {"hop": 1}}}, "takes no argument 'hop'"),
        ({"sampler": {"name": "parts", "args": {"hops": -1}}}, "hops: -1"),
        ({"model": {"name": "sage"}}, "'sage' cannot be cut into stages"),
        ({"train": {"precision": "bfloat16"}}, "bfloat16 cannot hold a residual stream"),
        ({"sampler": {"name": "circuits", "args": {"max_nodes": 3}}}, "above max_nodes = 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, says):
    values = _job().model_dump()
    for section, fields in change.items():
        values[section] = {**values[section], **fields}
    if change.get("model"):
        values["model"]["args"] = {}
    job, graph = Config.model_validate(values), _graph()
    with pytest.raises(InputError, match=says):
        PipelineStrategy.build(job, World.local(), graph)
    if "max_nodes" not in says:  # which takes the sub-graphs to know
        with pytest.raises(InputError, match=says):
            PipelineStrategy.check(job, graph)
