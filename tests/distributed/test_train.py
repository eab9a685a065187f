"""The main job, end to end, as a person starts it."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import gnn_dist

PRODUCTS = {
    "config.yaml", "metrics.json", "predictions.npz", "report.html", "checkpoints", "tensorboard",
    "partition",
}  # fmt: skip


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_a_run_leaves_what_it_promises(runs):
    left = {path.name for path in (runs / "ray").iterdir()}
    assert left == PRODUCTS | {"said.json"}
    assert list((runs / "ray" / "tensorboard").glob("events*"))
    found = metrics(runs / "ray")
    assert set(found["baselines"]) == {"majority", "mlp"}
    assert found["workers"] == 2
    assert found["partition"]["parts"] == 2
    assert [record["epoch"] for record in found["epochs"]] == [0, 1, 2]
    page = (runs / "ray" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http-equiv" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_two_workers_train_on_the_same_batches_as_one_process(runs):
    ray, alone = metrics(runs / "ray"), metrics(runs / "alone")
    for one, other in zip(ray["epochs"], alone["epochs"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["val"]["accuracy"] == pytest.approx(other["val"]["accuracy"], abs=0.01)
    with (
        np.load(runs / "ray" / "predictions.npz") as a,
        np.load(runs / "alone" / "predictions.npz") as b,
    ):
        assert np.array_equal(a["test_ids"], b["test_ids"])
        assert np.array_equal(a["test_target"], b["test_target"])
        assert np.allclose(a["test_output"], b["test_output"], rtol=1e-2, atol=1e-2)


def test_the_model_beats_its_baselines(runs):
    found = metrics(runs / "ray")
    assert found["test"]["accuracy"] > found["baselines"]["mlp"]["accuracy"]
    assert found["test"]["accuracy"] > found["baselines"]["majority"]["accuracy"] + 0.2


def test_without_a_terminal_only_the_result_is_printed(runs):
    out, err = json.loads((runs / "ray" / "said.json").read_text())
    assert out.split()[:3] == ["test", "accuracy", "f1_macro"]
    assert len(out.splitlines()) == 4
    assert err == ""


def test_a_run_can_be_evaluated_and_reported_again(runs):
    done = gnn_dist("evaluate", "alone", "--split", "test", folder=runs)
    assert done.returncode == 0, done.stderr
    value = float(done.stdout.splitlines()[1].split()[1])
    assert value == pytest.approx(metrics(runs / "alone")["test"]["accuracy"], abs=1e-3)
    (runs / "alone" / "report.html").unlink()
    assert gnn_dist("report", "alone", folder=runs).returncode == 0
    assert (runs / "alone" / "report.html").exists()


def test_a_finished_run_resumes_to_the_same_result(runs):
    before = metrics(runs / "alone")
    done = gnn_dist("train", "--resume", "alone", "--train.epochs", "3", folder=runs)
    assert done.returncode == 0, done.stderr
    after = metrics(runs / "alone")
    assert after["test"] == before["test"]
    for key in ("epochs", "time", "communication"):  # nothing was trained: the record is kept
        assert after[key] == before[key]
    assert after["communication"]["features"]["rows"]["owned"] > 0
