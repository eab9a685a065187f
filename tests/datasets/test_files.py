import numpy as np
import pytest

from gnn_dist import datasets
from gnn_dist.errors import InputError

ARRAYS = {
    "src": np.array([0, 1, 2, 2]),
    "dst": np.array([1, 2, 0, 1]),
    "x": np.arange(8, dtype=np.float32).reshape(4, 2),
    "y": np.array([0, 2, 1, 0]),
    "when": np.array([5, 6, 7, 8]),
    "edge_weight": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    "edge_kind": np.array([1, 2, 3, 4]),
    "train": np.array([0, 3]),
    "test": np.array([False, True, False, False]),
}


def _folder(path, arrays):
    path.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


def _both_forms(tmp_path, arrays):
    np.savez(tmp_path / "graph.npz", **arrays)
    return [_folder(tmp_path / "graph", arrays), tmp_path / "graph.npz"]


def _load(path, **args):
    return datasets.load("files", {"path": str(path), **args})


def test_a_folder_and_an_archive_give_the_same_graph(tmp_path):
    graphs = [_load(path) for path in _both_forms(tmp_path, ARRAYS)]
    assert graphs[0].digest == graphs[1].digest
    for graph in graphs:
        assert graph.num_nodes == 4
        assert sorted(graph.node) == ["when", "x", "y"]
        np.testing.assert_array_equal(graph.edge["weight"], ARRAYS["edge_weight"])
        np.testing.assert_array_equal(graph.edge["kind"], ARRAYS["edge_kind"])
        assert graph.splits["train"].tolist() == [0, 3]
        assert graph.splits["test"].tolist() == [1]
        assert graph.info == {"name": "graph", "num_classes": 3}
        assert graph.indices[graph.indptr[1] : graph.indptr[2]].tolist() == [0, 2]


def test_an_edge_index_does_as_well(tmp_path):
    arrays = {"edge_index": np.array([[0, 1], [1, 0]])}
    for path in _both_forms(tmp_path, arrays):
        graph = _load(path)
        assert (graph.num_nodes, graph.num_edges, graph.info) == (2, 2, {"name": "graph"})


def test_undirected_adds_the_opposite_edges_with_their_tensors(tmp_path):
    graph = _load(_folder(tmp_path, ARRAYS), undirected=True)
    weight = graph.edge_in_csc_order("weight")
    edges = zip(graph.indices.tolist(), graph.destinations().tolist(), weight.tolist(), strict=True)
    given = zip(*(ARRAYS[n].tolist() for n in ("src", "dst", "edge_weight")), strict=True)
    given = list(given)
    assert sorted(edges) == sorted(given + [(v, u, w) for u, v, w in given])


def test_regression_targets_have_no_classes(tmp_path):
    graph = _load(_folder(tmp_path, ARRAYS | {"y": np.ones(4, np.float32)}))
    assert "num_classes" not in graph.info


def test_features_stay_in_the_file_until_they_are_read(tmp_path):
    array = _load(_folder(tmp_path, ARRAYS)).node["x"]
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    assert isinstance(array, np.memmap)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": None}, "has no 'src' .*give src and dst, or edge_index"),
        ({"src": np.array([0, 1, 2, 9])}, r"src\): entry 3 is 9, a node that does not exist"),
        ({"src": np.array([0.5, 1, 2, 3])}, "ids must be integers"),
        ({"src": np.array([0, 1])}, "equally long"),
        ({"edge_weight": np.ones(3)}, "edge_weight has 3 rows for 4 edges"),
        ({"y": np.zeros(3, np.int64)}, r"'y' has 3 rows and '\w+' 4"),
        ({"x": np.full((4, 2), np.nan)}, "holds NaN"),
        ({"x": np.array(3.0)}, "'x' is a single value"),
        ({"train": np.array([0, 7])}, "splits.train: entry 1 is 7"),
        ({"edge_index": np.zeros((3, 4), np.int64)}, "edge_index has shape"),
        ({"y": np.array(["a", "b", "c", "d"])}, "is not supported"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
    arrays = {k: v for k, v in (ARRAYS | changes).items() if v is not None}
    for path in _both_forms(tmp_path, arrays):
        with pytest.raises(InputError, match=message):
            _load(path)


def test_too_few_classes_are_refused(tmp_path):
    path = _folder(tmp_path, ARRAYS)
    assert _load(path, num_classes=7).info["num_classes"] == 7
    with pytest.raises(InputError, match="is 2, but y holds the class 2"):
        _load(path, num_classes=2)


def test_nothing_is_unpickled(tmp_path):
    pickled = np.array([{"a": 1}, None, 2, 3], dtype=object)
    for path in _both_forms(tmp_path, ARRAYS | {"x": pickled}):
        with pytest.raises(InputError, match="cannot be read as NumPy arrays"):
            _load(path)


def test_missing_and_damaged_files_are_explained(tmp_path):
    with pytest.raises(InputError, match=r"files.path: must be a path, not 5"):
        datasets.load("files", {"path": 5})
    with pytest.raises(InputError, match=r"there is no .*nowhere\.npz"):
        _load(tmp_path / "nowhere.npz")
    np.savez(tmp_path / "x.npz", **ARRAYS)
    data = (tmp_path / "x.npz").read_bytes()
    for end in (0, 10, len(data) // 2, len(data) - 10):
        (tmp_path / "x.npz").write_bytes(data[:end])
        with pytest.raises(InputError, match=r"x\.npz"):
            _load(tmp_path / "x.npz")
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(InputError, match=r"is no \.npz archive"):
        _load(tmp_path / "one.npy")
    (tmp_path / "one.npy").rename(tmp_path / "two.npz")
    with pytest.raises(InputError, match=r"two\.npz cannot be read"):
        _load(tmp_path / "two.npz")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="it has no arrays"):
        _load(empty)
