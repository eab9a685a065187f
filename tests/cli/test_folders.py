"""Folders that are not what a command expects; runs that share one; signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist import cli, config
from gnn_dist.graph import Graph
from gnn_dist.training import jobs, run_folder

HERE = __name__


def graph() -> Graph:
    return random_graph(40, 200)


def slow_parts(graph, num_parts, *, seed):
    """Begins to write a partition and is told to end."""
    os.kill(os.getpid(), signal.SIGTERM)
    return np.arange(graph.num_nodes) % num_parts


def arguments(output: str, **changes: str) -> list[str]:
    values = {
        "dataset.name": f"{HERE}.graph",
        "output": output,
        "sampler.fanouts": "3,3",
        "train.batch_size": "10",
        "train.epochs": "1",
        "train.baselines": "false",
        "model.args.hidden": "4",
        "partition.name": "range",
    }
    values.update({k.replace("__", "."): v for k, v in changes.items()})
    return [f"--{k}={v}" for k, v in values.items()]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "läuft ✓"
    assert cli.main(["train", *arguments(str(folder))]) == 0
    return folder


@pytest.fixture
def run(done, tmp_path) -> Path:
    return shutil.copytree(done, tmp_path / "run")


def temporary(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if "tmp" in p.name or p.name.startswith(".")]


@pytest.mark.parametrize("output", ["file", "file/below", "/proc/none", "n" * 300, "loop"])
def test_an_output_that_cannot_be_a_folder_is_named(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    assert cli.main(["train", *arguments(output)]) == 2
    said = capsys.readouterr().err
    assert output[:20] in said
    assert "another one with --output" in said or "correct that path" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]
    assert Path("file").read_text() == "mine"


def test_a_mistake_leaves_no_folder(tmp_path, capsys):
    output = tmp_path / "runs" / "one"
    assert cli.main(["train", *arguments(str(output), dataset__name=f"{HERE}.slow_parts")]) == 2
    assert "dataset.args" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["--output", "--resume"])
def test_what_stands_where_a_run_keeps_something_else_is_named(run, flag, capsys):
    (run / "metrics.json").unlink()
    (run / "metrics.json").mkdir()
    again = arguments(str(run)) if flag == "--output" else ["--resume", str(run)]
    assert cli.main(["train", *again]) == 2
    assert f"{run / 'metrics.json'} is a folder where a run keeps a file" in capsys.readouterr().err
    (run / "metrics.json").rmdir()
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")
    assert cli.main(["train", *again]) == 2
    assert f"{run / 'checkpoints'} is a file where a run keeps a folder" in capsys.readouterr().err


def test_two_runs_do_not_share_a_folder(run, capsys):
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}
    with run_folder.held(run):
        assert cli.main(["train", *arguments(str(run))]) == 2
        assert cli.main(["train", "--resume", str(run)]) == 2
    assert capsys.readouterr().err.count("another run is writing to") == 2
    assert {f: f.read_bytes() for f in run.rglob("*") if f.is_file()} == before
    assert cli.main(["train", "--resume", str(run)]) == 0


def test_two_jobs_may_make_one_partition(tmp_path, monkeypatch):
    job = config.load(
        None, dict(a[2:].split("=") for a in arguments("out", partition__path=str(tmp_path / "p")))
    )
    write = jobs.storage.write
    meet = threading.Barrier(2, timeout=30)

    def both_at_once(*given, **named):
        meet.wait()
        return write(*given, **named)

    monkeypatch.setattr(jobs.storage, "write", both_at_once)
    found: list[object] = [None, None]

    def make(k: int) -> None:
        found[k] = jobs.partition(job)

    threads = [threading.Thread(target=make, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [g.digest for g in found] == [graph().digest] * 2
    assert not temporary(tmp_path)


def test_a_link_to_a_folder_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    assert cli.main(["partition", *arguments("out", partition__path=str(link))]) == 0
    assert link.is_symlink()
    assert (tmp_path / "real" / "manifest.json").is_file()
    assert cli.main(["train", *arguments(str(tmp_path / "out"), partition__path=str(link))]) == 0


def test_what_a_killed_run_left_goes_with_the_next(run):
    left = run / ".partition.k2j4"
    left.mkdir()
    (left / "indices.npy").write_bytes(b"half")
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert not temporary(run)


def test_a_terminated_command_cleans_up(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gnn_dist", "train",
         *arguments("out", dataset__name="sbm", partition__name=f"{HERE}.slow_parts")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 143, done.stderr
    assert "stopped" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_report_of_another_version_or_of_damaged_files_is_told(run, capsys):
    file = run / "metrics.json"
    whole = json.loads(file.read_text())
    for wrong in ([1], {"test": {}}, {k: v for k, v in whole.items() if k != "epochs"}):
        file.write_text(json.dumps(wrong))
        assert cli.main(["report", str(run)]) == 2
        assert "another version" in capsys.readouterr().err
    file.write_text(json.dumps({**whole, "task": "regression", "target_names": ["a"]}))
    (run / "predictions.npz").write_bytes(b"no archive")
    assert cli.main(["report", str(run)]) == 2
    assert "predictions.npz cannot be read" in capsys.readouterr().err
    (run / "predictions.npz").unlink()
    (run / "config.yaml").write_bytes(b"\xff\xfe")
    assert cli.main(["report", str(run)]) == 0


def test_a_checkpoint_of_a_later_version_is_neither_passed_over_nor_replaced(run, capsys):
    newest = max((run / "checkpoints").glob("step-*")) / "checkpoint.json"
    later = json.dumps({**json.loads(newest.read_text()), "version": 99})
    newest.write_text(later)
    assert cli.main(["train", "--resume", str(run)]) == 2
    assert "update gnn-dist" in capsys.readouterr().err
    assert newest.read_text() == later


def test_without_the_best_checkpoint_the_last_weights_are_evaluated(run, capsys):
    shutil.rmtree(run / "checkpoints" / "best")
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert "the last weights are evaluated" in capsys.readouterr().err
