"""``.npy`` files in pieces, with checksums and fsync; folders that appear whole or not at all."""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.storage.manifest import FileEntry

CHUNK = 1 << 24  # bytes moved at a time


def checksum() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


def write_npy(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], chunks: Iterable[np.ndarray]
) -> FileEntry:
    """Write the rows that ``chunks`` yields as one array of ``dtype`` and ``shape``."""
    with _HashingFile(path) as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        rows = 0
        for chunk in chunks:
            data = np.ascontiguousarray(chunk, dtype=dtype)
            rows += len(data)
            file.write(data.reshape(-1).view(np.uint8).data)
        assert rows == shape[0], (path, rows, shape)
    return FileEntry(size=file.size, blake2b=file.sha.hexdigest())


class _HashingFile:
    """A file being written that knows its checksum; synced to the disk when closed."""

    def __init__(self, path: Path) -> None:
        self.sha = checksum()
        self.size = 0
        self._file = path.open("wb")

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self.sha.update(data)
        self.size += len(data)

    def __enter__(self) -> "_HashingFile":
        return self

    def __exit__(self, *exception: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy in pieces, with the checksum of what was read."""
    with _HashingFile(target) as writer:
        for data in _pieces(source):
            writer.write(data)
    return FileEntry(size=writer.size, blake2b=writer.sha.hexdigest())


def write_text(path: Path, text: str) -> None:
    with _HashingFile(path) as file:
        file.write(text.encode())


def file_entry(path: Path) -> FileEntry:
    """Size and checksum of a file as it is now."""
    sha, size = checksum(), 0
    for data in _pieces(path):
        sha.update(data)
        size += len(data)
    return FileEntry(size=size, blake2b=sha.hexdigest())


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while data := file.read(CHUNK):
                yield data
    except OSError as error:
        raise InputError(
            f"partition: cannot read {path}: {error.strerror or error}; check its rights, or write "
            "the partition again"
        ) from error


@contextlib.contextmanager
def new_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to fill; it takes the name ``target`` when the block ends without an exception.

    Until then it is a hidden sibling, removed on any exception. With ``replace`` an existing
    ``target`` is moved aside first and removed afterwards; otherwise one that is not empty raises
    ``FileExistsError``. A failing disk is an ``InputError`` that names the folder.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        aside.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        yield aside
        for folder in (*(f for f in aside.iterdir() if f.is_dir()), aside):
            _sync_folder(folder)
        _move(aside, target, replace)
        _sync_folder(target.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(aside: Path, target: Path, replace: bool) -> None:
    if replace and target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        target.rename(old)
        try:
            aside.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old)
        return
    try:
        aside.rename(target)  # takes the place of an empty folder too
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise


def _cannot_write(target: Path, error: OSError) -> InputError:
    return InputError(
        f"partition: cannot write {target}: {error.strerror or error}; nothing was left behind, "
        "choose another folder or make room"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
