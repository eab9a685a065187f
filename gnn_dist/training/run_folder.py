"""The folder of a run: one run at a time, and nothing of it is left by one that did not start."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from gnn_dist.config import Config
from gnn_dist.errors import InputError

_FOLDERS = ("checkpoints", "tensorboard")
_FILES = ("metrics.json", "predictions.npz", "report.html", "config.yaml")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; it is made where it is missing, and goes again if empty.

    Raises ``InputError`` where it cannot be used, and where another run holds it. A process that
    dies holds it no longer. Where the file system has no locks, nobody is kept out.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, "it cannot be written to")
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        _remove_empty(missing)
        raise InputError(
            f"config output: {folder} cannot be the folder of a run ({error.strerror}); name "
            "another one with --output"
        ) from error
    try:
        _check_kinds(folder)
        if _lock(handle, folder):
            for left in folder.glob(".partition.*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)
        _remove_empty(missing)


def _lock(handle: int, folder: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"config output: another run is writing to {folder}; wait until it ends, or name "
            "another folder with --output"
        ) from None
    except OSError:
        return False
    return True


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def prepare(job: Config, resume: bool, say: Callable[[str], None]) -> None:
    """Write ``config.yaml``; what an earlier run left goes, unless it is to go on."""
    folder = job.folder
    if not resume:
        earlier = [folder / name for name in (*_FOLDERS, *_FILES[:-1]) if (folder / name).exists()]
        if earlier:
            say(f"replacing the earlier run in {folder}")
        for path in earlier:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    aside = folder / "config.yaml.tmp"
    aside.write_text(job.dump())
    aside.rename(folder / "config.yaml")


def _check_kinds(folder: Path) -> None:
    for name in (*_FOLDERS, *_FILES):
        path = folder / name
        if path.exists() and path.is_dir() != (name in _FOLDERS):
            kinds = ("folder", "file") if path.is_dir() else ("file", "folder")
            raise InputError(
                f"config output: {path} is a {kinds[0]} where a run keeps a {kinds[1]}; move it "
                "away, or name another folder with --output"
            )
