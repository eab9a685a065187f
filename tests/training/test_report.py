"""What a run leaves for people: the page, TensorBoard, metrics.json as docs/interfaces.md says."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnn_dist import cli
from gnn_dist.strategies.base import StepReport
from gnn_dist.training import checkpoints
from gnn_dist.training.progress import ProgressLine

PAGE = Path(__file__).parents[2] / "docs" / "interfaces.md"
JOB = [
    "train",
    *("--dataset.name", "circuits"),
    *("--dataset.args", "{circuits: ['ripple_adder:9', 'array_multiplier:5', 'barrel_shifter:8'],"
      " patterns: 640, split: {train: 0.6, val: 0.2, test: 0.2}}"),
    *("--task.kind", "regression", "--task.metrics", "mae,pearson"),
    *("--partition.name", "hash", "--partition.parts", "2"),
    *("--sampler.fanouts", "4,4", "--model.args.hidden", "8"),
    *("--train.epochs", "3", "--train.batch_size", "32"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs")
    assert cli.main([*JOB, "--output", str(run / "plain")]) == 0
    return run / "plain"


def metrics(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text())


def test_the_page_shows_curves_predictions_partition_time_and_rows(folder):
    page = (folder / "report.html").read_text()
    found = metrics(folder)
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "Result", "Curves", "Predicted against true", "Partition", "Time", "Rows and bytes moved",
        "Configuration",
    ]  # fmt: skip
    pictures = [
        base64.b64decode(data).decode()
        for data in re.findall(r'src="data:image/svg\+xml;base64,(.*?)"', page)
    ]
    assert len(pictures) == 3
    curves, against, time = pictures
    for text in ("training loss", "validation mae", "validation pearson", "epoch"):
        assert text in curves
    assert "true probability" in against
    assert "predicted" in against
    with np.load(folder / "predictions.npz") as arrays:
        assert against.count("<use") >= arrays["test_target"].size
    for text in ("sample", "fetch", "wait", "compute"):
        assert text in time
    assert f"<td>cut edges</td><td>{found['partition']['cut_edges']:,}</td>" in page
    rows = found["communication"]["features"]["rows"]
    assert rows["owned"] > 0
    assert f"<td>owned</td><td>{rows['owned']:,}</td>" in page
    assert f"<td>{found['test']['mae']:.4g}</td>" in page
    assert not re.search(r"""(src|href)=["']?(http|//)|@import|<script""", page)


def test_tensorboard_has_the_scalars_of_steps_and_epochs(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    epochs = metrics(folder)["epochs"]
    assert len(events.Scalars("step/loss")) == epochs[-1]["step"]
    for tag in ("step_seconds/compute", "step_seconds/wait", "epoch/samples_per_second"):
        assert events.Scalars(tag)
    for tag, values in {
        "epoch/loss": [e["loss"] for e in epochs],
        "val/mae": [e["val"]["mae"] for e in epochs],
    }.items():
        assert [s.value for s in events.Scalars(tag)] == pytest.approx(values, rel=1e-5)
        assert [s.step for s in events.Scalars(tag)] == [e["step"] for e in epochs]


def fields(values: object, depth: int = 0) -> Iterator[str]:
    """Names of fields; what lies below these is named by the user: metrics, baselines."""
    for name, value in values.items() if isinstance(values, dict) else ():
        yield name
        if name == "epochs":
            yield from fields(value[-1])
        elif name not in ("test", "val", "baselines"):
            yield from fields(value)


def test_every_field_of_metrics_json_is_documented(folder):
    section = PAGE.read_text().split("## metrics.json")[1].split("\n## ")[0]
    quoted = re.findall(r"`([\w.\[\]]+)`", section)
    named = {name.removesuffix("[]") for dotted in quoted for name in dotted.split(".")}
    found = metrics(folder)
    assert not set(fields(found)) - named
    assert set(found["baselines"]) <= named
    assert found["target_names"] == ["probability"]
    with np.load(folder / "predictions.npz") as arrays:
        assert set(arrays) == {
            f"{s}_{part}" for s in ("test", "val") for part in ("ids", "output", "target")
        }
        error = np.abs(arrays["test_output"].ravel() - arrays["test_target"].ravel()).mean()
    assert error == pytest.approx(found["test"]["mae"], rel=1e-5)


@pytest.mark.parametrize(
    "flags",
    [["--train.precision", "bfloat16"], ["--partition.half", "x"]],
    ids=lambda flags: flags[-1],
)
def test_16_bits_train_almost_as_well(folder, flags):
    run = folder.parent / flags[-1]
    assert cli.main([*JOB, *flags, "--output", str(run)]) == 0
    found, plain = metrics(run)["epochs"], metrics(folder)["epochs"]
    losses = [e["loss"] for e in found]
    assert losses == pytest.approx([e["loss"] for e in plain], rel=0.05)
    if "bfloat16" in flags:
        assert losses != [e["loss"] for e in plain]
        newest = checkpoints.newest(run / "checkpoints")
        assert {str(t.dtype) for t in newest.load()["model"].values()} == {"torch.float32"}
    else:
        parts = list((run / "partition").glob("part-*/node.x.npy"))
        assert [np.load(p).dtype for p in parts] == [np.float16, np.float16]


def test_a_staged_partition_trains_to_the_same_bits(folder):
    run, local = folder.parent / "staged", folder.parent / "local"
    assert cli.main([*JOB, "--cluster.stage_dir", str(local), "--output", str(run)]) == 0
    assert list(local.rglob("part-*/node.x.npy"))
    one, other = (checkpoints.newest(r / "checkpoints").load()["model"] for r in (run, folder))
    assert all((one[name] == other[name]).all() for name in other)


def test_the_progress_line_tells_loss_rate_and_split_of_time():
    shown: list[str] = []
    kept: list[str] = []
    line = ProgressLine(shown.append, kept.append, 3, interval=0)
    report = StepReport(
        loss=0.25,
        seeds=64,
        seconds={"sample": 9.0, "wait": 1.0, "wait_features": 0.5, "compute": 3.0, "optimise": 0.0},
    )
    line.step(0, 4, 10, 5, report)
    assert re.match(
        r"epoch 1/3  batch 5/10  loss 0\.2500  [\d,]+ seeds/s  .*wait 25%.*compute 75%", shown[0]
    )
    assert "sample" not in shown[0], "it runs beside the model"
    line.epoch(
        {"epoch": 0, "loss": 0.5, "samples_per_second": 1234.5, "seconds": 2.0,
         "time": report.seconds, "val": {"mae": 0.125}}
    )  # fmt: skip
    assert re.match(r"epoch 1/3  loss 0\.5000  1,23\d seeds/s  2\.0 s  .*val mae 0\.1250", kept[0])
