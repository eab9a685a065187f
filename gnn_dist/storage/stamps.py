"""Files that must stay as they are while memory maps of them are in use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnn_dist.errors import InputError
from gnn_dist.storage.manifest import NAME, Manifest


@dataclass(frozen=True)
class Stamps:
    """What the file system said of a partition's files when the partition was opened."""

    path: Path
    files: Mapping[str, tuple[int, int, int]]

    @classmethod
    def take(cls, path: Path, manifest: Manifest) -> "Stamps":
        """Note the files of ``manifest`` that are in the folder ``path``."""
        names = (NAME, *manifest.present_files())
        return cls(path, {name: _stamp(path / name) for name in names})

    def check(self) -> None:
        """Raise ``InputError`` naming the first file that is missing or was written to since.

        A map of a file that was cut short ends the process that reads it (SIGBUS), and one that
        was written to has other contents than the run began with.
        """
        for name, before in self.files.items():
            try:
                now = _stamp(self.path / name)
            except OSError as error:
                raise InputError(
                    f"partition: {self.path / name} went missing while the run used it; put it "
                    "back, or partition again, and go on with --resume"
                ) from error
            if now != before:
                raise InputError(
                    f"partition: {self.path / name} was changed while the run used it; what was "
                    "trained since then is not to be trusted: restore the file, or partition "
                    "again, and go on with --resume"
                )


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
