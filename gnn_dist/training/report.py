"""``report.html`` of a run: one self-contained file, made from ``metrics.json`` and predictions."""

import base64
import html
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnn_dist.errors import InputError

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem;margin-bottom:0}h2{font-size:1.15rem;margin-top:2.2rem;
border-bottom:1px solid #ddd;padding-bottom:.2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #eee}
td:first-child,th:first-child{text-align:left}
tr.model{font-weight:600}p.note{color:#666;margin:.3rem 0}img{max-width:100%}
pre{background:#f6f6f6;padding:.8rem;overflow:auto;font-size:13px}
"""

_KEYS = (
    "name", "graph", "task", "target_names", "baselines", "epochs", "time", "communication",
    "partition",
)  # fmt: skip


def write(folder: Path) -> Path:
    """Write ``report.html`` of the run in ``folder``; returns its path."""
    file = folder / "metrics.json"
    try:
        run = json.loads(file.read_text())
    except OSError as error:
        raise InputError(
            f"report: {file} cannot be read ({error.strerror}); give the folder of a finished run"
        ) from error
    except ValueError as error:
        raise InputError(f"report: {file} is not valid JSON ({error}); train again") from error
    lacking = [key for key in _KEYS if not isinstance(run, dict) or key not in run]
    if lacking:
        raise InputError(
            f"report: {file} has no {lacking[0]!r}, as another version of gnn-dist may have "
            "written it; use that one, or train again"
        )
    sections = [
        _result(run),
        _curves(run),
        *_predictions(run, folder / "predictions.npz"),
        _partition(run),
        _time(run),
        _pipeline(run),
        _communication(run),
        _config(folder),
    ]
    title = html.escape(run["name"])
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f"<p class=note>{html.escape(run['graph'])}</p>{''.join(sections)}</html>\n"
    )
    path = folder / "report.html"
    aside = path.with_suffix(".html.tmp")
    aside.write_text(page)
    aside.rename(path)
    return path


def table(rows: Sequence[Mapping[str, Any]], highlight: int | None = None) -> str:
    """An HTML table; the columns are the keys of all rows in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    lines = []
    for k, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(number(row.get(c, '')))}</td>" for c in columns)
        lines.append(f"<tr{' class=model' if k == highlight else ''}>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def number(value: Any) -> str:
    """A value for people: four digits, thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _result(run: Mapping[str, Any]) -> str:
    rows = [{"test": "model", **run["test"]}] if run.get("test") else []
    rows += [{"test": name, **values} for name, values in run["baselines"].items()]
    if not rows:
        return ""
    return "<h2>Result</h2>" + table(rows, highlight=0)


def _curves(run: Mapping[str, Any]) -> str:
    epochs = run["epochs"]
    if not epochs:
        return ""
    x = [record["epoch"] + 1 for record in epochs]
    evaluated = [record for record in epochs if "val" in record]
    names = list(evaluated[0]["val"])[:3] if evaluated else []

    def draw(axes: Any) -> None:
        axes[0].plot(x, [record["loss"] for record in epochs], marker="o", ms=3)
        axes[0].set(xlabel="epoch", title="training loss")
        for axis, name in zip(axes[1:], names, strict=True):
            axis.plot(
                [record["epoch"] + 1 for record in evaluated],
                [record["val"][name] for record in evaluated],
                marker="o",
                ms=3,
                color="tab:green",
            )
            axis.set(xlabel="epoch", title=f"validation {name}")

    return "<h2>Curves</h2>" + figure(draw, 1 + len(names), "loss and validation metrics by epoch")


def _predictions(run: Mapping[str, Any], file: Path) -> list[str]:
    if run["task"] != "regression" or not file.exists():
        return []
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if "test_output" not in arrays:
                return []
            output, target = arrays["test_output"], arrays["test_target"]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"report: {file} cannot be read ({error}); remove it for a report without predictions"
        ) from error
    output = output.reshape(len(output), -1)
    target = target.reshape(len(target), -1)
    if len(output) > 4000:  # enough to see the shape; the metrics use all
        keep = np.linspace(0, len(output) - 1, 4000).astype(int)
        output, target = output[keep], target[keep]
    names = run["target_names"]

    def draw(axes: Any) -> None:
        for column, axis in enumerate(axes):
            axis.scatter(target[:, column], output[:, column], s=3, alpha=0.25, lw=0)
            low, high = target[:, column].min(), target[:, column].max()
            axis.plot([low, high], [low, high], color="0.4", lw=0.8)
            axis.set(xlabel=f"true {names[column]}", ylabel="predicted")

    picture = figure(draw, output.shape[1], "predicted against true values of test nodes")
    return ["<h2>Predicted against true</h2>", picture]


def _partition(run: Mapping[str, Any]) -> str:
    quality = run["partition"]
    rows = [{"": key.replace("_", " "), "value": _flat(value)} for key, value in quality.items()]
    return "<h2>Partition</h2>" + table(rows)


def _flat(value: Any) -> Any:
    return ", ".join(number(v) for v in value) if isinstance(value, list) else value


def _time(run: Mapping[str, Any]) -> str:
    rows = [{"part of the run": name, "seconds": value} for name, value in run["time"].items()]
    text = "<h2>Time</h2>" + table(rows)
    split: dict[str, float] = {}
    for record in run["epochs"]:
        for name, value in record["time"].items():
            split[name] = split.get(name, 0.0) + value
    if not split:
        return text

    def draw(axes: Any) -> None:
        axes[0].barh(list(split), list(split.values()), color="tab:blue")
        axes[0].invert_yaxis()
        axes[0].set(xlabel="seconds a rank, all epochs")

    note = (
        "<p class=note>Sampling and fetching run ahead on threads; the model waited for them "
        "only in &ldquo;wait&rdquo;.</p>"
    )
    return text + figure(draw, 1, "seconds by activity") + note


def _pipeline(run: Mapping[str, Any]) -> str:
    """When each rank did what in the last global batch, and when it was foreseen to."""
    found = run["communication"].get("pipeline_timelines")
    if not found:
        return ""
    from gnn_dist.strategies.pipeline.simulate import Timeline  # imports torch

    lines = {kind: Timeline.from_dict(values) for kind, values in found.items()}
    longest = max(line.makespan for line in lines.values())
    pictures = "".join(line.gantt_svg(seconds=longest) for line in lines.values())
    rows = [
        {
            "last global batch": f"{kind}, {run['communication']['pipeline_schedule']}",
            "seconds": line.makespan,
            "bubble %": 100 * line.bubble,
            "MiB held, most of a rank": max(line.peak_bytes) / 2**20,
        }
        for kind, line in lines.items()
    ]
    return f"<h2>Pipeline</h2>{table(rows)}<p>{pictures}</p>"


def _communication(run: Mapping[str, Any]) -> str:
    counts = run["communication"]
    features = counts["features"]
    rows = [
        {"feature rows": origin, "rows": rows_, "bytes": features["bytes"][origin]}
        for origin, rows_ in features["rows"].items()
    ]
    other = [
        {"moved": name.replace("_", " "), "": value}
        for name, value in {**features, **counts}.items()
        if isinstance(value, int | float)
    ]
    text = "<h2>Rows and bytes moved</h2>" + (table(rows) + "<br>" if rows else "") + table(other)
    if "foreseen" in counts:
        text += "<h2>Planned and measured</h2>" + table(counts["foreseen"])
        text += "<h2>Policies</h2>" + table(counts["plans"])
    if "compared" in counts:
        text += "<h2>Strategies compared</h2>" + table(counts["compared"])
    if "choice" in run:
        text += f"<p class=note>{html.escape(run['choice'].splitlines()[-1])}</p>"
    if "layers" in counts:
        layers = [{name: _flat(value) for name, value in row.items()} for row in counts["layers"]]
        text += "<h2>Layers</h2>" + table(layers)
        text += (
            "<p class=note>A global batch: counted on the first ones before training, and on all "
            "since the start or the last restart. Imbalance: the most of a rank over the mean of "
            "ranks.</p>"
        )
    foreseen = counts.get("cache")
    if not foreseen:
        return text
    ranks = [
        {"rank": rank, **{name.replace("_", " "): value for name, value in found.items()}}
        for rank, found in enumerate(foreseen)
    ]
    note = "<p class=note>Rows of other hosts a batch: predicted before training, and counted.</p>"
    return text + "<h2>Feature cache</h2>" + table(ranks) + note


def _config(folder: Path) -> str:
    file = folder / "config.yaml"
    text = html.escape(file.read_text("utf-8", "replace")) if file.is_file() else ""
    return f"<h2>Configuration</h2><pre>{text}</pre>" if text else ""


def figure(draw: Callable[[Any], None], panels: int, description: str) -> str:
    """An inline SVG of ``panels`` axes side by side, drawn by ``draw(axes)``."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    columns = min(panels, 3)
    lines = -(-panels // columns)
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "svg.hashsalt": "run",
                                "axes.spines.right": False, "svg.fonttype": "none"}):  # fmt: skip
        picture, axes = pyplot.subplots(
            lines, columns, figsize=(3.4 * columns, 2.7 * lines), squeeze=False, layout="tight"
        )
        flat = list(axes.flat)
        for axis in flat[panels:]:
            axis.remove()
        draw(flat[:panels])
        buffer = io.BytesIO()
        picture.savefig(buffer, format="svg", metadata={"Date": None})
        pyplot.close(picture)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/svg+xml;base64,{encoded}">'
