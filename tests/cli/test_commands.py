"""Commands that start nothing, and the training call as a script."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from gnn_dist import cli, config
from gnn_dist.errors import WorkerError

ROOT = Path(__file__).parents[2]
JOB = """
name: tiny
dataset: {name: sbm, args: {num_nodes: 400, num_classes: 3}}
partition: {parts: 2}
sampler: {fanouts: [3, -1]}
model: {args: {hidden: 4}}
train: {epochs: 2, batch_size: 30, baselines: false}
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(JOB)
    return path


def test_a_dry_run_foretells_the_steps_and_writes_nothing(file, tmp_path, capsys):
    before = "ray" in sys.modules
    assert cli.main(["train", str(file), "--dry-run", "--cluster.workers", "2"]) == 0
    said = capsys.readouterr().out
    for word in ("graph ", "partition ", "steps ", "rows ", "parameters", "memory ", "30 seeds"):
        assert word in said, said
    assert ("ray" in sys.modules) == before, "nothing is started"
    assert list(tmp_path.iterdir()) == [file]
    assert cli.main(["train", str(file)]) == 0
    epochs = json.loads((tmp_path / "runs" / "tiny" / "metrics.json").read_text())["epochs"]
    assert f"{epochs[0]['step']:,} an epoch, {epochs[-1]['step']:,} in all" in said


def test_a_dry_run_finds_mistakes(file, tmp_path, capsys):
    assert cli.main(["train", str(file), "--dry-run", "--model.name", "sagee"]) == 2
    assert "sagee" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_the_printed_configuration_is_the_resolved_one(file, tmp_path, capsys):
    flags = ["--train.lr", "0.5", "--sampler.fanouts=-1,-1", "--model.args.dropout", "0.1"]
    assert cli.main(["train", str(file), *flags, "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(printed)
    job = config.load(tmp_path / "again.yaml")
    assert (job.train.lr, job.sampler.fanouts) == (0.5, [-1, -1])
    assert job.model.args == {"hidden": 4, "dropout": 0.1}
    assert set(yaml.safe_load(printed)) == set(config.Config.model_fields)


def test_every_key_is_a_flag_with_a_help_text(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for key, info in config.flags():
        assert f"--{key} " in said
        assert info.description or key.endswith("args"), key


def test_the_script_trains_as_the_command_does(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", str(file)])
    runpy.run_path(str(ROOT / "scripts" / "train.py"), run_name="__main__")
    found = json.loads((tmp_path / "runs" / "tiny-script" / "metrics.json").read_text())
    assert len(found["epochs"]) == 8
    assert f"'accuracy': {found['test']['accuracy']:.4g}"[:14] in capsys.readouterr().out


def test_a_rank_that_is_lost_is_told_in_one_line(file, monkeypatch, capsys):
    """That Ray workers lead to this error: see test_launch_ray."""

    def lost(arguments):
        raise WorkerError("rank 1 has not answered for 6 s")

    monkeypatch.setitem(cli.COMMANDS, "train", lost)
    assert cli.main(["train", str(file)]) == 1
    said = capsys.readouterr().err
    assert said == "gnn-dist train: rank 1 has not answered for 6 s\n"
