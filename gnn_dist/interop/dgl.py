"""DGL: importing it under a current torch, graphs both ways, mini-batches as message-flow blocks.

DGL 1.1.3, the newest wheel that runs with a current torch, imports ``setuptools.extern.packaging``,
which setuptools no longer has; ``packaging`` is put in its place first.
"""

import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from gnn_dist.batch import MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.graph import SPLITS, Graph, from_torch

_REMEDY = "install it with pip install 'gnn-dist[dgl]'"


def import_dgl() -> Any:
    """The module ``dgl``; ``InputError`` with the remedy where it cannot be imported."""
    if importlib.util.find_spec("dgl") is None:
        raise InputError(f"dgl: is not installed; {_REMEDY}")
    try:
        _lend_packaging()
        # else the first import prints a choice and writes it to the home folder
        os.environ.setdefault("DGLBACKEND", "pytorch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside DGL that nobody here can act on
            import dgl
    except Exception as error:
        raise InputError(f"dgl: cannot be imported: {error}; {_REMEDY}") from error
    return dgl


def _lend_packaging() -> None:
    try:
        import setuptools.extern.packaging  # noqa: F401
    except ImportError:
        import packaging
        import packaging.version

        extern = types.ModuleType("setuptools.extern")
        extern.packaging = packaging  # type: ignore[attr-defined]
        sys.modules.setdefault("setuptools.extern", extern)
        sys.modules.setdefault("setuptools.extern.packaging", packaging)


_DGL_NAMES = {"x": "feat", "y": "label"}
_OUR_NAMES = {theirs: ours for ours, theirs in _DGL_NAMES.items()}


def graph_to_dgl(graph: Graph) -> Any:
    """A graph as ``DGLGraph``: edge ``k`` is edge ``k`` of the user's edge list; ``x`` and ``y``
    are ``ndata["feat"]`` and ``ndata["label"]``, as in DGL's data sets, other tensors keep their
    names, and splits are ``train_mask``, ``val_mask``, ``test_mask`` (bool[N])."""
    dgl = import_dgl()
    src, dst = graph.indices.astype(np.int64), graph.destinations().astype(np.int64)
    if graph.edge_ids is not None:
        listed = np.empty((2, src.size), np.int64)
        listed[:, graph.edge_ids] = src, dst
        src, dst = listed
    result = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)
    names = dgl_names(graph.node)
    for name, rows in graph.node.items():
        result.ndata[names[name]] = torch.from_numpy(np.array(rows))
    for name, rows in graph.edge.items():
        result.edata[name] = torch.from_numpy(np.array(rows))
    for name in SPLITS:
        if name in graph.splits:
            mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
            mask[torch.from_numpy(graph.splits[name])] = True
            result.ndata[f"{name}_mask"] = mask
    return result


def graph_from_dgl(graph: Any) -> Graph:
    """A graph of ``DGLGraph``, the other way round; what DGL keeps under names that begin with an
    underscore is left out, and bfloat16 becomes float32.

    Raises ``InputError`` for typed graphs and for masks with several columns.
    """
    dgl = import_dgl()
    if not isinstance(graph, dgl.DGLGraph):
        raise InputError(f"DGL graph: {type(graph).__name__} is none; give a DGLGraph")
    if not graph.is_homogeneous or graph.is_block:
        raise InputError(
            "DGL graph: has nodes or edges of several types, which is not supported yet; give "
            "one type, as dgl.to_homogeneous does"
        )
    src, dst = (ends.cpu().numpy() for ends in graph.edges(order="eid"))
    node, splits = our_names({name: from_torch(name, rows) for name, rows in graph.ndata.items()})
    edge = {
        name: from_torch(name, rows)
        for name, rows in graph.edata.items()
        if not name.startswith("_")
    }
    return Graph.from_edges(src, dst, graph.num_nodes(), node=node, edge=edge, splits=splits)


def batch_to_blocks(batch: MiniBatch) -> list[Any]:
    """A mini-batch as DGL's message-flow blocks, the input layer's first, for models written in
    DGL: ``model(blocks, blocks[0].srcdata["feat"])``.

    The first block has the input nodes' rows as ``srcdata["feat"]``, the last one the seeds'
    tensors in ``dstdata`` (``label``). ``srcdata[dgl.NID]`` and ``dstdata[dgl.NID]`` are global
    ids; ``edata[dgl.EID]`` original edge ids where the sampler carries them. Edge tensors, and
    ``weight``, are in ``edata``.
    """
    dgl = import_dgl()
    blocks = []
    for block in batch.blocks:
        device = block.indptr.device
        none = torch.empty(0, dtype=torch.int64, device=device)
        made = dgl.create_block(
            ("csc", (block.indptr, block.indices.long(), none)),
            num_src_nodes=block.num_src,
            num_dst_nodes=block.num_dst,
            device=device,
        )
        made.srcdata[dgl.NID] = batch.input_nodes[: block.num_src]
        made.dstdata[dgl.NID] = batch.input_nodes[: block.num_dst]
        if block.edge_ids is not None:
            made.edata[dgl.EID] = block.edge_ids
        for name, rows in block.edge.items():
            made.edata[name] = rows
        if block.weight is not None:
            made.edata["weight"] = block.weight
        blocks.append(made)
    if batch.x is not None:
        x = batch.x
        blocks[0].srcdata["feat"] = x.materialise() if isinstance(x, FeatureRows) else x
    names = dgl_names(batch.node)
    for name, rows in batch.node.items():
        blocks[-1].dstdata[names[name]] = rows
    return blocks


def dgl_names(node: Iterable[str]) -> dict[str, str]:
    """What DGL calls each of our node tensors; one that is called so already keeps its name."""
    taken = set(node)
    return {
        name: name if _DGL_NAMES.get(name) in taken else _DGL_NAMES.get(name, name)
        for name in taken
    }


def our_names(
    node: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Node tensors by our names, and splits of DGL's masks."""
    tensors, splits = {}, {}
    for name, rows in node.items():
        if name.startswith("_"):
            continue
        if name.endswith("_mask") and name[:-5] in SPLITS:
            if rows.ndim != 1:
                raise InputError(
                    f"DGL {name}: has {rows.ndim} dimensions; choose one split, as in "
                    f"g.ndata[{name!r}] = g.ndata[{name!r}][:, 0]"
                )
            splits[name[:-5]] = np.flatnonzero(rows)
        else:
            ours = _OUR_NAMES.get(name, name)
            tensors[name if ours in node and ours != name else ours] = rows
    return tensors, splits
