"""What happens when things break: real Ray workers, real signals."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from support.commands import gnn_dist
from support.job import flags

from gnn_dist.training import checkpoints

TESTS = Path(__file__).parents[1]


def faulty(folder: Path, output: str, fault: str, **changes: str) -> list[str]:
    """The job whose weights ``runs`` has, with a model that meets a fault at its eighth step."""
    return flags(
        model__name="support.faulty.Faulty",
        model__args__fault=fault,
        model__args__flag=str(folder / f"{output}-flag"),
        model__args__step="8",
        train__baselines="false",
        output=output,
        **{"cluster__workers": "2", **changes},
    )


def train(
    folder: Path, output: str, fault: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    return gnn_dist("train", *faulty(folder, output, fault, **changes), folder=folder)


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.newest(run / "checkpoints")
    assert newest is not None
    return newest.load()["model"]


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = final_weights(one), final_weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_a_killed_worker_costs_no_bit(runs, ray_address):
    done = train(runs, "killed", "kill", cluster__address=ray_address)
    assert done.returncode == 0, done.stderr
    assert (runs / "killed-flag").exists()
    assert "after: rank 1 was killed, probably out of memory (peak " in done.stderr
    assert_same_weights(runs / "killed", runs / "ray")
    epochs = json.loads((runs / "killed" / "metrics.json").read_text())["epochs"]
    assert [record["epoch"] for record in epochs] == [0, 1, 2]


def test_an_error_of_the_model_reaches_the_user_as_itself(tmp_path):
    """That of a Ray worker reaches its driver as itself: see test_launch_ray."""
    done = train(tmp_path, "raised", "raise", model__args__rank="0", cluster__workers="0")
    assert done.returncode == 1
    assert "the model met an error of its own" in done.stderr
    assert "support/faulty.py" in done.stderr, "a person debugging a model needs the place"


def test_a_file_that_is_cut_short_under_a_run_is_named(tmp_path, ray_address):
    where = {"cluster__workers": "1", "cluster__address": ray_address}
    done = train(tmp_path, "cut", "cut", model__args__rank="0", **where)
    assert done.returncode == 2, done.stderr
    assert (tmp_path / "cut-flag").exists()
    assert "npy" in done.stderr
    assert "manifest has" in done.stderr or "changed while" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_driver_killed_goes_on_with_resume(runs, ray_address):
    process = start_and_hang(runs, "driver")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(20)
    # Two of Ray's agents outlive it; the next run ends what is left.
    assert_gone([child for child in children if not child.name().endswith("Agent")])
    where = ("--cluster.address", ray_address)
    done = gnn_dist("train", "--resume", "driver", *where, folder=runs)
    assert done.returncode == 0, done.stderr
    assert_gone(children)
    assert not folders_of(process)
    assert_same_weights(runs / "driver", runs / "ray")


def test_ctrl_c_stops_cleanly_and_the_run_goes_on_with_another_number_of_workers(runs):
    process = start_and_hang(runs, "interrupted")
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "checkpoint is kept" in said
    assert checkpoints.newest(runs / "interrupted" / "checkpoints") is not None
    assert_gone(children)
    assert not folders_of(process)
    assert not list((runs / "interrupted").rglob("*.tmp"))

    # Another number of workers goes on with the same global batches.
    alone = ("--cluster.workers", "0")
    done = gnn_dist("train", "--resume", "interrupted", *alone, folder=runs)
    assert done.returncode == 0, done.stderr
    a, b = final_weights(runs / "interrupted"), final_weights(runs / "ray")
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-4), name


def start_and_hang(folder: Path, output: str) -> subprocess.Popen[str]:
    """A run whose rank 1 sleeps at its eighth step, with the checkpoint of step 6 written."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    given = faulty(folder, output, "hang")
    process = subprocess.Popen(
        [sys.executable, "-m", "gnn_dist", "train", *given],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        start_new_session=True,
        # Whoever is started in the background by a shell ignores Ctrl-C, and so would this one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    flag, end = folder / f"{output}-flag", time.monotonic() + 180
    while not flag.exists():
        assert process.poll() is None, "the run ended before it was interrupted"
        assert time.monotonic() < end, "the eighth step never came"
        time.sleep(0.05)
    newest = checkpoints.newest(folder / output / "checkpoints")
    assert newest is not None
    assert newest.position.step == 6
    return process


def folders_of(process: subprocess.Popen[str]) -> list[Path]:
    """Temporary folders of a run."""
    parents = {tempfile.gettempdir(), "/tmp"}
    return [f for p in parents for f in Path(p).glob(f"gnn-dist-{process.pid}-*")]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=40)
    assert not alive, [p.cmdline() for p in alive if p.is_running()]
