"""Copies of a partition on a host's own disk."""

import threading
from pathlib import Path

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.storage import assemble, open_partition, stage, write

ASSIGNMENT = np.random.default_rng(0).integers(0, 3, 60)


@pytest.fixture
def graph() -> Graph:
    return random_graph()


@pytest.fixture
def folder(graph, tmp_path) -> Path:
    write(assemble(graph, ASSIGNMENT, 3), tmp_path / "cut", partitioner={"name": "random"})
    return tmp_path / "cut"


def test_a_copy_has_its_parts_the_book_and_all_splits(graph, folder, tmp_path):
    local = stage(folder, tmp_path / "local", [2, 0])
    assert local.parent == tmp_path / "local"
    assert sorted(f.name for f in local.iterdir() if f.is_dir()) == ["part-00000", "part-00002"]
    copy = open_partition(local, verify=True, expect_graph=graph.digest)
    whole = open_partition(folder)
    np.testing.assert_array_equal(copy.original_ids(), whole.original_ids())
    for name in graph.splits:
        assert copy.split(name)[1].tolist() == graph.splits[name].tolist()
    for p in (0, 2):
        np.testing.assert_array_equal(copy.part(p).indices, whole.part(p).indices)
        np.testing.assert_array_equal(copy.part(p).node["x"], whole.part(p).node["x"])
    with pytest.raises(InputError, match=r"part 1 is not in the staged copy .* has parts \[0, 2\]"):
        copy.part(1)


def test_a_complete_copy_is_used_again(folder, tmp_path):
    local = stage(folder, tmp_path / "local", [1])
    before = (local / "part-00001" / "indices.npy").stat().st_ino
    assert stage(folder, tmp_path / "local", [1, 1]) == local
    assert (local / "part-00001" / "indices.npy").stat().st_ino == before
    assert len(list((tmp_path / "local").iterdir())) == 1


def test_a_damaged_copy_is_made_anew(folder, tmp_path):
    local = stage(folder, tmp_path / "local", [1])
    (local / "part-00001" / "indices.npy").unlink()
    assert stage(folder, tmp_path / "local", [1]) == local
    open_partition(local, verify=True).part(1)
    (local / "manifest.json").write_text("{}")
    assert stage(folder, tmp_path / "local", [1]) == local
    open_partition(local, verify=True).part(1)


def test_another_partition_of_the_same_name_is_another_copy(graph, folder, tmp_path):
    first = stage(folder, tmp_path / "local", [0])
    write(assemble(graph, 2 - ASSIGNMENT, 3), folder, partitioner={"name": "x"}, overwrite=True)
    second = stage(folder, tmp_path / "local", [0])
    assert first != second
    assert open_partition(first).part(0).num_nodes == (ASSIGNMENT == 0).sum()
    assert open_partition(second).part(0).num_nodes == (ASSIGNMENT == 2).sum()


def test_a_copy_of_a_copy(folder, tmp_path):
    one = stage(folder, tmp_path / "one", [0, 1])
    two = stage(one, tmp_path / "two", [1])
    assert open_partition(two, verify=True).part(1).num_nodes
    with pytest.raises(InputError, match=r"there is no part 2 in .*; it has parts \[0, 1\]"):
        stage(one, tmp_path / "two", [2])


def test_what_is_corrupted_on_the_way_is_not_kept(folder, tmp_path):
    file = folder / "part-00001" / "node.x.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"node\.x\.npy is not what its manifest says"):
        stage(folder, tmp_path / "local", [1])
    assert not list((tmp_path / "local").iterdir())
    stage(folder, tmp_path / "local", [0])


def test_what_is_missing_or_cut_short_is_named_and_nothing_is_copied(folder, tmp_path):
    file = folder / "part-00001" / "edge_ids.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"edge_ids\.npy has .* bytes where the manifest has"):
        stage(folder, tmp_path / "local", [1])
    file.unlink()
    with pytest.raises(InputError, match=r"incomplete, part-00001/edge_ids\.npy is missing"):
        stage(folder, tmp_path / "local", [0, 1])
    assert not (tmp_path / "local").exists()
    with pytest.raises(InputError, match=r"there is no part 3 in"):
        stage(folder, tmp_path / "local", [3])


def test_processes_of_one_host_may_stage_at_once(folder, tmp_path):
    paths: list[Path] = []
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        paths.append(stage(folder, tmp_path / "local", [0, 1, 2]))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(paths) == 4
    assert len(set(paths)) == 1
    open_partition(paths[0], verify=True)
    assert [f.name for f in (tmp_path / "local").iterdir()] == [paths[0].name]
