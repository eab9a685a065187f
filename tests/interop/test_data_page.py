"""The Python of docs/data.md runs as it is written, from top to bottom."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from gnn_dist import cli

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in ("torch_geometric", "networkx"):
        pytest.importorskip(module)
    names: dict[str, object] = {}
    for text in blocks():
        if "dgl" in text and "import" in text and importlib.util.find_spec("dgl") is None:
            continue
        exec(compile(text, str(PAGE), "exec"), names)
    return names


def test_the_python_runs_and_its_results_train(page, tmp_path, monkeypatch):
    assert page["graph"].num_nodes == 40
    assert page["ring"](8).num_edges == 8
    (tmp_path / "my_data.py").write_text(next(t for t in blocks() if "my_data.py" in t))
    monkeypatch.syspath_prepend(tmp_path)
    common = ["--sampler.fanouts", "4", "--train.epochs", "1", "--model.args.hidden", "4"]
    common += ["--train.baselines", "false", "--cluster.workers", "0"]
    for name, flags in {
        "files": ["--dataset.name", "files", "--dataset.args.path", "my_graph.npz"],
        "own": ["--dataset.name", "my_data.ring", "--dataset.args.nodes", "200"],
        "read": ["--partition.path", "partition"],
    }.items():
        assert cli.main(["train", *flags, *common, "--output", f"run_{name}"]) == 0
        assert (tmp_path / f"run_{name}" / "metrics.json").exists()


def test_every_data_set_of_the_table_exists():
    from gnn_dist.datasets import BUILTIN

    table = PAGE.read_text().split("## Arrays in files")[0]
    named = [n for row in re.findall(r"^\| (`.*?) \|", table, re.M) for n in row.split(", ")]
    assert {n.strip("`") for n in named} == set(BUILTIN)
