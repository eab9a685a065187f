import json
import os

import pytest
import torch

from gnn_dist.errors import InputError
from gnn_dist.training import checkpoints
from gnn_dist.training.checkpoints import Position

ABOUT = {"graph": "g", "config": "c", "model": {"w": [2]}}


def save(folder, step, value=1.0):
    state = {"model": {"w": torch.full((2,), value)}, "optimizer": {"state": {}, "lr": 0.1}}
    return checkpoints.save(folder, Position(0, step, step), state, **ABOUT, extra={"best": None})


def test_a_checkpoint_gives_back_what_was_saved(tmp_path):
    save(tmp_path, 3, 7.0)
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.position == Position(0, 3, 3)
    assert found.load()["model"]["w"].tolist() == [7.0, 7.0]
    assert found.extra == {"best": None}


def test_the_newest_is_the_one_with_most_steps(tmp_path):
    for step in (2, 100000000, 9):
        save(tmp_path, step)
    assert checkpoints.newest(tmp_path).position.step == 100000000


@pytest.mark.parametrize("damage", ["byte", "truncate", "no state", "no json", "bad json", "keys"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, damage):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    state, about = newest / "state.pt", newest / "checkpoint.json"
    if damage == "byte":
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "truncate":
        state.write_bytes(state.read_bytes()[:-10])
    elif damage == "no state":
        state.unlink()
    elif damage == "no json":
        about.unlink()
    elif damage == "bad json":
        about.write_text("{")
    else:
        about.write_text(json.dumps({"format": "gnn-dist-checkpoint", "version": 1}))
    assert checkpoints.newest(tmp_path).position.step == 1
    assert "step-00000002" in caplog.text


def test_a_failed_write_leaves_the_old_checkpoints_and_nothing_else(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_old_ones_and_interrupted_writes_are_pruned_but_not_the_best(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    state = {"model": {}, "optimizer": {}}
    checkpoints.save(tmp_path, Position(), state, **ABOUT, name="best")
    (tmp_path / ".step-00000009.123").mkdir()
    checkpoints.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["best", "step-00000002", "step-00000003"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"w": [3]}}, ["another model", "'w'", "[2]", "[3]"]),
        ({"model": {"w": [2], "b": [1]}}, ["another model", "'b'", "absent"]),
        ({"graph": "h"}, ["graph g", "this is h"]),
        ({"config": "d"}, ["other settings"]),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, words):
    found = checkpoints.read(save(tmp_path, 1))
    found.check(**ABOUT)
    with pytest.raises(InputError) as error:
        found.check(**{**ABOUT, **change})
    assert all(word in str(error.value) for word in words)


def test_that_nothing_is_left_to_go_on_from_is_told(tmp_path):
    for step in (1, 2):
        (save(tmp_path, step) / "state.pt").write_bytes(b"")
    told = []
    assert checkpoints.newest(tmp_path, told.append) is None
    assert told[0].endswith("taking the one before it")
    assert told[1].endswith("there is none before it")


def test_a_newer_format_says_to_update(tmp_path):
    path = save(tmp_path, 1)
    about = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**about, "version": 99}))
    save(tmp_path, 0)
    for find in (lambda: checkpoints.read(path), lambda: checkpoints.newest(tmp_path)):
        with pytest.raises(InputError, match=r"99.*update"):
            find()


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


def test_a_pickle_in_a_checkpoint_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path, 1)
    torch.save({"model": Evil()}, path / "state.pt")
    about = json.loads((path / "checkpoint.json").read_text())
    about["checksum"] = checkpoints._checksum(path / "state.pt")
    (path / "checkpoint.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="more than tensors"):
        checkpoints.read(path).load()
    assert not (tmp_path / "owned").exists()
