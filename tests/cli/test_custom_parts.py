"""Parts of one's own: by dotted path, by entry point of an installed package, as docs/ says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import Done, gnn_dist

ROOT = Path(__file__).parents[2]

PARTS = '''
import numpy as np
import torch
from torch import nn
from gnn_dist.batch import Block, MiniBatch
from gnn_dist.datasets.synthetic import sbm
from gnn_dist.features import Degree
from gnn_dist.sampling import NeighborSampler


def graph(nodes):
    return sbm(num_nodes=nodes, num_classes=3, signal=0.6)


def odd_even(graph, num_parts, *, seed, shift=0):
    return ((np.arange(graph.num_nodes) + shift) % num_parts).astype(np.int32)


class Half(NeighborSampler):
    """Draws half of the fan-outs."""

    def __init__(self, fanouts, replace=False, weights=None, edge=()):
        super().__init__([max(1, f // 2) for f in fanouts], replace, weights, edge=edge)


class Net(nn.Module):
    def __init__(self, in_features, out_features, width):
        super().__init__()
        self.one = nn.Linear(in_features, width)
        self.two = nn.Linear(width, out_features)

    def forward(self, x, blocks):
        h = x.materialise() if hasattr(x, "materialise") else x
        for layer, block in zip((self.one, self.two), blocks):
            assert int(block.degrees().max()) <= 2 or not self.training
            total = torch.zeros(block.num_dst, h.shape[1])
            h = layer(total.index_add(0, block.destinations(), h[block.indices.long()]))
        return h


def share_right(output, target):
    return (output.argmax(1) == target).float().mean()


class MyDegree(Degree):
    """A cache policy."""
'''


def run(*arguments: str, folder: Path, modules: Path) -> Done:
    done = gnn_dist(*arguments, folder=folder, modules=modules)
    assert done.returncode == 0, done.stderr
    return done


def job(prefix: str, separator: str) -> list[str]:
    """A job that names every part of the module."""

    def named(short: str, dotted: str) -> str:
        return short if separator == "entry" else f"{prefix}.{dotted}"

    return [
        *("--dataset.name", named("little", "graph"), "--dataset.args.nodes", "400"),
        *("--partition.name", named("odd_even", "odd_even"), "--partition.args.shift", "1"),
        *("--partition.parts", "2"),
        *("--sampler.name", named("half", "Half"), "--sampler.fanouts", "4,4"),
        *("--model.name", named("net", "Net"), "--model.args.width", "8"),
        *("--task.metrics", named("share_right", "share_right")),
        *("--cache.name", named("my_degree", "MyDegree"), "--cache.fraction", "0.5"),
        *("--train.epochs", "2", "--train.batch_size", "64", "--train.baselines", "false"),
        *("--output", "out"),
    ]


def check(folder: Path) -> None:
    found = json.loads((folder / "out" / "metrics.json").read_text())
    assert list(found["test"]) == ["share_right"]
    assert found["partition"]["nodes"] == [200, 200]
    assert found["epochs"][1]["loss"] < found["epochs"][0]["loss"]


def test_every_part_may_be_a_dotted_path(tmp_path):
    (tmp_path / "own_parts.py").write_text(PARTS)
    run("train", *job("own_parts", "dotted"), folder=tmp_path, modules=tmp_path)
    check(tmp_path)


def test_an_installed_package_offers_parts_by_entry_point(tmp_path):
    source = tmp_path / "source"
    (source / "outside_parts").mkdir(parents=True)
    (source / "outside_parts" / "__init__.py").write_text(PARTS)
    points = {
        "datasets": "little = 'outside_parts:graph'",
        "partitioners": "odd_even = 'outside_parts:odd_even'",
        "samplers": "half = 'outside_parts:Half'",
        "models": "net = 'outside_parts:Net'",
        "metrics": "share_right = 'outside_parts:share_right'",
        "caches": "my_degree = 'outside_parts:MyDegree'",
    }
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'outside-parts'\nversion = '1.0'\n"
        "[tool.setuptools]\npackages = ['outside_parts']\n"
        + "".join(f"[project.entry-points.'gnn_dist.{g}']\n{p}\n" for g, p in points.items())
    )
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", "--target", str(site), str(source)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    run("train", *job("", "entry"), folder=tmp_path, modules=site)
    check(tmp_path)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_partitioner_of_the_docs_works_as_written(tmp_path):
    code = next(b for b in blocks("custom_parts.md") if "bfs_stripes" in b)
    assert len(code.strip().splitlines()) <= 22
    (tmp_path / "stripes.py").write_text(code)
    done = run(
        *("partition", "--dataset.name", "sbm", "--dataset.args.num_nodes", "300"),
        *("--partition.name", "stripes.bfs_stripes", "--partition.args.root", "7"),
        *("--partition.path", "parts", "--partition.parts", "3"),
        folder=tmp_path,
        modules=tmp_path,
    )
    assert "edge cut" in done.stdout
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    assert manifest["partitioner"]["args"] == {"root": 7}
    assert [part["num_nodes"] for part in manifest["parts"]] == [100, 100, 100]


def test_the_model_of_the_docs_works_as_written(tmp_path):
    (tmp_path / "net.py").write_text(next(b for b in blocks("custom_parts.md") if "MeanNet" in b))
    run(
        *("train", "--dataset.name", "sbm", "--dataset.args.num_nodes", "300"),
        *("--model.name", "net.MeanNet", "--sampler.fanouts", "3,3", "--output", "out"),
        *("--train.epochs", "1", "--train.batch_size", "64", "--train.baselines", "false"),
        folder=tmp_path,
        modules=tmp_path,
    )
    assert np.isfinite(
        json.loads((tmp_path / "out" / "metrics.json").read_text())["test"]["accuracy"]
    )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_completion_script_knows_the_keys(shell, tmp_path):
    done = run("--print-completion", shell, folder=tmp_path, modules=tmp_path)
    assert "--train.batch_size" in done.stdout
