"""``--dry-run`` of every strategy: what it counts is what a run then does."""

import pytest
from support import snapshot_jobs

from gnn_dist import config
from gnn_dist.training import checkpoints, jobs
from gnn_dist.training.estimate import estimate

DEEP = {
    "dataset": {
        "name": "generated_circuits",
        "args": {
            "kinds": ["ripple_adder"], "widths": [2, 3, 4, 5], "patterns": 64,
            "split": {"train": [2, 3, 4], "test": [5]}, "targets": ["probability"],
        },
    },
    "partition": {"name": "range", "parts": 3},
    "sampler": {"name": "circuits", "args": {"micro_batches": 2}},
    "model": {"name": "deep", "args": {"width": 16, "layers": 4}},
    "task": {"kind": "regression"},
    "train": {"strategy": "pipeline", "epochs": 2, "baselines": False},
}  # fmt: skip


@pytest.mark.parametrize("sampler", ["circuits", "parts"])
def test_a_pipeline_is_estimated_as_it_then_runs(tmp_path, capsys, sampler):
    values = {**DEEP, "sampler": {**DEEP["sampler"], "name": sampler}, "output": str(tmp_path)}
    job = config.Config.model_validate(values)
    found = estimate(job, jobs.load_graph(job.dataset))
    assert not list(tmp_path.iterdir())
    done = jobs.train(job)
    assert done["epochs"][-1]["step"] == found.steps
    newest = checkpoints.newest(tmp_path / "checkpoints")
    assert newest is not None
    assert sum(t.numel() for t in newest.load()["model"].values()) == found.sizes.parameters
    # a run holds at most the messages and outputs that were foreseen
    measured = done["communication"]["pipeline_peak_bytes_measured"]
    assert 0 < measured <= found.sizes.activation_bytes
    text = jobs.dry_run(job)
    assert f"micro-batches of {sampler} on 1 workers" in text
    assert f"{found.sizes.parameters:,} parameters" in text


def test_a_pipeline_of_several_workers_is_estimated_without_them():
    job = config.Config.model_validate({**DEEP, "cluster": {"workers": 2}})
    sizes = estimate(job, jobs.load_graph(job.dataset)).sizes
    assert "on 2 workers by " in sizes.batch


def test_a_job_on_snapshots_is_estimated_as_it_then_runs(tmp_path):
    job = snapshot_jobs.job(tmp_path)
    found = estimate(job, jobs.load_graph(job.dataset))
    done = jobs.train(job)
    assert done["epochs"][-1]["step"] == found.steps
    assert "2 windows of 3 snapshots on 1 workers by grouped" in found.text(
        job, jobs.load_graph(job.dataset)
    )
