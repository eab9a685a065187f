"""Read a whole partition: checksums of its files, and whether its arrays make sense."""

from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.storage.assemble import halo_of
from gnn_dist.storage.files import file_entry
from gnn_dist.storage.layout import PartitionedGraph
from gnn_dist.storage.manifest import Manifest

AGAIN = "write the partition again with gnn-dist partition"


def verify_files(path: Path, manifest: Manifest) -> None:
    """Read every file that the folder must hold; ``InputError`` names the first damaged one."""
    for name in manifest.present_files():
        found = file_entry(path / name)
        if found != manifest.files[name]:
            raise InputError(
                f"partition: {path / name} is corrupted (checksum {found.blake2b}, the manifest "
                f"has {manifest.files[name].blake2b}); {AGAIN}"
            )


def verify_contents(graph: PartitionedGraph) -> None:
    """Check the ids in the arrays of all parts that are here, and that no edge is there twice.

    Checksums say that files are as they were written; this says that what was written is a
    partition. Raises ``InputError`` naming the array.
    """
    assert graph.manifest is not None
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    _check("original_ids", _all_below(graph.original_ids(), num_nodes), "an id is out of range")
    counts = np.bincount(graph.original_ids(), minlength=num_nodes)
    _check("original_ids", bool((counts == 1).all()), "a node is there twice")
    for split in graph.split_names:
        ids = graph.split_in_parts(split)
        _check(f"split {split}", _all_below(ids, num_nodes), "an id is out of range")
        _check(f"split {split}", _ascends(ids), "ids do not ascend")
    seen = np.zeros(num_edges, np.bool_)
    for index in graph.manifest.present_parts():
        part = graph.fresh_part(index)
        name = f"part {index}: "
        _check(name + "indptr", bool((np.diff(part.indptr) >= 0).all()), "it decreases")
        _check(name + "indices", _all_below(part.indices, num_nodes), "an id is out of range")
        _check(name + "edge_ids", _all_below(part.edge_ids, num_edges), "an id is out of range")
        before = int(np.count_nonzero(seen))
        seen[part.edge_ids] = True
        added = int(np.count_nonzero(seen)) - before
        _check(name + "edge_ids", added == part.num_edges, "an edge is there twice")
        _check(name + "original_ids", _ascends(part.original_ids), "ids do not ascend")
        halo = halo_of(part.indices, part.first, part.last, num_nodes)
        _check(name + "halo", np.array_equal(part.halo, halo), "it is not the halo")


def _all_below(ids: np.ndarray, limit: int) -> bool:
    return not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < limit)


def _ascends(ids: np.ndarray) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _check(field: str, right: bool, fault: str) -> None:
    if not right:
        raise InputError(f"partition: {field}: {fault}; {AGAIN}")
