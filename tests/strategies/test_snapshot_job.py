"""Dynamic graphs as jobs: trained, resumed and evaluated by the trainer."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.snapshot_jobs import ARGS, job

from gnn_dist import strategies
from gnn_dist.datasets import temporal
from gnn_dist.dynamic.stored import to_graph
from gnn_dist.errors import InputError
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.snapshot_job import SnapshotJob
from gnn_dist.strategies.snapshot_tasks import map as mean_average_precision
from gnn_dist.strategies.snapshot_tasks import mrr, ranking_metrics
from gnn_dist.training import jobs


def test_a_job_trains_evaluates_and_reports(tmp_path: Path) -> None:
    values = jobs.train(job(tmp_path / "run"))
    losses = [e["loss"] for e in values["epochs"]]
    assert losses[-1] < losses[0]
    assert {"test", "val"} <= set(values)
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["communication"]["policy"] == "grouped"
    arrays = np.load(tmp_path / "run" / "predictions.npz")
    rmse = np.sqrt(((arrays["test_output"] - arrays["test_target"]) ** 2).mean())
    assert values["test"]["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_resumed_job_has_the_weights_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = jobs.train(job(tmp_path / "whole"))
    jobs.train(job(tmp_path / "cut", train__max_steps=4))
    cut = jobs.train(job(tmp_path / "cut"), resume=True)
    assert [e["loss"] for e in cut["epochs"]][-1] == [e["loss"] for e in whole["epochs"]][-1]
    assert cut["test"] == whole["test"]


def test_the_plan_of_a_job_is_a_table_with_every_policy(tmp_path: Path) -> None:
    graph = PartitionedGraph.from_graph(to_graph(temporal.synthetic(**ARGS)))
    settings = job(sampler__args={"policy": "auto"}, cluster__workers=2)
    found = strategies.plan(settings, graph)
    for word in ("sequential", "grouped", "windows", "snapshots", "vertices", "policy"):
        assert word in found.text()
    (file,) = found.write(tmp_path / "plan")
    written = json.loads(file.read_text())
    assert written["policy"] in {p["policy"] for p in written["plans"]}


def test_auto_prints_what_it_chose_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    jobs.train(job(tmp_path / "run", sampler__args={"policy": "auto"}, train__epochs=1))
    told = capsys.readouterr().err
    assert "rows sent (epoch)" in told
    assert "policy grouped" in told
    assert "Planned and measured" in (tmp_path / "run" / "report.html").read_text()


def test_link_metrics_of_a_job_are_those_of_the_task() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((6, 5))
    source = np.array([0, 0, 1, 2, 2, 2])
    labels = np.zeros((6, 5), int)
    labels[:, 0] = 1
    expected = ranking_metrics(
        scores.reshape(-1), labels.reshape(-1), np.repeat(np.arange(6), 5), np.repeat(source, 5)
    )
    output, target = torch.from_numpy(scores), torch.from_numpy(source)
    assert mrr(output, target) == pytest.approx(expected["mrr"])
    assert mean_average_precision(output, target) == pytest.approx(expected["map"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler__args": {"window": 0}}, "sampler.args.window"),
        ({"sampler__args": {"windows": 3}}, "sampler.args.windows"),
        ({"sampler__args": {"window": 99}}, "does not fit"),
        ({"sampler__args": {"policy": "snapshots"}, "model__name": "gconv_gru"}, "cannot run"),
        ({"sampler__args": {"predict": "edge_classification"}}, "needs edge labels"),
        ({"sampler__args": {"history": "truncated", "policy": "windows"}}, "history"),
        ({"model__name": "sage"}, "none named 'sage'"),
        ({"model__args": {"width": 3}}, "takes no argument 'width'"),
        ({"train__precision": "bfloat16"}, "precision"),
        ({"task__kind": "multilabel"}, "task.kind"),
    ],
)
def test_bad_jobs_are_named(change: dict, message: str) -> None:
    graph = PartitionedGraph.from_graph(to_graph(temporal.synthetic(**ARGS)))
    with pytest.raises(InputError, match=message):
        SnapshotJob.check(job(**change), graph)
