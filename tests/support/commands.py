"""Commands of ``gnn-dist`` in processes of their own, which need not import everything again."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.ranks import server

Done = subprocess.CompletedProcess[str]


def gnn_dist(
    *arguments: str, folder: Path, modules: Path | None = None, timeout: float = 240
) -> Done:
    """How ``gnn-dist ARGUMENTS`` ends that is started in a folder; it finds ``modules`` first."""
    path = [*([str(modules)] if modules is not None else []), *sys.path]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        names = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        process = server().Process(target=_run, args=(arguments, str(folder), names, path))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            err.write(f"\nit had not ended after {timeout:g} s")
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read())
        return subprocess.CompletedProcess(arguments, process.exitcode, *told)


def _run(arguments: tuple[str, ...], folder: str, names: list[str], path: list[str]) -> None:
    for number, name in enumerate(names, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(folder)
    sys.path[:] = path
    from gnn_dist import cli

    sys.exit(cli.main(arguments))
