"""Copy what one host needs of a partition to a local folder."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gnn_dist.errors import InputError
from gnn_dist.storage.files import copy_file, new_folder, write_text
from gnn_dist.storage.manifest import NAME, Manifest, StagedEntry, read_manifest
from gnn_dist.storage.read import check_sizes, open_partition


def stage(path: str | Path, local_dir: str | Path, parts: Iterable[int]) -> Path:
    """Copy ``parts`` of the partition ``path`` under ``local_dir``; the folder of the copy.

    The copy has the manifest, the partition book, all splits and the files of ``parts``, and opens
    with ``open_partition``. It is made aside and renamed, and checksums are compared on the way. A
    complete copy of the same partition and parts that is already there is used as it is, whoever
    made it.
    """
    path, wanted = Path(path), tuple(sorted(set(parts)))
    manifest = read_manifest(path)
    missing = [p for p in wanted if p not in manifest.present_parts()]
    if missing:
        raise InputError(
            f"stage: there is no part {missing[0]} in {path}; it has parts "
            f"{list(manifest.present_parts())}"
        )
    copy = manifest.model_copy(update={"staged": StagedEntry(parts=wanted)})
    text = copy.model_dump_json(indent=1) + "\n"
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    target = Path(local_dir) / f"{path.resolve().name}-{key}"
    damaged = target.exists()  # asked first: one that appears after this is another process's
    if _is_complete(target, copy):
        return target
    check_sizes(path, copy)
    try:
        with new_folder(target, replace=damaged) as aside:
            for name in copy.present_files():
                (aside / name).parent.mkdir(exist_ok=True)
                if copy_file(path / name, aside / name) != copy.files[name]:
                    raise InputError(
                        f"stage: {path / name} is not what its manifest says; write the partition "
                        "again with gnn-dist partition"
                    )
            write_text(aside / NAME, text)
    except FileExistsError:
        if not _is_complete(target, copy):  # another process of this host was first
            raise
    return target


def _is_complete(target: Path, copy: Manifest) -> bool:
    try:
        return open_partition(target).manifest == copy
    except InputError:
        return False
