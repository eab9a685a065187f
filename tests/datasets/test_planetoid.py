import collections
import os
import pickle
import pickletools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist import datasets
from gnn_dist.datasets.unpickle import load_arrays
from gnn_dist.errors import InputError


def _load(folder, **args):
    return datasets.load("planetoid", {"path": str(folder), **args})


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "train"),
    [("cora", 2708, 10556, 1433, 7, 140), ("citeseer", 3327, 9104, 3703, 6, 120)],
)
def test_published_graphs_have_their_published_shape(
    shared_data, name, nodes, edges, features, classes, train
):
    graph = _load(shared_data / "planetoid", name=name)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert graph.node["x"].shape == (nodes, features)
    assert graph.info["num_classes"] == classes
    assert {k: v.size for k, v in graph.splits.items()} == {
        "train": train,
        "val": 500,
        "test": 1000,
    }
    assert np.bincount(graph.node["y"][graph.splits["train"]]).tolist() == [20] * classes
    n = graph.num_nodes
    matrix = sp.csc_matrix((np.ones(edges), graph.indices, graph.indptr), (n, n))
    assert matrix.max() == 1
    assert matrix.diagonal().sum() == 0
    assert (matrix != matrix.T).nnz == 0
    sums = graph.node["x"].sum(axis=1)
    blank = {"cora": 0, "citeseer": 15}[name]
    assert (sums == 0).sum() == blank
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)
    raw = _load(shared_data / "planetoid", name=name, normalize=False)
    assert set(np.unique(raw.node["x"])) == {0, 1}


def test_cora_and_citeseer_are_those_of_pyg(shared_data, tmp_path):
    planetoid = pytest.importorskip("torch_geometric.datasets").Planetoid
    for name in ("Cora", "CiteSeer"):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        for file in (shared_data / "planetoid").glob(f"ind.{name.lower()}.*"):
            os.symlink(file, raw / file.name)
        data = planetoid(str(tmp_path), name)[0]
        graph = _load(shared_data / "planetoid", name=name.lower(), normalize=False)
        np.testing.assert_array_equal(graph.node["x"], data.x.numpy())
        np.testing.assert_array_equal(graph.node["y"], data.y.numpy())
        ours = set(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))
        assert ours == set(map(tuple, data.edge_index.T.tolist()))
        for part in ("train", "val", "test"):
            mask = getattr(data, f"{part}_mask").numpy()
            np.testing.assert_array_equal(graph.splits[part], np.flatnonzero(mask))


def _write(folder, protocol=2, **changes):
    """A small graph in the layout: 510 known nodes, 3 test nodes of which one id is skipped."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    words = sp.csr_matrix((rng.random((513, 6)) < 0.5).astype(np.float32))
    classes = np.eye(3, dtype=np.int32)[rng.integers(0, 3, 513)]
    parts = {
        "x": words[:10],
        "allx": words[:510],
        "tx": words[510:],
        "y": classes[:10],
        "ally": classes[:510],
        "ty": classes[510:],
        "graph": collections.defaultdict(list, {0: [1, 1, 0], 1: [0, 512], 513: [2]}),
        **changes,
    }
    for part, value in parts.items():
        data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
        (folder / f"ind.cora.{part}").write_bytes(data)
    index = b"513\n510\n512\n"
    (folder / "ind.cora.test.index").write_bytes(changes.get("index", index))
    return words.toarray(), classes


@pytest.mark.parametrize("protocol", [3, 4])
def test_own_files_in_the_layout_are_read(tmp_path, protocol):
    words, classes = _write(tmp_path, protocol)
    graph = _load(tmp_path, normalize=False)
    assert graph.num_nodes == 514
    assert graph.splits["test"].tolist() == [510, 512, 513]
    np.testing.assert_array_equal(graph.node["x"][[513, 510, 512]], words[510:])
    np.testing.assert_array_equal(graph.node["x"][511], 0)
    np.testing.assert_array_equal(graph.node["y"][[513, 510, 512]], classes[510:].argmax(1))
    edges = set(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))
    assert edges == {(0, 1), (1, 0), (1, 512), (512, 1), (513, 2), (2, 513)}


class _Evil:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("touch {marker}",)),
        (eval, ("open('{marker}', 'w')",)),
        (getattr, (np.ndarray, "tofile")),
        (np.load, ("{marker}",)),
        (collections.OrderedDict, ()),
        (bytearray, (10**12,)),
    ],
)
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, call):
    marker = tmp_path / "marker"
    function, args = call
    args = tuple(a.format(marker=marker) if isinstance(a, str) else a for a in args)
    for protocol in (3, 4, 5):
        _write(tmp_path / "d", protocol, graph={0: [_Evil((function, args))]})
        with pytest.raises(InputError, match="is not a pickle of plain arrays"):
            _load(tmp_path / "d")
        assert not marker.exists()


def test_names_that_are_allowed_cannot_be_called_with_anything_else():
    for function, args in [
        (collections.defaultdict, (os.system,)),
        (np.dtype, ("O",)),
        (np.ndarray, ((10**6, 10**6),)),
        (list, ("abc",)),
        (sp.csr_matrix, ((10**6, 10**6),)),
    ]:
        with pytest.raises(InputError, match="not a pickle of plain arrays"):
            load_arrays(pickle.dumps(_Evil((function, args)), 4), "t")


def _array_with(**changes):
    """The pickle of an array whose state has been changed."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    function, args, (version, shape, dtype, order, raw) = array.__reduce__()
    state = {"shape": shape, "dtype": dtype, "order": order, "raw": raw} | changes

    class Forged:
        def __reduce__(self):
            return (
                function,
                args,
                (version, state["shape"], state["dtype"], state["order"], state["raw"]),
            )

    return pickle.dumps(Forged(), 3)


def test_the_size_and_type_of_an_array_must_fit_its_bytes():
    value = load_arrays(_array_with(), "t")
    np.testing.assert_array_equal(value, [[0, 1, 2], [3, 4, 5]])
    fortran = load_arrays(pickle.dumps(np.asfortranarray(value), 3), "t")
    np.testing.assert_array_equal(fortran, value)
    big_endian = load_arrays(pickle.dumps(value.astype(">i4"), 3), "t")
    np.testing.assert_array_equal(big_endian, value)
    for changes in (
        {"shape": (2, 10**12)},
        {"shape": (-2, -3)},
        {"shape": (2, 2)},
        {"shape": [2, 3]},
        {"dtype": np.dtype("O")},
        {"dtype": np.dtype([("a", "i4")])},
        {"raw": [1, 2, 3, 4, 5, 6]},
        {"raw": b""},
    ):
        with pytest.raises(InputError, match="not a pickle of plain arrays"):
            load_arrays(_array_with(**changes), "t")


def test_a_sparse_matrix_whose_indices_leave_it_is_refused():
    matrix = sp.csr_matrix(np.eye(4))
    for name, value in (
        ("indices", np.array([0, 1, 2, 9], np.int32)),
        ("indices", np.array([0, 1, -2, 3], np.int32)),
        ("indptr", np.array([0, 1, 2, 3, 400], np.int32)),
        ("indptr", np.array([0, 3, 2, 3, 4], np.int32)),
        ("_shape", (3, 4)),
        ("data", None),
    ):
        forged = matrix.copy()
        forged.__dict__[name] = value
        with pytest.raises(InputError, match="not a pickle of plain arrays"):
            load_arrays(pickle.dumps(forged, 3), "t")


def test_a_memo_index_that_would_fill_memory_is_refused():
    with pytest.raises(InputError, match="memo index"):
        load_arrays(b"\x80\x02]r\xff\xff\xff\x7f.", "t")


@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_pickles_are_refused_or_give_plain_values(data):
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    whole = bytearray(pickle.dumps(data.draw(st.sampled_from([matrix, np.eye(2), {0: [1, 2]}])), 3))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        value = load_arrays(cut, "t")
    except InputError:
        return
    if sp.issparse(value):
        value.check_format(full_check=True)
    assert list(pickletools.genops(cut))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": {0: [600]}}, "names node 600; ids run from 0 to 513"),
        ({"graph": {0: [-1]}}, "names node -1"),
        ({"graph": {0: ["a"]}}, "no node id"),
        ({"graph": {0: [2**70]}}, "no node id"),
        ({"graph": {0: "ab"}}, "must map node ids to lists"),
        ({"graph": [1]}, "must map node ids to lists"),
        ({"x": [1]}, "holds no matrix"),
        ({"ty": np.eye(3, dtype=np.int32)[:2]}, "do not fit together"),
        ({"tx": sp.csr_matrix((3, 5), dtype=np.float32)}, "do not fit together"),
        ({"index": b"513\n510\n510\n"}, "names a node twice"),
        ({"index": b"513\nx\n"}, "must hold node ids"),
        ({"index": b"5\n6\n7\n"}, "do not fit together"),
        ({"index": b"512\n510\n900000000\n"}, "do not fit together"),
        ({"x": b"\x80"}, "not a pickle of plain arrays"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, changes, message):
    _write(tmp_path, 3, **changes)
    with pytest.raises(InputError, match=message):
        _load(tmp_path)


def test_one_list_named_by_many_nodes_cannot_fill_memory(tmp_path):
    row = list(range(400))
    _write(tmp_path, 3, graph=dict.fromkeys(range(500), row))
    with pytest.raises(InputError, match="must map node ids to lists"):
        _load(tmp_path)


def test_missing_files_and_unknown_names_are_explained(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*ind.cora.x .*put the ind.cora.\* files"):
        _load(tmp_path)
    with pytest.raises(InputError, match="one of cora, citeseer, pubmed, not 'reddit'"):
        _load(tmp_path, name="reddit")
    with pytest.raises(InputError, match="normalize"):
        _load(tmp_path, normalize="yes")
