"""Writing a partition and opening it again; everything that can be wrong with a folder."""

import errno
import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.graphs import random_graph
from support.partitions import check_against_edge_list, check_round_trips

from gnn_dist import storage
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph, assemble, open_partition, write

MAKER = {"name": "random", "args": {"a": 1}, "seed": 7}


@pytest.fixture
def graph() -> Graph:
    return random_graph()


@pytest.fixture
def assignment(graph) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 3, graph.num_nodes)


@pytest.fixture
def folder(graph, assignment, tmp_path) -> Path:
    write(assemble(graph, assignment, 3), tmp_path / "cut", partitioner=MAKER)
    return tmp_path / "cut"


def files_under(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def test_what_is_opened_is_what_was_written(graph, assignment, folder):
    cut = open_partition(folder, verify=True, expect_graph=graph.digest)
    check_against_edge_list(graph, assignment, cut)
    check_round_trips(cut)
    assert (cut.num_nodes, cut.num_edges, cut.num_parts) == (60, 400, 3)
    assert cut.info == graph.info
    assert cut.digest == graph.digest
    assert cut.schema == assemble(graph, assignment, 3).schema
    for name, ids in graph.splits.items():
        assert cut.split(name)[1].tolist() == ids.tolist()


def test_the_manifest_says_what_is_there(graph, assignment, folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("gnn-dist-partition", 1)
    assert manifest["graph"]["digest"] == graph.digest
    assert manifest["partitioner"] == {**MAKER, "weights": {}}
    assert manifest["splits"] == {"train": 30, "val": 15, "test": 15}
    assert manifest["tensors"]["node"]["x"] == {
        "dtype": "float32",
        "stored": "float32",
        "shape": [5],
    }
    assert sorted(manifest["files"]) == [f for f in files_under(folder) if f != "manifest.json"]
    destinations = graph.destinations()
    for p, part in enumerate(manifest["parts"]):
        inside = assignment[destinations] == p
        foreign = inside & (assignment[graph.indices] != p)
        assert part == {
            "num_nodes": int((assignment == p).sum()),
            "num_edges": int(inside.sum()),
            "halo": np.unique(graph.indices[foreign]).size,
            "cut": int(foreign.sum()),
        }


def test_the_same_cut_gives_the_same_bytes(graph, assignment, folder, tmp_path):
    write(assemble(graph, assignment, 3), tmp_path / "again", partitioner=MAKER)
    for name in files_under(folder):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_arrays_are_memory_maps_and_writing_to_one_leaves_the_file_alone(folder):
    part = open_partition(folder).part(0)
    assert type(part.indices) is np.ndarray
    assert isinstance(part.indices.base, np.memmap)
    part.node["x"][:] = 0
    assert open_partition(folder, verify=True).part(0).node["x"].any()


def test_a_part_is_opened_only_when_asked_for(folder):
    cut = open_partition(folder)
    for file in (folder / "part-00001").iterdir():
        file.unlink()
    assert cut.part(0).num_nodes
    with pytest.raises(InputError, match=r"cannot map .*part-00001/.*No such file"):
        cut.part(1)


def test_a_graph_of_a_folder_is_pickled_as_its_path(graph, assignment, folder):
    data = pickle.dumps(open_partition(folder))
    assert len(data) < 1000
    check_against_edge_list(graph, assignment, pickle.loads(data))


def test_half_stores_float16_and_says_float32(graph, assignment, tmp_path):
    write(assemble(graph, assignment, 3), tmp_path / "cut", partitioner=MAKER, half=["x"])
    cut = open_partition(tmp_path / "cut", verify=True)
    spec = cut.schema.node["x"]
    assert (spec.dtype, spec.stored) == ("float32", "float16")
    assert cut.part(0).node["x"].dtype == np.float16
    check_against_edge_list(graph, assignment, cut, widen=True)
    write(cut, tmp_path / "copy", partitioner=MAKER)
    assert open_partition(tmp_path / "copy").schema == cut.schema


@pytest.mark.parametrize(
    ("half", "message"),
    [
        (["z"], "there is no node tensor 'z'; there are: x, y"),
        (["y"], "graph.node.y is int64, and only floats"),
    ],
)
def test_half_of_what_cannot_be_halved(graph, tmp_path, half, message):
    with pytest.raises(InputError, match=message):
        write(PartitionedGraph.from_graph(graph), tmp_path / "cut", partitioner=MAKER, half=half)
    assert not list(tmp_path.iterdir())


def test_a_value_too_large_for_float16_is_named_and_nothing_is_left(tmp_path):
    x = np.ones((4, 2), np.float32)
    x[2, 1] = -70000
    graph = Graph.from_edges([0], [1], 4, node={"x": x})
    with pytest.raises(InputError, match=r"'x' holds 70000 and float16 ends at 65504"):
        write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER, half=["x"])
    assert not list(tmp_path.iterdir())


def test_what_is_reopened_can_be_written_again(graph, assignment, folder, tmp_path):
    write(open_partition(folder), tmp_path / "copy", partitioner=MAKER)
    assert files_under(folder) == files_under(tmp_path / "copy")
    for name in files_under(folder):
        assert (folder / name).read_bytes() == (tmp_path / "copy" / name).read_bytes(), name


def test_graphs_without_tensors_splits_or_edges(tmp_path):
    graph = Graph.from_edges(np.empty(0, int), np.empty(0, int), 3)
    write(assemble(graph, np.array([0, 2, 0]), 3), tmp_path / "c", partitioner={"name": "mine"})
    cut = open_partition(tmp_path / "c", verify=True)
    check_against_edge_list(graph, np.array([0, 2, 0]), cut)
    assert cut.part(1).num_nodes == 0


def test_one_part_of_a_graph_in_edge_order(tmp_path):
    graph = Graph.from_edges([2, 0, 1], [0, 1, 1], 3, edge={"w": np.arange(3)})
    assert graph.edge_ids is None
    write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER)
    check_against_edge_list(graph, np.zeros(3, int), open_partition(tmp_path / "c", verify=True))


def test_info_and_arguments_become_plain_json(tmp_path):
    graph = Graph.from_edges(
        [0], [1], 2, info={"n": np.int64(3), "a": np.arange(2), "t": (1, None), "p": Path("x")}
    )
    write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER)
    info = open_partition(tmp_path / "c").info
    assert info == {"n": 3, "a": [0, 1], "t": [1, None], "p": "x"}


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_info_that_is_not_json_is_refused(tmp_path, value):
    graph = Graph.from_edges([0], [1], 2, info={"bad": value})
    with pytest.raises(InputError, match=r"graph\.info: cannot be written as JSON"):
        write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER)
    assert not list(tmp_path.iterdir())


def test_a_split_name_that_is_a_path_is_refused(tmp_path):
    graph = Graph.from_edges([0], [1], 2, splits={"../x": np.array([0])})
    with pytest.raises(InputError, match=r"must be an identifier, not '\.\./x'"):
        write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER)
    assert not list(tmp_path.iterdir())


def test_a_dtype_that_cannot_be_stored_is_refused(tmp_path):
    graph = Graph.from_edges([0], [1], 2, node={"x": np.ones(2, np.longdouble)})
    with pytest.raises(InputError, match=r"graph\.node\.x: \w+ cannot be stored"):
        write(PartitionedGraph.from_graph(graph), tmp_path / "c", partitioner=MAKER)
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_kept_unless_it_is_to_be_overwritten(graph, folder):
    whole = PartitionedGraph.from_graph(graph)
    with pytest.raises(InputError, match="is not empty; choose another folder"):
        write(whole, folder, partitioner=MAKER)
    assert open_partition(folder, verify=True).num_parts == 3
    write(whole, folder, partitioner=MAKER, overwrite=True)
    assert open_partition(folder, verify=True).num_parts == 1
    assert [f.name for f in folder.parent.iterdir()] == ["cut"]


def test_overwriting_never_removes_a_folder_that_is_no_partition(graph, tmp_path):
    (tmp_path / "thesis.tex").write_text("…")
    whole = PartitionedGraph.from_graph(graph)
    with pytest.raises(InputError, match=r"no manifest\.json, so it will not be overwritten"):
        write(whole, tmp_path, partitioner=MAKER, overwrite=True)
    with pytest.raises(InputError, match="is a file"):
        write(whole, tmp_path / "thesis.tex", partitioner=MAKER)
    assert (tmp_path / "thesis.tex").read_text() == "…"


def test_an_empty_folder_may_be_written_to(graph, tmp_path):
    (tmp_path / "cut").mkdir()
    write(PartitionedGraph.from_graph(graph), tmp_path / "cut", partitioner=MAKER)
    assert open_partition(tmp_path / "cut", verify=True).num_parts == 1


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
@pytest.mark.parametrize("calls", [1, 9, 20])
def test_an_exception_at_any_point_leaves_nothing(
    graph, assignment, tmp_path, monkeypatch, error, calls
):
    fails_at(monkeypatch, calls, error)
    with pytest.raises(type(error)):
        write(assemble(graph, assignment, 3), tmp_path / "cut", partitioner=MAKER)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_a_clear_error_and_leaves_the_old_partition(graph, folder, monkeypatch):
    fails_at(monkeypatch, 5, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(InputError, match=r"cannot write .*cut: No space left on device"):
        write(PartitionedGraph.from_graph(graph), folder, partitioner=MAKER, overwrite=True)
    monkeypatch.undo()
    assert open_partition(folder, verify=True).num_parts == 3
    assert [f.name for f in folder.parent.iterdir()] == ["cut"]


def test_the_manifest_is_written_last(graph, assignment, tmp_path, monkeypatch):
    synced: list[str] = []
    true_fsync = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        true_fsync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write(assemble(graph, assignment, 3), tmp_path / "cut", partitioner=MAKER)
    written = [Path(f).name for f in synced if Path(f).suffix]
    assert written[-1] == "manifest.json" or written.index("manifest.json") >= len(
        [f for f in written if f.endswith(".npy")]
    )
    assert len(files_under(tmp_path / "cut")) <= len(synced)


def fails_at(monkeypatch, calls: int, error: BaseException) -> None:
    """``os.fsync`` raises ``error`` at its call number ``calls``."""
    true_fsync, count = os.fsync, [0]

    def fsync(handle: int) -> None:
        count[0] += 1
        if count[0] == calls:
            raise error
        true_fsync(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_missing_folder_and_a_folder_without_manifest(tmp_path, folder):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; make it with"):
        open_partition(tmp_path / "nowhere")
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"cut has no manifest\.json, so it is no partition"):
        open_partition(folder)


def test_every_missing_file_is_named(folder, tmp_path):
    for name in files_under(folder):
        if name == "manifest.json":
            continue
        damaged = tmp_path / "damaged"
        shutil.copytree(folder, damaged)
        (damaged / name).unlink()
        with pytest.raises(InputError, match=f"incomplete, {name} is missing; write the"):
            open_partition(damaged)
        shutil.rmtree(damaged)


def test_every_file_of_another_length_is_named(folder, tmp_path):
    for name in files_under(folder):
        if name == "manifest.json":
            continue
        damaged = tmp_path / "damaged"
        shutil.copytree(folder, damaged)
        with (damaged / name).open("ab") as file:
            file.write(b"x")
        with pytest.raises(InputError, match=f"{name} has .* bytes where the manifest has"):
            open_partition(damaged)
        shutil.rmtree(damaged)


def test_one_corrupted_byte_in_any_file_is_found_by_verify(folder, tmp_path):
    random = np.random.default_rng(0)
    for name in files_under(folder):
        if name == "manifest.json":
            continue
        damaged = tmp_path / "damaged"
        shutil.copytree(folder, damaged)
        data = bytearray((damaged / name).read_bytes())
        data[random.integers(len(data))] ^= 1 << int(random.integers(8))
        (damaged / name).write_bytes(data)
        with pytest.raises(InputError, match=f"{name} is corrupted"):
            open_partition(damaged, verify=True)
        shutil.rmtree(damaged)


def test_a_damaged_array_header_is_an_error_without_verify_too(folder):
    random = np.random.default_rng(1)
    file = folder / "part-00001" / "indices.npy"
    whole = file.read_bytes()
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            data[random.integers(128)] = int(random.integers(256))
        file.write_bytes(data)
        try:
            part = open_partition(folder).part(1)
            assert part.indices.dtype == np.int32
        except InputError as error:
            assert "indices.npy" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 100


def test_an_array_of_objects_is_never_unpickled(folder):
    file = folder / "part-00001" / "indices.npy"
    size = file.stat().st_size
    np.save(file, np.array([print, None], dtype=object), allow_pickle=True)
    with file.open("r+b") as handle:
        handle.truncate(size)
    with pytest.raises(InputError, match=r"cannot map .*indices\.npy"):
        open_partition(folder).part(1)


def test_another_graph_is_refused(folder):
    other = random_graph(seed=1)
    with pytest.raises(InputError, match=f"made for another graph.*{other.digest}"):
        open_partition(folder, expect_graph=other.digest)


def test_a_newer_format_is_refused(folder):
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["version"] = 2
    file.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"version 2, and this gnn-dist reads versions up to 1"):
        open_partition(folder)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("original_ids.npy", lambda a: np.where(a == 3, 60, a), "original_ids: an id is out of"),
        ("original_ids.npy", lambda a: np.where(a == 3, 4, a), "original_ids: a node is there tw"),
        ("original_ids.npy", lambda a: a[::-1], "part 0: original_ids: ids do not ascend"),
        ("split.val.npy", lambda a: a + 1000, "split val: an id is out of range"),
        ("split.val.npy", lambda a: a[::-1], "split val: ids do not ascend"),
        ("part-00001/indices.npy", lambda a: a - 1000, "part 1: indices: an id is out of range"),
        ("part-00001/indices.npy", lambda a: a * 0, "part 1: halo: it is not the halo"),
        ("part-00001/edge_ids.npy", lambda a: a * 0, "part 1: edge_ids: an edge is there twice"),
        ("part-00001/indptr.npy", lambda a: np.r_[a[0], -5, a[2:]], "part 1: indptr: it decreas"),
    ],
)
def test_verify_sees_arrays_that_make_no_sense_under_right_checksums(folder, name, values, message):
    from gnn_dist.storage.files import file_entry

    array = np.load(folder / name)
    np.save(folder / name, values(array).astype(array.dtype))
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][name] = file_entry(folder / name).model_dump()
    file.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=message):
        open_partition(folder, verify=True)


def test_features_larger_than_memory_go_through_in_pieces(tmp_path):
    rows, width = 6_000, 4_000  # 96 MB, of which little may be in memory at a time
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, width))
    x[::100] = np.arange(width)
    edges = np.random.default_rng(0).integers(0, rows, (2, 100))
    graph = Graph.from_edges(*edges, rows, node={"x": x})
    assignment = np.arange(rows) % 2
    tracemalloc.start()
    write(assemble(graph, assignment, 2), tmp_path / "cut", partitioner=MAKER)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    np.testing.assert_array_equal(open_partition(tmp_path / "cut").part(0).node["x"], x[::2])


def test_cutting_and_writing_take_less_than_the_graph_again(tmp_path):
    graph = random_graph(20_000, 400_000, features=32)
    tensors = (graph.indptr, graph.indices, graph.edge_ids, *graph.node.values())
    size = sum(a.nbytes for a in (*tensors, *graph.edge.values()))
    assignment = np.arange(graph.num_nodes) % 4
    assemble(graph, assignment, 4).part(0)  # compiles
    tracemalloc.start()
    write(assemble(graph, assignment, 4), tmp_path / "cut", partitioner=MAKER)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size


def test_the_public_names_exist():
    for name in storage.__all__:
        assert hasattr(storage, name)
