"""Folders for the time of a run, named after their process, so that a killed one's can be found."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

PREFIX = "gnn-dist-"
MARK = "GNN_DIST_SESSION"
"""Environment variable that marks the processes of a local Ray: its agents may outlive it."""
_ENDING = 5.0
"""Seconds that what a session left behind may take to end."""


def make_folder(purpose: str = "", parent: str | None = None) -> Path:
    """A new folder of this process in ``parent`` (default: the usual one for temporary files)."""
    name = f"{PREFIX}{os.getpid()}-{purpose}"
    return Path(tempfile.mkdtemp(prefix=name, dir=parent))


def sweep(parent: str | None = None) -> None:
    """Remove what processes that were killed left in ``parent``, and end what they started."""
    for old in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = old.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            remove(old)


def remove(folder: Path) -> None:
    """Remove a folder, and end every process of the session that it belongs to."""
    end = time.monotonic() + _ENDING
    while _kill_marked(folder) and time.monotonic() < end:
        time.sleep(0.05)  # one of them may have started another in the meantime
    shutil.rmtree(folder, ignore_errors=True)


def _kill_marked(folder: Path) -> bool:
    """Kill every process of the session in ``folder``; whether there was one."""
    wanted, found = f"{MARK}={folder}\0".encode(), False
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and wanted in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                found = True
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
