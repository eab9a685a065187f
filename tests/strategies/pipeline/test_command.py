"""What ``gnn-dist plan`` prints and writes."""

import json

import pytest
from support.deep_jobs import job, small_graph

from gnn_dist.errors import InputError
from gnn_dist.strategies.pipeline import Schedule, plan_job


def test_a_plan_lists_every_schedule_and_can_be_given_back(tmp_path):
    plan = plan_job(job(), small_graph(), ranks=2)
    names = {c.name for c in plan.candidates}
    assert {"gpipe", "1f1b", "zb-h1", "chimera", "interleaved-2"} <= names
    spans = [c.timeline.makespan for c in plan.candidates]
    assert spans == sorted(spans)
    text = plan.text()
    assert f"chosen: {plan.best.name} on 2 ranks, {plan.micro_batches} micro-batches" in text
    assert all(name in text for name in names)
    plan.write(tmp_path / "plan")
    assert json.loads((tmp_path / "plan" / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "plan" / "gantt.svg").read_text().startswith("<svg")
    again = Schedule.from_json((tmp_path / "plan" / "schedule.json").read_text())
    assert again == plan.best.schedule


def test_a_memory_limit_that_nothing_fits_is_said():
    plan = plan_job(job(), small_graph(), ranks=2, memory_mib=1e-6)
    assert not plan.best.fits
    assert "nothing fits the memory limit" in plan.text()


def test_more_ranks_than_blocks_are_refused():
    with pytest.raises(InputError, match="8 layers cannot be cut for 9 ranks"):
        plan_job(job(), small_graph(), ranks=9)
