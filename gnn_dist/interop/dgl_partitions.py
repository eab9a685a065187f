"""DistDGL's partition directory, as ``dgl.distributed.partition_graph`` writes it.

``NAME.json`` and, for each part, ``partK/graph.dgl``, ``node_feat.dgl`` and ``edge_feat.dgl``. A
part's nodes are its own, in the order of global ids, then its halo; its edges are the in-edges of
its own nodes. DGL renumbers nodes and edges so that each part's are contiguous, and does not keep
the ids that the user gave; ``write`` adds them as the node and edge tensor ``orig_id``.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnn_dist import storage
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS, Graph
from gnn_dist.interop.dgl import dgl_names, import_dgl, our_names
from gnn_dist.storage import PartitionedGraph

_NODE, _EDGE = "_N", "_N:_E:_N"
_ORIGINAL = "orig_id"


def write(graph: PartitionedGraph, path: str | Path, name: str = "graph") -> Path:
    """Write a partition so that ``dgl.distributed.load_partition`` and ``DistGraph`` read it.

    All node tensors are written (``x`` as ``feat``, ``y`` as ``label``), splits as ``train_mask``,
    ``val_mask``, ``test_mask`` (uint8, as DGL writes masks), and edge tensors. Global ids are
    DGL's. Returns the path of ``NAME.json``. Raises ``InputError`` where ``path`` is not empty.
    """
    dgl = import_dgl()
    from dgl.data.utils import save_graphs, save_tensors

    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise InputError(f"DGL partition: {path} is not empty; name a new folder or remove it")
    path.mkdir(parents=True, exist_ok=True)
    edge_bounds = [0]
    files = {}
    for index in range(graph.num_parts):
        part = graph.fresh_part(index)
        files[f"part-{index}"] = {
            "node_feats": f"part{index}/node_feat.dgl",
            "edge_feats": f"part{index}/edge_feat.dgl",
            "part_graph": f"part{index}/graph.dgl",
        }
        (path / f"part{index}").mkdir()
        inner = (part.indices >= part.first) & (part.indices < part.last)
        src = np.where(
            inner,
            part.indices.astype(np.int64) - part.first,
            part.num_nodes + np.searchsorted(part.halo, part.indices),
        )
        dst = np.repeat(np.arange(part.num_nodes), np.diff(part.indptr))
        local = dgl.graph(
            (torch.from_numpy(src), torch.from_numpy(dst)),
            num_nodes=part.num_nodes + part.halo.size,
        )
        nodes = np.concatenate((np.arange(part.first, part.last), part.halo.astype(np.int64)))
        local.ndata[dgl.NID] = torch.from_numpy(nodes)
        local.ndata["part_id"] = torch.from_numpy(graph.owner(nodes))
        local.ndata["inner_node"] = torch.from_numpy(
            (nodes >= part.first) & (nodes < part.last)
        ).to(torch.uint8)
        edge_bounds.append(edge_bounds[-1] + part.num_edges)
        local.edata[dgl.EID] = torch.arange(*edge_bounds[-2:])
        local.edata["inner_edge"] = torch.ones(part.num_edges, dtype=torch.uint8)
        save_graphs(str(path / files[f"part-{index}"]["part_graph"]), [local])
        names = dgl_names(part.node)
        node = {f"{_NODE}/{names[key]}": _tensor(rows) for key, rows in part.node.items()}
        node[f"{_NODE}/{_ORIGINAL}"] = _tensor(part.original_ids)
        for split in SPLITS:
            if split in part.splits:
                mask = torch.zeros(part.num_nodes, dtype=torch.uint8)
                mask[_tensor(part.splits[split]) - part.first] = 1
                node[f"{_NODE}/{split}_mask"] = mask
        edge = {f"{_EDGE}/{key}": _tensor(rows) for key, rows in part.edge.items()}
        edge[f"{_EDGE}/{_ORIGINAL}"] = _tensor(part.edge_ids)
        save_tensors(str(path / files[f"part-{index}"]["node_feats"]), node)
        save_tensors(str(path / files[f"part-{index}"]["edge_feats"]), edge)
    about = {
        "graph_name": name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "part_method": "metis",  # a label; DGL knows two
        "num_parts": graph.num_parts,
        "halo_hops": 1,
        "node_map": {_NODE: _ranges(graph.offsets)},
        "edge_map": {_EDGE: _ranges(np.array(edge_bounds))},
        "ntypes": {_NODE: 0},
        "etypes": {_EDGE: 0},
        **files,
    }
    if graph.manifest is not None:
        about["part_method"] = graph.manifest.partitioner.name
    config = path / f"{name}.json"
    config.write_text(json.dumps(about, indent=4))
    return config


def read(
    path: str | Path,
    *,
    node_ids: torch.Tensor | np.ndarray | None = None,
    edge_ids: torch.Tensor | np.ndarray | None = None,
) -> PartitionedGraph:
    """Read a directory that DGL or ``write`` made, into memory, with its parts as they are.

    Args:
        path: the JSON file, or the folder where there is but one.
        node_ids: int[N], the original id of every DGL id: the first value that
            ``partition_graph(..., return_mapping=True)`` returned. By default what ``write``
            stored, else DGL's ids are taken for the original ones.
        edge_ids: int[E], the second value, likewise.

    Raises ``InputError`` for a missing or damaged directory and for typed graphs.
    """
    import_dgl()
    config = _config(Path(path))
    try:
        about = json.loads(config.read_text())
        num_parts = int(about["num_parts"])
        num_nodes, num_edges = int(about["num_nodes"]), int(about["num_edges"])
        typed = len(about.get("ntypes", [0])) > 1 or len(about.get("etypes", [0])) > 1
        parts = [dict(about[f"part-{index}"]) for index in range(num_parts)]
    except OSError as error:
        raise InputError(
            f"DGL partition: {config} cannot be read ({error.strerror}); give the JSON file that "
            "dgl.distributed.partition_graph wrote"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"DGL partition: {config} is damaged ({error!r}); partition the graph again"
        ) from error
    if typed:
        raise InputError(
            f"DGL partition: {config} is of a typed graph, which is not supported yet; partition "
            "the graph of one type (dgl.to_homogeneous)"
        )
    owner = np.full(num_nodes, -1, np.int32)
    ends = np.full((2, num_edges), -1, np.int64)
    node: dict[str, np.ndarray] = {}
    edge: dict[str, np.ndarray] = {}
    for index, files in enumerate(parts):
        try:
            graph = _graph(config, files, "part_graph")
            nodes = graph.ndata["_ID"].numpy()
            own = nodes[graph.ndata["inner_node"].numpy() == 1]
            inner = graph.edata["inner_edge"].numpy() == 1
            edges = graph.edata["_ID"].numpy()[inner]
            src, dst = (e.numpy()[inner] for e in graph.edges(order="eid"))
            owner[own] = index
            ends[0, edges], ends[1, edges] = nodes[src], nodes[dst]
            _place(node, _tensors(config, files, "node_feats"), np.sort(own), num_nodes)
            _place(edge, _tensors(config, files, "edge_feats"), np.sort(edges), num_edges)
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"DGL partition: part {index} of {config} is damaged ({error!r}); partition the "
                "graph again"
            ) from error
    if (owner < 0).any() or (ends < 0).any():
        raise InputError(f"DGL partition: {config} lacks nodes or edges; it is incomplete")
    node_ids = node.pop(_ORIGINAL, np.arange(num_nodes)) if node_ids is None else node_ids
    edge_ids = edge.pop(_ORIGINAL, np.arange(num_edges)) if edge_ids is None else edge_ids
    node.pop(_ORIGINAL, None)
    edge.pop(_ORIGINAL, None)
    node_of = _inverse("node_ids", node_ids, num_nodes)
    edge_of = _inverse("edge_ids", edge_ids, num_edges)
    tensors, splits = our_names({name: rows[node_of] for name, rows in node.items()})
    ids = np.asarray(node_ids)
    whole = Graph.from_edges(
        ids[ends[0]][edge_of],
        ids[ends[1]][edge_of],
        num_nodes,
        node=tensors,
        edge={name: rows[edge_of] for name, rows in edge.items() if not name.startswith("_")},
        splits=splits,
    )
    return storage.assemble(whole, owner[node_of], num_parts)


def _config(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(
            f"DGL partition: {path} must hold one JSON file, it has {names}; give the path of "
            "the file that dgl.distributed.partition_graph wrote"
        )
    return found[0]


def _file(config: Path, files: dict[str, Any], key: str) -> Path:
    folder = config.parent.resolve()
    file = (folder / str(files[key])).resolve()
    if not file.is_relative_to(folder):
        raise InputError(
            f"DGL partition: {config} names {files[key]}, which is outside its folder; give a "
            "partition that dgl.distributed.partition_graph wrote"
        )
    if not file.is_file():
        raise InputError(f"DGL partition: {file} is missing; copy the whole directory")
    return file


def _graph(config: Path, files: dict[str, Any], key: str) -> Any:
    from dgl.data.utils import load_graphs

    file = _file(config, files, key)
    try:
        return load_graphs(str(file))[0][0]
    except Exception as error:  # DGL's own, of several kinds
        raise InputError(
            f"DGL partition: {file} is damaged: {_first_line(error)}; partition the graph again"
        ) from error


def _tensors(config: Path, files: dict[str, Any], key: str) -> dict[str, np.ndarray]:
    from dgl.data.utils import load_tensors

    file = _file(config, files, key)
    try:
        saved = load_tensors(str(file))
    except Exception as error:
        raise InputError(
            f"DGL partition: {file} is damaged: {_first_line(error)}; partition the graph again"
        ) from error
    return {name.rpartition("/")[2]: rows.numpy() for name, rows in saved.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _place(
    tables: dict[str, np.ndarray], saved: dict[str, np.ndarray], ids: np.ndarray, rows: int
) -> None:
    """Put the rows of one part, which are in the order of DGL's ids, into tables of all."""
    for name, part in saved.items():
        if name not in tables:
            tables[name] = np.zeros((rows, *part.shape[1:]), part.dtype)
        tables[name][ids] = part


def _inverse(field: str, ids: Any, count: int) -> np.ndarray:
    """The DGL id of every original id: int64[count]."""
    ids = np.asarray(ids)
    inverse = np.full(count, -1, np.int64)
    if ids.shape == (count,) and (count == 0 or (ids.min() >= 0 and ids.max() < count)):
        inverse[ids] = np.arange(count)
    if (inverse < 0).any():
        raise InputError(
            f"DGL partition: {field} must hold every id from 0 to {count - 1} once, as "
            "partition_graph(..., return_mapping=True) returns them"
        )
    return inverse


def _ranges(bounds: np.ndarray) -> list[list[int]]:
    return [[int(a), int(b)] for a, b in itertools.pairwise(bounds)]


def _tensor(array: np.ndarray) -> torch.Tensor:
    array = np.array(array)  # a copy: the file is to hold these rows alone
    return torch.from_numpy(array.view(np.uint8) if array.dtype == bool else array)
