"""The citation graphs Cora, Citeseer and PubMed in the files of Planetoid, with their split.

Yang, Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", 2016.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from gnn_dist.datasets.checks import check_path
from gnn_dist.datasets.unpickle import load_arrays
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

NAMES = ("cora", "citeseer", "pubmed")
_NUM_VAL = 500
_LARGEST = 1 << 28  # entries of x; Citeseer, the largest, has 12 million


def planetoid(*, path: str, name: str = "cora", normalize: bool = True) -> Graph:
    """Cora, Citeseer or PubMed from a local folder, with the public split.

    The graph is undirected and simple, as it is commonly used: repeated edges once, no self-loops.
    Node tensors: ``x`` float32[N, F] bag of words, ``y`` int64[N]. Test nodes that are in no edge
    and have no words (Citeseer has 15) are kept, with zeros for features.

    Args:
        path: the folder with the files ``ind.NAME.x``, ``.tx``, ``.allx``, ``.y``, ``.ty``,
            ``.ally``, ``.graph`` and ``.test.index``.
        name: cora, citeseer or pubmed.
        normalize: divide the features of a node by their sum.

    Raises ``InputError`` where a file is missing, damaged, or holds anything but arrays.
    """
    if name not in NAMES:
        raise InputError(f"planetoid.name: must be one of {', '.join(NAMES)}, not {name!r}")
    if not isinstance(normalize, bool):
        raise InputError(f"planetoid.normalize: must be true or false, not {normalize!r}")
    folder = check_path("planetoid.path", path)
    parts = {part: _matrix(folder, name, part) for part in ("x", "tx", "allx", "y", "ty", "ally")}
    test = _test_index(folder, name)
    num_known = parts["allx"].shape[0]
    if not (
        parts["ally"].shape[0] == num_known
        and parts["tx"].shape[0] == parts["ty"].shape[0] == test.size > 0
        and parts["allx"].shape[1] == parts["tx"].shape[1]
        and parts["ally"].shape[1] == parts["ty"].shape[1]
        and parts["y"].shape[0] + _NUM_VAL <= num_known
        and test.min() >= num_known
        and test.max() < num_known + 10 * test.size
    ):
        shapes = ", ".join(f"{part} {array.shape}" for part, array in parts.items())
        raise InputError(
            f"planetoid: the files of {name} in {folder} do not fit together ({shapes}, "
            f"{test.size} test nodes); fetch them again from one source"
        )
    num_nodes = int(test.max()) + 1
    if num_nodes * parts["allx"].shape[1] > _LARGEST:
        raise InputError(
            f"planetoid: {num_nodes} nodes of {parts['allx'].shape[1]} features are more than any "
            f"graph of Planetoid; the files of {name} in {folder} are damaged: fetch them again"
        )
    x = np.zeros((num_nodes, parts["allx"].shape[1]), np.float32)
    y = np.zeros((num_nodes, parts["ally"].shape[1]), np.float32)
    x[:num_known], y[:num_known] = _dense(parts["allx"]), _dense(parts["ally"])
    x[test], y[test] = _dense(parts["tx"]), _dense(parts["ty"])
    if normalize:
        total = x.sum(axis=1, keepdims=True)
        x /= np.where(total == 0, 1, total)
    src, dst = _edges(folder, name, num_nodes)
    num_train = parts["y"].shape[0]
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        node={"x": x, "y": y.argmax(axis=1)},
        splits={
            "train": np.arange(num_train),
            "val": np.arange(num_train, num_train + _NUM_VAL),
            "test": test,
        },
        info={"name": name, "num_classes": int(y.shape[1]), "task": "classification"},
    )


def _read(folder: Path, name: str, part: str) -> bytes:
    path = folder / f"ind.{name}.{part}"
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"planetoid.path: cannot read {path} ({error.strerror}); put the ind.{name}.* files "
            "of github.com/kimiyoung/planetoid there"
        ) from None


def _matrix(folder: Path, name: str, part: str) -> Any:
    value = load_arrays(_read(folder, name, part), f"planetoid: ind.{name}.{part}")
    if not (issparse(value) or isinstance(value, np.ndarray)) or value.ndim != 2:
        raise InputError(f"planetoid: ind.{name}.{part} holds no matrix; fetch it again")
    return value


def _dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if issparse(matrix) else np.asarray(matrix)


def _test_index(folder: Path, name: str) -> np.ndarray:
    """The test nodes in the order of the rows of ``tx``: int64[T]."""
    words = _read(folder, name, "test.index").split()
    if not words or not all(w.isdigit() and len(w) < 10 for w in words):
        raise InputError(f"planetoid: ind.{name}.test.index must hold node ids; fetch it again")
    ids = np.array([int(w) for w in words], np.int64)
    if np.unique(ids).size < ids.size:
        raise InputError(f"planetoid: ind.{name}.test.index names a node twice; fetch it again")
    return ids


def _edges(folder: Path, name: str, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    data = _read(folder, name, "graph")
    rows = load_arrays(data, f"planetoid: ind.{name}.graph")
    fits = isinstance(rows, dict) and all(isinstance(row, list) for row in rows.values())
    # A list may stand in the file once and be named often: bound what it is expanded to.
    if not fits or sum(map(len, rows.values())) > len(data):
        raise InputError(
            f"planetoid: ind.{name}.graph must map node ids to lists of them; fetch it again"
        )
    try:
        src = np.array([u for u, row in rows.items() for _ in row], np.int64)
        dst = np.array([v for row in rows.values() for v in row], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"planetoid: ind.{name}.graph names something that is no node id; fetch it again"
        ) from None
    ends = np.concatenate([src, dst])
    if ends.size and (ends.min() < 0 or ends.max() >= num_nodes):
        bad = int(ends[(ends < 0) | (ends >= num_nodes)][0])
        raise InputError(
            f"planetoid: ind.{name}.graph names node {bad}; ids run from 0 to {num_nodes - 1}"
        )
    pairs = np.unique(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    src, dst = np.divmod(pairs, num_nodes)[::-1]  # by destination: no sort is needed later
    keep = src != dst
    return src[keep], dst[keep]
