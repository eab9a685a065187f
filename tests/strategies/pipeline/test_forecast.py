"""What ``gnn-dist plan`` prints and writes for a pipeline."""

import json
import re
import time

import pytest
from support.deep_jobs import job, small_graph
from support.ranks import run_ranks

from gnn_dist import cli, strategies
from gnn_dist.cluster import World
from gnn_dist.config import Config, Pipeline
from gnn_dist.errors import InputError
from gnn_dist.strategies.pipeline import PipelineStrategy, Schedule, check, generate
from gnn_dist.strategies.pipeline.link import measure_link
from gnn_dist.strategies.pipeline.profile import BANDWIDTH, LATENCY


def _job(workers: int = 2, **pipeline) -> Config:
    base = job()
    cluster = base.cluster.model_copy(update={"workers": workers})
    return base.model_copy(update={"cluster": cluster, "pipeline": Pipeline(**pipeline)})


def test_a_plan_lists_every_schedule_and_can_be_given_back(tmp_path):
    plan = PipelineStrategy.plan(_job(), small_graph())
    names = {c.name for c in plan.candidates}
    assert {"gpipe", "1f1b", "zb-h1", "chimera", "interleaved-2", "interleaved-4"} == names
    spans = [c.timeline.makespan for c in plan.candidates]
    assert spans == sorted(spans)
    assert plan.chosen is plan.best
    text = plan.text()
    assert f"chosen: {plan.best.name} on 2 ranks, {plan.micro_batches} micro-batches" in text
    assert all(name in text for name in names)
    files = plan.write(tmp_path / "plan")
    assert sorted(f.name for f in files) == ["gantt.svg", "schedule.json", "trace.json"]
    events = json.loads((tmp_path / "plan" / "trace.json").read_text())["traceEvents"]
    actions = sum(map(len, plan.best.schedule.table))
    assert sum(e["ph"] == "X" for e in events) == actions
    assert (tmp_path / "plan" / "gantt.svg").read_text().startswith("<svg")
    file = tmp_path / "plan" / "schedule.json"
    again = PipelineStrategy.plan(_job(table=str(file)), small_graph())
    assert again.fixed
    assert again.chosen.schedule == plan.best.schedule == Schedule.from_json(file.read_text())


def test_a_configured_schedule_is_planned_and_compared():
    plan = strategies.plan(_job(schedule="interleaved", chunks=3), small_graph())
    assert plan.chosen.name == "interleaved-3"
    assert "interleaved-3 on 2 ranks" in plan.text()
    assert ", as configured" in plan.text()


def test_a_memory_limit_that_nothing_fits_is_said():
    plan = PipelineStrategy.plan(_job(memory_mib=1e-6), small_graph())
    assert not plan.best.fits
    assert plan.best.peak_mib == min(c.peak_mib for c in plan.candidates)
    assert "nothing fits the memory limit of 1e-06 MiB" in plan.text()


def test_the_memory_limit_decides_between_schedules():
    free = PipelineStrategy.plan(_job(), small_graph())
    least = min(c.peak_mib for c in free.candidates)
    most = max(c.peak_mib for c in free.candidates)
    assert least < most
    plan = PipelineStrategy.plan(_job(memory_mib=(least + most) / 2), small_graph())
    assert plan.best.fits
    assert plan.best.peak_mib <= (least + most) / 2
    assert not all(c.fits for c in plan.candidates)


def test_more_ranks_than_blocks_are_refused():
    with pytest.raises(InputError, match="9 workers for 8 blocks"):
        PipelineStrategy.check(_job(workers=9), small_graph())


def test_more_stages_than_blocks_are_refused(tmp_path):
    job = _job(workers=4, schedule="interleaved", chunks=4)
    says = r"config pipeline\.chunks: 4 stages on each of 4 workers for 8 blocks; use at most 2"
    with pytest.raises(InputError, match=says):
        PipelineStrategy.check(job, small_graph())
    with pytest.raises(InputError, match="8 layers cannot be cut into 16 stages"):
        PipelineStrategy.plan(job, small_graph())
    PipelineStrategy.check(_job(workers=4, schedule="interleaved", chunks=2), small_graph())
    PipelineStrategy.check(_job(workers=4, schedule="1f1b", chunks=4), small_graph())
    file = tmp_path / "table.json"
    file.write_text(generate("interleaved", 2, 4, 5).to_json())
    with pytest.raises(InputError, match=r"config pipeline\.table: 10 stages for 8 blocks"):
        PipelineStrategy.check(_job(table=str(file)), small_graph())


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_job_chooses_from_what_its_plan_lists(chunks):
    job = _job(chunks=chunks)
    planned = PipelineStrategy.plan(job, small_graph())
    (considered, chosen, costs), other = run_ranks(_considered, 2, (job,), timeout=60)
    assert considered == {c.name for c in planned.candidates}
    assert f"interleaved-{chunks}" in considered
    assert other == (considered, chosen, costs)
    assert costs.latency != LATENCY  # which is assumed where nothing is measured
    assert costs.bandwidth != BANDWIDTH
    assert "links: 0.1 ms and 2 GB/s are assumed" in planned.text()


def _considered(world: World, job: Config):
    """Names of the candidates of a job, and of what it runs; costs of layers and links."""
    strategy = PipelineStrategy.build(job, world, small_graph())
    _, share = next(iter(strategy.shares(0, 0, 1)))
    strategy.backward(share)
    return {c.name for c in strategy.candidates}, strategy._foreseen.name, strategy._costs


class SlowLink:
    """Messages that take 10 ms, and a second for 20 MB."""

    rank = 0

    def send(self, tensor, to, tag, what): ...

    def receive(self, shape, dtype, source, tag, what):
        self.seconds = 0.01 + shape[0] / 20e6
        return self

    def wait(self):
        time.sleep(self.seconds)

    def flush(self): ...


def test_what_a_link_takes_is_measured():
    latency, bandwidth = measure_link(SlowLink(), World.local().control)
    assert latency == pytest.approx(0.01, rel=0.5)
    assert bandwidth == pytest.approx(20e6, rel=0.5)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("auto", 2), ("gpipe", 2), ("interleaved", 2), ("interleaved", 1)]
)
def test_what_one_rank_will_run_is_foreseen(schedule, chunks):
    job = _job(workers=1, schedule=schedule, chunks=chunks)
    planned = PipelineStrategy.plan(job, small_graph())
    considered, ran, _ = _considered(World.local(), job)
    assert considered == {planned.chosen.name} == {ran}


def test_a_table_for_other_batches_is_refused(tmp_path):
    schedule = generate("1f1b", 2, 7)
    check(schedule)
    (tmp_path / "table.json").write_text(schedule.to_json())
    with pytest.raises(InputError, match="7 micro-batches; this job has 2 ranks"):
        PipelineStrategy.plan(_job(table=str(tmp_path / "table.json")), small_graph())


class Planless:
    """All that a strategy must have."""

    def check(self): ...
    def build(self): ...


def test_a_strategy_without_a_plan_says_so():
    train = job().train.model_copy(update={"strategy": f"{__name__}.Planless"})
    with pytest.raises(InputError, match=r"Planless' offers no plan"):
        strategies.plan(job().model_copy(update={"train": train}), small_graph())


def test_the_command_plans_the_partition_that_a_run_would_use(tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text(
        """
dataset: {name: generated_circuits, args: {widths: [2, 3], patterns: 64, kinds: [ripple_adder],
  split: {train: [2], test: [3]}, targets: [probability]}}
sampler: {name: parts}
model: {name: deep, args: {width: 16, layers: 4}}
task: {kind: regression}
train: {strategy: pipeline}
cluster: {workers: 2}
"""
    )
    flags = ["--output", str(tmp_path / "run"), "--partition.name", "range"]
    assert cli.main(["plan", str(file), *flags, "--pipeline.schedule", "gpipe"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"chosen: gpipe on 2 ranks, \d micro-batches, as configured", out)
    assert (tmp_path / "run" / "partition" / "manifest.json").exists()
    assert str(tmp_path / "run" / "plan" / "trace.json") in out
    assert cli.main(["plan", str(file), *flags, "--pipeline.schedule", "best"]) == 2
    assert "config pipeline.schedule: 'best' is not valid" in capsys.readouterr().err
