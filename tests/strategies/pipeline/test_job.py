"""The jobs that ship, end to end at a small size."""

import json
from pathlib import Path

import pytest
import torch

from gnn_dist import config, strategies
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.training import jobs

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = {
    "cluster.workers": 0,
    "model.args": {"width": 16, "layers": 4, "direction": "both"},
    "train.epochs": 2,
    "train.baselines": False,
}


def test_routed_designs_train_and_report(tmp_path, shared_data):
    args = {
        "path": str(shared_data / "def"),
        "split": {"train": ["uart", "ss_pcm"], "test": ["usb_phy"]},
    }
    job = config.load(
        CONFIGS / "routed_deep.yaml",
        {**SMALL, "dataset.args": args, "output": str(tmp_path / "run")},
    )
    jobs.train(job)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(found["test"]) >= {"pearson", "spearman", "kendall", "mae"}
    assert found["epochs"][1]["loss"] < found["epochs"][0]["loss"]
    assert found["communication"]["pipeline_seconds_measured"] > 0
    lines = found["communication"]["pipeline_timelines"]
    ran = {kind: sorted(s[0] for s in line["spans"]) for kind, line in lines.items()}
    assert ran["measured"] == ran["simulated"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "<title>F0.0: " in page
    assert "measured, 1f1b" in page


@pytest.mark.parametrize("name", ["circuits_deep", "routed_deep"])
def test_the_jobs_that_ship_can_be_read(name):
    job = config.load(CONFIGS / f"{name}.yaml")
    assert job.name == name
    assert job.model.args["layers"] >= 28


def test_a_plan_is_measured_as_a_rank_computes(tmp_path, monkeypatch):
    """With its threads, and from different numbers on the grid."""
    threads, states = [], []
    plan, blocks = strategies.plan, DeepGNN.blocks

    def planned(*args):
        threads.append(torch.get_num_threads())
        return plan(*args)

    def computed(self, state, *args):
        states.append(state.detach().clone())
        return blocks(self, state, *args)

    monkeypatch.setattr(strategies, "plan", planned)
    monkeypatch.setattr(DeepGNN, "blocks", computed)
    job = config.load(
        CONFIGS / "circuits_deep.yaml",
        {**SMALL, "cluster.workers": 2, "output": str(tmp_path / "run")},
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        text = jobs.plan(job)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads == [1]
    assert "makespan" in text
    for state in states:
        assert state.unique().numel() > state.numel() / 4
        assert torch.equal(state, (state * 2**16).round() / 2**16)
