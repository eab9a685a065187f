"""The data set ``files``: a graph from ``.npy`` files in a folder, or from one ``.npz``."""

import zipfile
from pathlib import Path

import numpy as np

from gnn_dist.datasets.checks import check_count, check_path
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS, Graph


def files(*, path: str, undirected: bool = False, num_classes: int | None = None) -> Graph:
    """Your own graph: arrays in a folder of .npy files, or in one .npz.

    ``src`` and ``dst`` (int[E] each) or ``edge_index`` (int[2, E]) are the edges. ``x`` is
    float[N, F]; ``y`` holds classes (integers), or targets or multi-labels (floats). ``train``,
    ``val`` and ``test`` hold node ids, or one boolean a node. Arrays named ``edge_...`` are edge
    tensors with a row for each edge (``edge_weight`` becomes ``weight``); any other is a node
    tensor. Arrays of a folder are opened as memory maps. Nothing is unpickled.

    Args:
        path: the folder or the .npz file.
        undirected: add the opposite of every edge, with the same edge tensors.
        num_classes: where some classes do not occur in ``y``; left out, the largest and 1.

    Raises ``InputError`` for a file that is missing or damaged, and for arrays that do not fit
    together.
    """
    if not isinstance(undirected, bool):
        raise InputError(f"files.undirected: must be true or false, not {undirected!r}")
    if num_classes is not None:
        check_count("files.num_classes", num_classes, 1, None)
    where = check_path("files.path", path)
    arrays = _read(where)
    src, dst = _edges(arrays, where)
    splits = {name: arrays.pop(name) for name in SPLITS if name in arrays}
    edge = {}
    for name in [n for n in arrays if n.startswith("edge_")]:
        edge[name.removeprefix("edge_")] = arrays.pop(name)
    for name, array in edge.items():
        if len(array) != src.size:
            raise InputError(
                f"files: edge_{name} has {len(array)} rows for {src.size} edges; give one a row"
            )
    if undirected:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        edge = {name: np.concatenate([array, array]) for name, array in edge.items()}
    num_nodes = _rows(arrays)
    graph = Graph.from_edges(src, dst, num_nodes, node=arrays, edge=edge, splits=splits)
    info: dict[str, object] = {"name": where.stem}
    y = graph.node.get("y")
    if y is not None and y.dtype.kind in "iub" and y.ndim == 1:
        largest = max(int(y.max()), int(y.dtype == bool))
        if num_classes is not None and num_classes <= largest:
            raise InputError(
                f"files.num_classes: is {num_classes}, but y holds the class {largest}; classes "
                "run from 0"
            )
        if num_classes is None and largest >= max(graph.num_nodes, 2):
            raise InputError(
                f"files: y holds the class {largest}, of which {graph.num_nodes} nodes cannot have "
                "examples; number the classes from 0, or give files.num_classes"
            )
        info["num_classes"] = num_classes or largest + 1
    return Graph(
        graph.indptr,
        graph.indices,
        graph.edge_ids,
        graph.node,
        graph.edge,
        graph.splits,
        info,
    )


def _rows(arrays: dict[str, np.ndarray]) -> int | None:
    """Rows of all node tensors; None where there is none."""
    rows = {name: len(array) for name, array in arrays.items()}
    if not rows:
        return None
    usual = max(rows.values())
    for name, found in rows.items():
        if found != usual:
            other = next(n for n, count in rows.items() if count == usual)
            raise InputError(
                f"files: {name!r} has {found} rows and {other!r} {usual}; give each node tensor a "
                "row for every node (an edge tensor's name begins with edge_)"
            )
    return usual


def _read(path: Path) -> dict[str, np.ndarray]:
    """Named arrays, none of them a scalar."""
    arrays: dict[str, np.ndarray] = {}
    if not path.exists():
        raise InputError(f"files.path: there is no {path}; check the path")
    if not path.is_dir() and path.suffix != ".npz":
        raise InputError(
            f"files.path: {path} is no .npz archive; give one, or a folder of .npy files"
        )
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.npy")):
                arrays[file.stem] = _open(file)
        else:
            archive = np.load(path, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array")
            with archive:
                arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise InputError(
            f"files.path: {path} cannot be read as NumPy arrays: {error}; write it with np.save "
            "or np.savez"
        ) from None
    if scalars := [name for name, array in arrays.items() if array.ndim == 0]:
        raise InputError(f"files: {scalars[0]!r} is a single value; give an array with rows")
    return arrays


def _open(file: Path) -> np.ndarray:
    return np.load(file, mmap_mode="r", allow_pickle=False)


def _edges(arrays: dict[str, np.ndarray], path: Path) -> tuple[np.ndarray, np.ndarray]:
    if "edge_index" in arrays:
        both = arrays.pop("edge_index")
        if both.ndim != 2 or both.shape[0] != 2:
            raise InputError(f"files: edge_index has shape {both.shape}; it must be [2, E]")
        return both[0], both[1]
    missing = [name for name in ("src", "dst") if name not in arrays]
    if missing:
        found = ", ".join(arrays) or "no arrays"
        raise InputError(
            f"files: {path} has no {missing[0]!r} (it has {found}); give src and dst, or edge_index"
        )
    src, dst = arrays.pop("src"), arrays.pop("dst")
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(
            f"files: src has shape {src.shape} and dst {dst.shape}; give two equally long "
            "one-dimensional arrays"
        )
    return src, dst
