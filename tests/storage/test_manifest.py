"""No manifest, however damaged, gives anything but a manifest or an ``InputError``."""

import copy
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import random_graph

from gnn_dist.errors import InputError
from gnn_dist.storage import Manifest, assemble, open_partition, parse_manifest, write

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["../x", "float32", "train", "/etc/passwd", "int64"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    graph = random_graph(20, 60)
    path = tmp_path_factory.mktemp("manifest") / "cut"
    write(assemble(graph, np.arange(20) % 2, 2), path, partitioner={"name": "mine"})
    return path


@pytest.fixture(scope="module")
def raw(folder) -> bytes:
    return (folder / "manifest.json").read_bytes()


def parse(raw: bytes) -> Manifest | None:
    try:
        return parse_manifest(raw, "here/manifest.json")
    except InputError as error:
        assert str(error).startswith("here/manifest.json: ")  # noqa: PT017
        return None


def paths(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from paths(inner, (*at, key))


def test_the_true_manifest_is_read(raw):
    assert parse(raw).num_parts == 2


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_refused(data):
    assert parse(data) is None


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_arbitrary_json_is_refused(value):
    assert parse(json.dumps(value).encode()) is None


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_manifest_with_one_value_changed_is_refused_or_opens_safely(folder, raw, tmp_path, data):
    manifest = json.loads(raw)
    *parents, last = data.draw(st.sampled_from([p for p in paths(manifest) if p]))
    target = manifest = copy.deepcopy(manifest)
    for key in parents:
        target = target[key]
    if data.draw(st.booleans()):
        del target[last]
    else:
        target[last] = data.draw(JSON)
    changed = json.dumps(manifest).encode()
    if parse(changed) is None:
        return
    copied = tmp_path / "cut"
    copied.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name != "manifest.json" and not (copied / file.name).exists():
            (copied / file.name).symlink_to(file)
    (copied / "manifest.json").write_bytes(changed)
    try:
        cut = open_partition(copied)
        for index in range(cut.num_parts):
            cut.part(index)
    except InputError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_manifest_with_bytes_cut_or_flipped_is_refused_or_read(raw, data):
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        if data.draw(st.booleans()):
            changed[at] = data.draw(st.integers(0, 255))
        else:
            del changed[at : at + data.draw(st.integers(1, 50))]
    parse(bytes(changed))


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000, b"\xff\xfe", b"", b"\0" * 64]
)
def test_deep_long_and_binary_input_is_refused(data):
    assert parse(data) is None


@pytest.mark.parametrize("key", ["../evil", "/etc/passwd", "a/b", "x.y", ""])
def test_names_cannot_leave_the_folder(raw, key):
    manifest = json.loads(raw)
    for group in ("node", "edge"):
        changed = copy.deepcopy(manifest)
        changed["tensors"][group][key] = changed["tensors"]["node"]["x"]
        assert parse(json.dumps(changed).encode()) is None
    changed = copy.deepcopy(manifest)
    changed["splits"][key] = 0
    assert parse(json.dumps(changed).encode()) is None
    changed = copy.deepcopy(manifest)
    changed["files"][key] = changed["files"]["original_ids.npy"]
    assert parse(json.dumps(changed).encode()) is None


def test_many_parts_times_many_tensors_do_not_take_time_or_memory(raw):
    manifest = json.loads(raw)
    manifest["parts"] += [dict(manifest["parts"][0], num_nodes=0, num_edges=0)] * 5_000
    manifest["offsets"] += [20] * 5_000
    spec = manifest["tensors"]["node"]["x"]
    manifest["tensors"]["node"] |= {f"t{k}": spec for k in range(5_000)}
    assert parse(json.dumps(manifest).encode()) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="hdf5"), "format is 'hdf5', expected 'gnn-dist-partition'"),
        (lambda m: m.update(version="1"), r"version: Input should be a valid integer"),
        (lambda m: m.pop("offsets"), "offsets: Field required"),
        (lambda m: m["offsets"].__setitem__(1, 3), r"offsets and parts\[\].num_nodes disagree"),
        (lambda m: m["graph"].update(num_nodes=21), "offsets do not end with graph.num_nodes"),
        (lambda m: m["graph"].update(num_edges=1), "do not sum to graph.num_edges"),
        (lambda m: m["splits"].update(train=99), "a split has more nodes than the graph"),
        (lambda m: m["files"].popitem(), "files does not list the files that"),
        (lambda m: m.update(staged={"parts": [7]}), "names a part that does not exist"),
    ],
)
def test_what_is_wrong_is_said(raw, change, message):
    manifest = json.loads(raw)
    change(manifest)
    with pytest.raises(InputError, match=message):
        parse_manifest(json.dumps(manifest).encode(), "x")
