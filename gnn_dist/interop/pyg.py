"""PyG: graphs both ways, mini-batches as ``NeighborLoader`` gives them, and its loader.

A ``NeighborLoader`` batch expands each node once, in the hop after it was first reached, and has
one edge list for all layers. Our batches draw anew for every node in every hop. ``batch_to_data``
takes from a batch the draws that make the former: node ``v`` first reached in hop ``h`` has the
in-edges drawn for it in hop ``h + 1``. ``NeighborLoader`` here draws just those.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.graph import SPLITS, Graph
from gnn_dist.loading import EpochPlan, Prefetcher
from gnn_dist.sampling import LocalTopology, Relabeller
from gnn_dist.storage import PartitionedGraph


def graph_to_data(graph: Graph) -> Data:
    """A graph as ``Data``: ``edge_index`` in the order of the user's edge list, node tensors by
    name, edge tensor ``weight`` as ``edge_weight`` and others as ``edge_NAME``, splits as masks."""
    src, dst = graph.indices.astype(np.int64), graph.destinations().astype(np.int64)
    if graph.edge_ids is not None:
        listed = np.empty((2, src.size), np.int64)
        listed[:, graph.edge_ids] = src, dst
        src, dst = listed
    data = Data(edge_index=torch.from_numpy(np.stack((src, dst))), num_nodes=graph.num_nodes)
    for name, rows in graph.node.items():
        data[name] = torch.from_numpy(np.array(rows))
    for name, rows in graph.edge.items():
        data[f"edge_{name}"] = torch.from_numpy(np.array(rows))
    for name in SPLITS:
        if name in graph.splits:
            mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
            mask[torch.from_numpy(graph.splits[name])] = True
            data[f"{name}_mask"] = mask
    return data


def batch_to_data(batch: MiniBatch) -> Data:
    """A mini-batch as ``NeighborLoader`` would give it.

    Has ``x``, ``edge_index``, ``n_id`` (global ids), ``e_id`` (original edge ids, or None where the
    sampler does not carry them), ``input_id`` (the seeds' global ids), ``batch_size``,
    ``num_sampled_nodes``, ``num_sampled_edges``, and the seeds' tensors (``y``) with
    ``batch_size`` rows.
    """
    num_seeds = batch.seeds.numel()
    local = np.full(batch.input_nodes.numel(), -1, np.int64)  # batch's numbering -> Data's
    local[:num_seeds] = np.arange(num_seeds)
    frontier = np.arange(num_seeds)
    reached = [frontier]
    edges, edge_ids = [], []
    for block in reversed(batch.blocks):
        indptr, indices = block.indptr.cpu().numpy(), block.indices.cpu().numpy()
        places = _ranges(indptr[frontier], indptr[frontier + 1])
        sources = indices[places].astype(np.int64)
        new, first = np.unique(sources[local[sources] < 0], return_index=True)
        new = new[np.argsort(first)]
        local[new] = local.max(initial=-1) + 1 + np.arange(new.size)
        degrees = indptr[frontier + 1] - indptr[frontier]
        edges.append(np.stack((local[sources], np.repeat(local[frontier], degrees))))
        if block.edge_ids is not None:
            edge_ids.append(block.edge_ids.cpu().numpy()[places])
        frontier = new
        reached.append(new)
    order = torch.from_numpy(np.concatenate(reached))
    x = batch.x
    if x is not None:
        x = x[order]
    if isinstance(x, FeatureRows):
        x = x.materialise()
    return _data(
        x=x,
        n_id=batch.input_nodes[order],
        edges=edges,
        edge_ids=edge_ids if len(edge_ids) == len(edges) else None,
        reached=[nodes.size for nodes in reached],
        input_id=batch.seeds,
        node=dict(batch.node),
    )


class NeighborLoader:
    """The sampler alone, for scripts written for ``torch_geometric.loader.NeighborLoader``.

    Needs neither pyg-lib nor torch-sparse. Iterating gives one epoch of ``Data`` mini-batches; each
    pass is the next epoch, drawn from ``(seed, epoch, batch)`` alone.

    Args:
        data: a PyG ``Data`` or a ``Graph``.
        num_neighbors: in-neighbours drawn a node, hop by hop; -1 takes all.
        input_nodes: seed nodes as ids (int[n]) or a mask (bool[N]); None takes all.
        batch_size: seeds a batch.
        shuffle: a new order every epoch; otherwise that of ``input_nodes``.
        replace: draw with replacement.
        drop_last: leave out a last, smaller batch.
        weight_attr: the edge tensor of sampling weights, such as ``edge_weight``.
        transform: called on every mini-batch.
        num_workers: mini-batches that are drawn ahead, on a thread; 0 draws when asked.
        persistent_workers: taken for compatibility; the thread lives as long as an epoch.
        seed: of everything that is drawn.

    Raises ``InputError`` for ids that do not exist and arguments out of range.
    """

    def __init__(
        self,
        data: Data | Graph,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | np.ndarray | None = None,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        replace: bool = False,
        drop_last: bool = False,
        weight_attr: str | None = None,
        transform: Callable[[Data], Data] | None = None,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int = 0,
    ) -> None:
        from gnn_dist.sampling import NeighborSampler

        if not isinstance(num_neighbors, Sequence):
            raise InputError(
                f"num_neighbors: {num_neighbors!r} is not valid; give one number a hop, as in "
                "[10, 5]"
            )
        graph = data if isinstance(data, Graph) else Graph.from_pyg(data)
        weights = None if weight_attr is None else weight_attr.removeprefix("edge_")
        NeighborSampler(num_neighbors, replace, weights)  # checks the arguments
        self.data = data if isinstance(data, Data) else graph_to_data(graph)
        self.num_neighbors = [int(n) for n in num_neighbors]
        self.batch_size = batch_size
        self._shuffle = shuffle
        self._replace = replace
        self._weights = weights
        self._transform = transform
        self._ahead = num_workers
        self._seed = seed
        self._epoch = 0
        self._seeds = _ids(input_nodes, graph.num_nodes)
        for name, value, least in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0)):
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name}: {value!r} is not valid; give a whole number >= {least}")
        if self._seeds.size < (batch_size if drop_last else 1):
            raise InputError(
                f"input_nodes: {self._seeds.size} nodes make no batch of {batch_size}; give more "
                "nodes, a smaller batch_size or drop_last=False"
            )
        places = np.arange(self._seeds.size)
        self._plan = EpochPlan(
            self._seeds, places, np.zeros_like(places), batch_size, 1, seed, drop_last
        )
        self._topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
        self._numbering = Relabeller(graph.num_nodes)

    def __len__(self) -> int:
        return self._plan.num_batches

    def __iter__(self) -> Iterator[Data]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        order = self._plan.order(epoch) if self._shuffle else np.arange(self._seeds.size)
        batches: Prefetcher[int, Data] = Prefetcher(
            lambda batch: self._sample(self._plan.batch(order, batch), BatchIndex(epoch, batch)),
            self._transform or (lambda data: data),
            depth=self._ahead,
            size=lambda data: sum(t.nbytes for _, t in data.items() if isinstance(t, Tensor)),
        )
        yield from batches(range(len(self)))

    def _sample(self, places: np.ndarray, index: BatchIndex) -> Data:
        numbering = self._numbering
        numbering.start(self._seeds[places], "input_nodes")
        first, reached = 0, [places.size]
        edges: list[np.ndarray] = []
        edge_ids: list[np.ndarray] = []
        for hop, fanout in enumerate(self.num_neighbors):
            frontier = numbering.nodes[first:].copy()
            drawn = self._topology.sample(
                frontier,
                fanout,
                rng.fold(self._seed, rng.Stream.NEIGHBOURS, index.epoch, index.batch, hop),
                replace=self._replace,
                weights=self._weights,
                edge_ids=True,
            )
            dst = np.repeat(np.arange(first, numbering.count), np.diff(drawn.indptr))
            first = numbering.count
            edges.append(np.stack((numbering.add(drawn.indices).astype(np.int64), dst)))
            assert drawn.edge_ids is not None
            edge_ids.append(drawn.edge_ids)
            reached.append(numbering.count - first)
        n_id = torch.from_numpy(numbering.nodes.copy())
        e_id = torch.from_numpy(np.concatenate(edge_ids))
        tensors = {}
        for name, value in self.data.items():
            if name == "edge_index" or not isinstance(value, Tensor):
                continue
            if self.data.is_node_attr(name):
                tensors[name] = value[n_id]
            elif self.data.is_edge_attr(name):
                tensors[name] = value[e_id]
        return _data(
            x=tensors.pop("x", None),
            n_id=n_id,
            edges=edges,
            edge_ids=edge_ids,
            reached=reached,
            input_id=torch.from_numpy(places),
            node=tensors,
        )


def _data(
    *,
    x: Tensor | None,
    n_id: Tensor,
    edges: Sequence[np.ndarray],
    edge_ids: Sequence[np.ndarray] | None,
    reached: Sequence[int],
    input_id: Tensor,
    node: dict[str, Any],
) -> Data:
    none = np.empty((2, 0), np.int64)
    return Data(
        x=x,
        edge_index=torch.from_numpy(np.concatenate([none, *edges], axis=1)),
        n_id=n_id,
        e_id=None if edge_ids is None else torch.from_numpy(np.concatenate([none[0], *edge_ids])),
        input_id=input_id,
        batch_size=int(reached[0]),
        num_sampled_nodes=[int(n) for n in reached],
        num_sampled_edges=[int(e.shape[1]) for e in edges],
        num_nodes=n_id.numel(),
        **node,
    )


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """``starts[0] .. stops[0] - 1, starts[1] .. stops[1] - 1, ...``: int64[sum]."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) - np.repeat(ends - lengths - starts, lengths)


def _ids(nodes: Tensor | np.ndarray | None, num_nodes: int) -> np.ndarray:
    if nodes is None:
        return np.arange(num_nodes)
    array = np.asarray(nodes)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise InputError(
            f"input_nodes: has shape {array.shape} of {array.dtype}; give node ids in one "
            "dimension, or one boolean a node"
        )
    if array.dtype == bool:
        if array.shape != (num_nodes,):
            raise InputError(
                f"input_nodes: a mask of shape {array.shape} for {num_nodes} nodes; give one "
                "boolean a node"
            )
        return np.flatnonzero(array)
    if array.size and (array.min() < 0 or array.max() >= num_nodes):
        raise InputError(f"input_nodes: ids run from 0 to {num_nodes - 1}; correct the others")
    return array.astype(np.int64)
