"""Every schedule on real ranks against one process and against torch's own pipeline."""

import time
import warnings

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks, try_ranks
from torch import nn

from gnn_dist.cluster import World
from gnn_dist.errors import InputError, WorkerError
from gnn_dist.strategies.pipeline.bubbles import Ahead, Bubbles
from gnn_dist.strategies.pipeline.executor import PipelineExecutor
from gnn_dist.strategies.pipeline.generators import all_schedules, generate
from gnn_dist.strategies.pipeline.link import GroupLink, NoLink
from gnn_dist.strategies.pipeline.stages import ModuleStage

WIDTH = 6


def _layers(count):
    generator = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(count):
        layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        layers.append(nn.Sequential(layer, nn.Tanh()))
    return layers


def _micros(count, rows=None):
    """Micro-batches of different sizes."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(rows or 3 + 2 * k, WIDTH, generator=generator, dtype=torch.float64)
        for k in range(count)
    ]


def _stage(layers, number, stages):
    per = len(layers) // stages
    module = nn.Sequential(*layers[number * per : (number + 1) * per])

    def call(module, micro, value):
        out = module(micro if number == 0 else value)
        return out.square().sum() if number == stages - 1 else out

    return ModuleStage(module, call, lambda micro: (tuple(micro.shape),) * 2, torch.float64)


def _gradients(layers):
    return [p.grad for layer in layers for p in layer.parameters()]


def _alone(micros, count=8):
    layers = _layers(count)
    model = nn.Sequential(*layers)
    loss = 0.0
    for micro in micros:
        out = model(micro).square().sum()
        out.backward()
        loss += float(out.detach())
    return loss, _gradients(layers)


def _run_all(world: World, micro: int):
    link = GroupLink(world) if world.size > 1 else NoLink()
    found = {}
    for schedule in all_schedules(world.size, micro):
        layers = _layers(8)
        stages = {s: _stage(layers, s, schedule.num_stages) for s in schedule.stages_of(world.rank)}
        step = PipelineExecutor(schedule, stages, link).run(_micros(micro))
        grads = [
            torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else p.grad
            for layer in layers
            for p in layer.parameters()
        ]
        total = torch.tensor([step.loss], dtype=torch.float64)
        world.gradients.all_reduce_sum(total)
        for g in grads:
            world.gradients.all_reduce_sum(g)
        found[schedule.name] = (float(total), grads)
    return found


@pytest.mark.parametrize(("ranks", "micro"), [(1, 3), (2, 5), (4, 8)])
def test_gradients_of_every_schedule_are_those_of_one_process(ranks, micro):
    loss, wanted = _alone(_micros(micro))
    answers = (
        [_run_all(World.local(), micro)] if ranks == 1 else run_ranks(_run_all, ranks, (micro,))
    )
    for found in answers:
        assert len(found) == (4 if ranks == 1 else 5)
        for name, (value, grads) in found.items():
            assert value == pytest.approx(loss, rel=1e-12)
            for got, want in zip(grads, wanted, strict=True):
                if name == "chimera":  # sums over the micro-batches of each direction first
                    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
                else:
                    assert torch.equal(got, want), name


def _torch_pipeline(world: World, micro: int):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    micros = _micros(micro, rows=4)
    whole = torch.cat(micros)
    found = {}
    for name, kind, per in (
        ("gpipe", ScheduleGPipe, 1),
        ("1f1b", Schedule1F1B, 1),
        ("interleaved-2", ScheduleInterleaved1F1B, 2),
    ):
        layers = _layers(8)
        total = world.size * per
        each = len(layers) // total
        mine = range(world.rank, total, world.size)
        stages = [
            PipelineStage(
                nn.Sequential(*layers[s * each : (s + 1) * each]), s, total, torch.device("cpu")
            )
            for s in mine
        ]
        loss = lambda out, target: out.square().sum()  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedule = kind(stages[0] if per == 1 else stages, micro, loss_fn=loss,
                            scale_grads=False)  # fmt: skip
            inputs = (whole,) if world.rank == 0 else ()
            kw = {"target": whole} if world.rank == world.size - 1 else {}
            schedule.step(*inputs, **kw)
        theirs = _gradients(layers)

        ours_layers = _layers(8)
        table = generate(name.split("-")[0], world.size, micro)
        link = GroupLink(world)
        ours_stages = {s: _stage(ours_layers, s, total) for s in table.stages_of(world.rank)}
        PipelineExecutor(table, ours_stages, link).run(micros)
        found[name] = (theirs, _gradients(ours_layers))
    return found


def test_torch_pipelining_gives_the_same_gradients():
    for found in run_ranks(_torch_pipeline, 2, (4,), timeout=120):
        assert len(found) == 3
        for theirs, ours in found.values():
            assert any(g is not None for g in ours)
            for a, b in zip(theirs, ours, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def _vanish(world: World):
    schedule = generate("1f1b", 2, 4)
    layers = _layers(2)
    link = GroupLink(world)
    if world.rank == 1:
        time.sleep(6)
        return None
    PipelineExecutor(schedule, {0: _stage(layers, 0, 2)}, link).run(_micros(4))
    return None


def test_a_rank_that_does_not_answer_is_named_within_the_limit():
    outcomes = try_ranks(_vanish, 2, timeout=40, limit=2)
    error = outcomes[0].error
    assert isinstance(error, WorkerError), error
    assert "rank 1" in str(error)
    assert outcomes[0].seconds < 30


def _sleepy(world: World, name: str):
    schedule = generate(name, world.size, 6)
    done = []

    def stage(number):
        def call(module, micro, value):
            time.sleep(0.01)
            base = value if value is not None else micro.clone().requires_grad_()
            return base.sum() if number == schedule.num_stages - 1 else base * 1.0

        return ModuleStage(nn.Module(), call, lambda m: (tuple(m.shape),) * 2, torch.float64)

    bubbles = Bubbles()
    ahead = Ahead([lambda k=k: done.append(k) or k for k in range(4)], bubbles)
    stages = {s: stage(s) for s in schedule.stages_of(world.rank)}
    step = PipelineExecutor(schedule, stages, GroupLink(world), bubbles).run(_micros(6))
    assert ahead.results() == [0, 1, 2, 3]
    return ahead.done_in_bubbles, step.waited


def test_work_is_done_inside_the_bubbles():
    answers = run_ranks(_sleepy, 2, ("gpipe",))
    assert answers[1][0] > 0  # the second rank waits for the first
    assert answers[1][1] > 0.005


def test_a_job_that_fails_ahead_fails_where_it_is_asked_for():
    bubbles = Bubbles()

    def bad():
        raise InputError("no such node")

    ahead = Ahead([lambda: 1, bad], bubbles)
    with bubbles.open():
        time.sleep(0.2)
    with pytest.raises(InputError, match="no such node"):
        ahead.results()


def test_stages_must_be_those_of_the_schedule():
    with pytest.raises(InputError, match=r"computes the stages \[0\].*given \[1\]"):
        PipelineExecutor(generate("gpipe", 1, 2), {1: _stage(_layers(2), 1, 2)}, NoLink())
    executor = PipelineExecutor(generate("gpipe", 1, 2), {0: _stage(_layers(2), 0, 1)}, NoLink())
    with pytest.raises(InputError, match="3 micro-batches for a schedule of 2"):
        executor.run(_micros(3))
    assert not dist.is_initialized()
