"""Checkpoints: written aside and renamed, read without pickle, the newest complete one found.

A checkpoint is a folder ``step-00000042`` with ``state.pt`` (tensors, read with
``weights_only=True``) and, written last, ``checkpoint.json`` with the position, what the run was
and a checksum of ``state.pt``.
"""

import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gnn_dist.errors import InputError

log = logging.getLogger(__name__)

_FORMAT = "gnn-dist-checkpoint"
_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Position:
    """Where a run stands: ``step`` optimiser steps taken, batch ``batch`` of ``epoch`` is next."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk.

    Attributes:
        path: its folder.
        position: where the run stood.
        graph: digest of the graph.
        config: ``Config.fingerprint()``.
        model: description of the parameters (name → shape).
        extra: further JSON values (history, best metric).
    """

    path: Path
    position: Position
    graph: str
    config: str
    model: Mapping[str, list[int]]
    extra: Mapping[str, Any]

    def load(self) -> dict[str, Any]:
        """The tensors: ``{"model": ..., "optimizer": ...}``. ``InputError`` for anything else."""
        try:
            return torch.load(self.path / "state.pt", map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise InputError(
                f"checkpoint {self.path}: state.pt holds more than tensors and is not loaded; use "
                "a checkpoint that gnn-dist wrote"
            ) from error

    def check(self, *, graph: str, config: str, model: Mapping[str, list[int]]) -> None:
        """Raise ``InputError`` where this is not a checkpoint of the same run."""
        if self.model != model:
            names = sorted(n for n in {*self.model, *model} if self.model.get(n) != model.get(n))
            name = names[0]
            raise InputError(
                f"checkpoint {self.path}: is of another model: parameter {name!r} is "
                f"{self.model.get(name, 'absent')} there and {model.get(name, 'absent')} here; "
                "restore the model section of the config or choose another output folder"
            )
        if self.graph != graph:
            raise InputError(
                f"checkpoint {self.path}: was trained on graph {self.graph}, this is {graph}; "
                "restore the data set or choose another output folder"
            )
        if self.config != config:
            raise InputError(
                f"checkpoint {self.path}: was trained with other settings (seed, data set, "
                "sampler, model, task, batch size or optimiser); restore them or choose another "
                "output folder"
            )


def shapes(model: torch.nn.Module) -> dict[str, list[int]]:
    """Name → shape of every tensor of a model's state."""
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def save(
    folder: Path,
    position: Position,
    state: Mapping[str, Any],
    *,
    graph: str,
    config: str,
    model: Mapping[str, list[int]],
    extra: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Path:
    """Write a checkpoint into ``folder``; it appears whole or not at all."""
    target = folder / (name or f"step-{position.step:08d}")
    aside = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    tensors = io.BytesIO()  # torch's own writer does not say why a write fails
    torch.save(dict(state), tensors)
    try:
        aside.mkdir(parents=True)
        with (aside / "state.pt").open("wb") as file:
            file.write(tensors.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        about = {
            "format": _FORMAT,
            "version": _VERSION,
            "position": asdict(position),
            "graph": graph,
            "config": config,
            "model": dict(model),
            "extra": dict(extra or {}),
            "checksum": _checksum(aside / "state.pt"),
        }
        with (aside / "checkpoint.json").open("w") as file:
            json.dump(about, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(error.filename or target)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


class NewerFormat(InputError):
    """A checkpoint of a later gnn-dist: not damaged, and not to be passed over."""


def read(path: Path) -> Checkpoint:
    """Open one checkpoint; ``InputError`` where it is missing, incomplete or damaged."""
    try:
        about = json.loads((path / "checkpoint.json").read_text())
        if about["format"] != _FORMAT:
            raise InputError(f"checkpoint {path}: is not one that gnn-dist wrote")
        if about["version"] > _VERSION:
            raise NewerFormat(
                f"checkpoint {path}: has format version {about['version']}, this gnn-dist reads "
                f"up to {_VERSION}; update gnn-dist"
            )
        checkpoint = Checkpoint(
            path,
            Position(**about["position"]),
            about["graph"],
            about["config"],
            about["model"],
            about["extra"],
        )
        checksum = about["checksum"]
    except OSError as error:
        raise InputError(
            f"checkpoint {path}: is missing or incomplete ({error.strerror}: {error.filename})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"checkpoint {path}: checkpoint.json is damaged ({error})") from error
    try:
        intact = _checksum(path / "state.pt") == checksum
    except OSError as error:
        raise InputError(
            f"checkpoint {path}: state.pt cannot be read ({error.strerror})"
        ) from error
    if not intact:
        raise InputError(f"checkpoint {path}: state.pt is damaged (its checksum does not match)")
    return checkpoint


def newest(folder: Path, warn: Callable[[str], None] = log.warning) -> Checkpoint | None:
    """The newest checkpoint that is complete; a damaged one is passed over with a warning.

    Raises ``InputError`` for one that a later version of gnn-dist wrote.
    """
    listed = _listed(folder)
    for path in reversed(listed):
        try:
            return read(path)
        except NewerFormat:
            raise
        except InputError as error:
            warn(f"{error}; {'there is none' if path == listed[0] else 'taking the one'} before it")
    return None


def quiet(text: str) -> None:
    """For ``newest``, where another speaks."""


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what an interrupted write left."""
    for path in _listed(folder)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.*"):
        shutil.rmtree(path, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)]
    return sorted(found, key=lambda p: int(p.name[5:]))


def _checksum(path: Path) -> str:
    sha = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()
