"""PyG's partition directory, as ``torch_geometric.distributed.Partitioner`` writes it.

``META.json``, ``node_map.pt`` and ``edge_map.pt`` (the part of every node and edge), and for each
part ``graph.pt`` (its in-edges by destination, in original ids), ``node_feats.pt`` and
``edge_feats.pt``. Files are read with ``weights_only=True``: no code in them is run.
"""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnn_dist import storage
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS, Graph
from gnn_dist.storage import PartitionedGraph


def write(graph: PartitionedGraph, path: str | Path) -> None:
    """Write a partition so that PyG's ``LocalGraphStore`` and ``LocalFeatureStore`` read it.

    All node tensors are written, splits as boolean ``train_mask``, ``val_mask``, ``test_mask``, and
    edge tensors, ``attr`` as ``edge_attr``. Raises ``InputError`` where ``path`` is not empty.
    """
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise InputError(f"PyG partition: {path} is not empty; name a new folder or remove it")
    path.mkdir(parents=True, exist_ok=True)
    node_map = torch.empty(graph.num_nodes, dtype=torch.int64)
    edge_map = torch.empty(graph.num_edges, dtype=torch.int64)
    book = graph.original_ids()
    for index in range(graph.num_parts):
        part = graph.fresh_part(index)
        folder = path / f"part_{index}"
        folder.mkdir()
        node_id = _tensor(part.original_ids)
        edge_id = _tensor(part.edge_ids)
        node_map[node_id] = index
        edge_map[edge_id] = index
        row = book[part.indices]
        col = np.repeat(part.original_ids, np.diff(part.indptr))
        torch.save(
            {
                "edge_id": edge_id,
                "row": _tensor(row),
                "col": _tensor(col),
                "size": (graph.num_nodes, graph.num_nodes),
            },
            folder / "graph.pt",
        )
        feats = {name: _tensor(rows) for name, rows in part.node.items()}
        for name in SPLITS:
            if name in part.splits:
                mask = torch.zeros(part.num_nodes, dtype=torch.bool)
                mask[_tensor(part.splits[name]) - part.first] = True
                feats[f"{name}_mask"] = mask
        torch.save({"global_id": node_id, "feats": feats}, folder / "node_feats.pt")
        edge_feats: dict[str, Any] = {}
        if part.edge:
            named = {f"edge_{name}": _tensor(rows) for name, rows in part.edge.items()}
            edge_feats = {"global_id": edge_id, "feats": named}
        torch.save(edge_feats, folder / "edge_feats.pt")
    torch.save(node_map, path / "node_map.pt")
    torch.save(edge_map, path / "edge_map.pt")
    meta = {
        "num_parts": graph.num_parts,
        "node_types": None,
        "edge_types": None,
        "node_offset": None,
        "is_hetero": False,
        "is_sorted": True,
    }
    (path / "META.json").write_text(json.dumps(meta))


def read(path: str | Path) -> PartitionedGraph:
    """Read a directory that PyG or ``write`` made, into memory, with its parts as they are.

    Raises ``InputError`` for a missing or damaged directory and for typed graphs.
    """
    path = Path(path)
    try:
        meta = json.loads((path / "META.json").read_text())
        num_parts = int(meta["num_parts"])
        typed = bool(meta["is_hetero"])
    except OSError as error:
        raise InputError(
            f"PyG partition: {path / 'META.json'} cannot be read ({error.strerror}); give the "
            "folder that torch_geometric.distributed.Partitioner wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"PyG partition: {path / 'META.json'} is damaged ({error}); partition the graph again"
        ) from error
    if typed:
        raise InputError(
            f"PyG partition: {path} holds a typed graph, which is not supported yet; partition the "
            "graph of one type (data.to_homogeneous())"
        )
    node_map = _load(path / "node_map.pt").numpy().astype(np.int32)
    num_edges = _load(path / "edge_map.pt").numel()
    ends = np.empty((2, num_edges), np.int64)
    seen = np.zeros(num_edges, bool)
    node: dict[str, np.ndarray] = {}
    edge: dict[str, np.ndarray] = {}
    for index in range(num_parts):
        folder = path / f"part_{index}"
        edges = _load(folder / "graph.pt")
        ids = edges["edge_id"].numpy()
        ends[0, ids], ends[1, ids] = edges["row"].numpy(), edges["col"].numpy()
        seen[ids] = True
        _place(node, _load(folder / "node_feats.pt"), node_map.size)
        _place(edge, _load(folder / "edge_feats.pt"), num_edges)
    if not seen.all():
        raise InputError(
            f"PyG partition: {path} lacks edge {int(np.argmin(seen))}; it is incomplete or damaged"
        )
    splits = {
        name: np.flatnonzero(node.pop(f"{name}_mask")) for name in SPLITS if f"{name}_mask" in node
    }
    whole = Graph.from_edges(
        ends[0],
        ends[1],
        node_map.size,
        node=node,
        edge={name.removeprefix("edge_"): rows for name, rows in edge.items()},
        splits=splits,
    )
    return storage.assemble(whole, node_map, num_parts)


def _place(tables: dict[str, np.ndarray], saved: dict[str, Any], rows: int) -> None:
    """Put the rows of one part where they belong in tables of the whole graph."""
    if not saved or "feats" not in saved:
        return
    ids = saved["global_id"].numpy()
    for name, value in saved["feats"].items():
        if value is None:
            continue
        part = value.numpy()
        if name not in tables:
            tables[name] = np.zeros((rows, *part.shape[1:]), part.dtype)
        tables[name][ids] = part


def _load(file: Path) -> Any:
    # PyG saves edge features in a defaultdict, which the safe reader cannot fill, and admits that
    # type for the whole process when it is imported.
    admitted = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals([(OrderedDict, "collections.defaultdict")]):
            return torch.load(file, weights_only=True)
    except OSError as error:
        raise InputError(
            f"PyG partition: {file} cannot be read ({error.strerror}); copy the whole directory"
        ) from error
    except Exception as error:
        raise InputError(
            f"PyG partition: {file} is damaged or holds more than plain tensors; partition the "
            "graph again"
        ) from error
    finally:
        torch.serialization.add_safe_globals(admitted)


def _tensor(array: np.ndarray) -> torch.Tensor:
    array = np.array(array)  # a copy: the file is to hold these rows alone
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array)
