"""Exact inference over the partitions: full neighbourhoods, one layer at a time.

Layer by layer every hidden row of the graph is computed once, by the rank at whose home it is, and
lies in a file that is mapped by the ranks of its host; rows of other hosts are fetched like
features. Cost: one pass over all edges a layer, however deep the model. A model that does not offer
``forward_layer`` is evaluated on full-neighbour mini-batches instead: as exact, but dearer.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import Exchange, Placement, World
from gnn_dist.cluster.temporary import make_folder
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.features import FeatureRows, FeatureStore
from gnn_dist.loading import Homes, Sampler
from gnn_dist.nn.tasks import is_rows
from gnn_dist.sampling import PartitionedTopology, Relabeller, Topology, full_neighbour_block
from gnn_dist.storage import Part, PartitionedGraph, Schema, TensorSpec
from gnn_dist.strategies.access import INPUTS
from gnn_dist.strategies.base import model_dtype
from gnn_dist.strategies.layered import has_layers

_CHUNK_EDGES = 1 << 20  # expected edges of a chunk of destination nodes
_BATCH_SEEDS = 256  # seeds of a full-neighbour mini-batch


class FullSampler(Sampler, Protocol):
    """Takes all neighbours; ``edge_ids`` and ``edge`` tell what its blocks carry."""

    @property
    def edge_ids(self) -> bool: ...

    @property
    def edge(self) -> Sequence[str]: ...


class Inference:
    """Predicts for the nodes of a split. All calls are collective.

    Args:
        graph: the partitions.
        topology: full in-neighbours of any node.
        features: rows of any node.
        placement: ranks and hosts.
        exchange: agrees on numbers of rounds; used by the calling thread alone.
        feature_exchange: the exchange of ``features``, for hidden rows (which are fetched when no
            batch is being prepared).
        sampler: takes all neighbours, with the edge tensors that the model reads.
        inputs: the node tensor that models read, or None.
        device: where the model runs.
        dtype: of the model.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        topology: Topology,
        features: FeatureStore,
        placement: Placement,
        exchange: Exchange,
        feature_exchange: Exchange,
        sampler: FullSampler,
        inputs: str | None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._graph = graph
        self._topology = topology
        self._features = features
        self._placement = placement
        self._exchange = exchange
        self._feature_exchange = feature_exchange
        self._sampler = sampler
        self._numbering = Relabeller(graph.num_nodes)
        self._inputs = inputs
        self._device = device
        self._dtype = dtype
        self._homes = Homes.of(graph.offsets, placement)
        degree = max(1.0, graph.num_edges / graph.num_nodes)
        self._chunk = int(min(max(_CHUNK_EDGES / degree, 256), 1 << 16))

    @torch.no_grad()
    def predict(self, model: nn.Module, split: str, target: str) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's share of a split: (original ids int64[n], outputs, targets).

        Every node of the split is in the share of exactly one rank, its home.
        """
        wanted, original = self._graph.split(split)
        mine = self._homes(wanted) == self._placement.rank
        order = np.argsort(wanted[mine])  # by global id: neighbours in storage stay together
        nodes, original = wanted[mine][order], original[mine][order]
        if has_layers(model):
            outputs = self._by_layers(model, len(model.layers), nodes)  # type: ignore[arg-type]
        else:
            outputs = self._by_batches(model, nodes)
        targets = self._features.fetch(target, nodes)
        return torch.from_numpy(original), outputs, targets

    def _by_layers(self, model: nn.Module, num_layers: int, nodes: np.ndarray) -> Tensor:
        source, name = self._features, self._inputs
        scratch = _Scratch(self._placement, self._exchange)
        try:
            for layer in range(num_layers - 1):
                table: _HiddenTable | None = None
                for chunk in self._rounds(self._homes.ranges(self._placement.rank)):
                    rows = self._layer(model, layer, chunk, source, name)
                    if table is None:
                        table = _HiddenTable(scratch, layer, self._graph, rows)
                    table.write(chunk, rows)
                assert table is not None
                self._exchange.barrier()
                source, name = table.store(self._graph, self._placement, self._feature_exchange)
                scratch.forget(layer - 1)
            last = num_layers - 1
            outputs = [self._layer(model, last, c, source, name) for c in self._pieces(nodes)]
            self._exchange.barrier()
        finally:
            scratch.close()
        return torch.cat(outputs)

    def _layer(
        self,
        model: nn.Module,
        layer: int,
        nodes: np.ndarray,
        source: FeatureStore,
        name: str | None,
    ) -> Tensor:
        """Rows of one layer for ``nodes`` (possibly none: the fetches are collective)."""
        block, inputs = full_neighbour_block(
            self._topology,
            nodes,
            edge_ids=self._sampler.edge_ids,
            edge=self._sampler.edge,
            numbering=self._numbering,
        )
        x = None if name is None else source.rows(name, inputs)
        x = as_input(x, self._device, self._dtype)
        if self._device.type != "cpu":
            block = block.to(self._device)
        rows = model.forward_layer(layer, x, block)  # type: ignore[operator]
        return _rows_of(rows, block.num_dst, f"forward_layer({layer}, ...)")

    def _by_batches(self, model: nn.Module, nodes: np.ndarray) -> Tensor:
        outputs = []
        for seeds in self._pieces(nodes, _BATCH_SEEDS):
            batch = self._sampler.sample(
                self._topology, seeds, seed=0, index=BatchIndex(0, 0), global_seeds=len(seeds)
            )
            x = None
            if self._inputs is not None:
                rows = self._features.fetch(self._inputs, batch.input_nodes)
                x = as_input(rows, self._device, self._dtype)
            output = model(x, [b.to(self._device) for b in batch.blocks])
            outputs.append(_rows_of(output, len(seeds), "forward"))
        return torch.cat(outputs)

    def _rounds(self, ranges: list[tuple[int, int]]) -> Iterator[np.ndarray]:
        nodes = [np.arange(start, stop, dtype=np.int64) for start, stop in ranges]
        yield from self._pieces(np.concatenate([np.empty(0, np.int64), *nodes]))

    def _pieces(self, nodes: np.ndarray, size: int | None = None) -> Iterator[np.ndarray]:
        """Cut ``nodes`` into pieces, equally many on every rank (the last ones may be empty)."""
        size = size or self._chunk
        rounds = torch.tensor([max(1, -(-len(nodes) // size))])
        for k in range(int(self._exchange.all_reduce_max(rounds))):
            yield nodes[k * size : (k + 1) * size]


def _rows_of(output: object, rows: int, where: str) -> Tensor:
    """What a model gave in evaluation, on the CPU; ``InputError`` where it is not ``rows`` rows."""
    if not is_rows(output, rows):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"model: {where} gives {shape} for {rows} nodes in evaluation; give a float row each"
        )
    found: Tensor = output.cpu()
    return found


def as_input(
    x: Tensor | FeatureRows | None, device: torch.device, dtype: torch.dtype
) -> Tensor | FeatureRows | None:
    """``x`` where and how a model wants it; rows stay in their table where they already are so."""
    if x is None:
        return None
    x = x.to(device, non_blocking=True)
    if x.dtype == dtype:
        return x
    return (x if isinstance(x, Tensor) else x.materialise()).to(dtype)


def open_inference(
    job: Config, world: World, graph: PartitionedGraph, sampler: FullSampler
) -> Inference:
    """Exact inference with the model of a job, on this rank; disturbs no cache. Collective."""
    placement = world.placement(graph.num_parts, job.cluster.placement)
    return Inference(
        graph,
        PartitionedTopology(graph, placement, world.sampling),
        FeatureStore(graph, placement, world.features),
        placement,
        world.control,
        world.features,
        sampler,
        INPUTS,
        world.device,
        model_dtype(job),
    )


def gather_shares(
    share: tuple[Tensor, Tensor, Tensor], control: Exchange
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Every rank's (original ids, outputs, targets) in one, by original id, on rank 0."""
    gathered = [control.all_gather(tensor) for tensor in share]
    if control.rank != 0:
        return None
    ids, outputs, targets = (torch.cat(parts) for parts in gathered)
    order = torch.argsort(ids)
    return ids[order], outputs[order], targets[order]


class _Scratch:
    """A folder for hidden rows, shared by the ranks of one host and removed at the end."""

    def __init__(self, placement: Placement, exchange: Exchange) -> None:
        self.leader = placement.is_leader
        self._exchange = exchange
        self._local = frozenset(placement.local_parts)
        mine = str(make_folder("hidden-")) if self.leader else ""
        self.path = Path(exchange.all_gather_object(mine)[placement.local_ranks[0]])

    def file(self, layer: int, part: int) -> Path:
        return self.path / f"layer{layer}-part{part}.npy"

    def is_local(self, part: int) -> bool:
        """Whether this host fills the rows of ``part``."""
        return part in self._local

    def barrier(self) -> None:
        self._exchange.barrier()

    def forget(self, layer: int) -> None:
        """Remove a layer that is no longer read (maps that are still open stay valid)."""
        if self.leader:
            for file in self.path.glob(f"layer{layer}-*"):
                file.unlink()

    def close(self) -> None:
        if self.leader:
            shutil.rmtree(self.path, ignore_errors=True)


def _reserve(file: Path) -> None:
    """Take a sparse file's space now: a map that finds the disk full ends the process."""
    if hasattr(os, "posix_fallocate") and file.stat().st_size:
        with file.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)


class _HiddenTable:
    """The rows of one hidden layer of this host's parts, in files that its ranks fill together."""

    def __init__(
        self, scratch: _Scratch, layer: int, graph: PartitionedGraph, like: Tensor
    ) -> None:
        self._width = tuple(like.shape[1:])
        self._dtype = like.numpy().dtype
        self._graph = graph
        self._files: dict[int, np.ndarray] = {}
        self._scratch = scratch
        self._layer = layer
        if scratch.leader:
            for part in range(graph.num_parts):
                size = int(graph.offsets[part + 1] - graph.offsets[part])
                file = scratch.file(layer, part)
                try:
                    # Sparse files: parts of other hosts take no space.
                    open_memmap(file, "w+", self._dtype, (size, *self._width)).flush()
                    if scratch.is_local(part):
                        _reserve(file)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(file)) from error
        scratch.barrier()

    def _part(self, part: int) -> np.ndarray:
        if part not in self._files:
            self._files[part] = open_memmap(self._scratch.file(self._layer, part), "r+")
        return self._files[part]

    def write(self, nodes: np.ndarray, rows: Tensor) -> None:
        """Store the rows of ``nodes``, ascending global ids of this host."""
        values, offsets = rows.numpy(), self._graph.offsets
        cuts = np.searchsorted(nodes, offsets)
        for part in range(self._graph.num_parts):
            low, high = cuts[part], cuts[part + 1]
            if low < high:
                self._part(part)[nodes[low:high] - offsets[part]] = values[low:high]

    def store(
        self, graph: PartitionedGraph, placement: Placement, exchange: Exchange
    ) -> tuple[FeatureStore, str]:
        """A feature store over the finished table, and the name of its tensor."""

        def part(index: int) -> Part:
            return dataclasses.replace(graph.part(index), node={"hidden": self._part(index)})

        spec = TensorSpec(self._dtype.name, self._dtype.name, self._width)
        view = PartitionedGraph(
            offsets=graph.offsets,
            num_edges=graph.num_edges,
            schema=Schema(node={"hidden": spec}),
            original_ids=graph.original_ids(),
            splits={},
            parts=part,
            graph=graph,
            info={},
        )
        return FeatureStore(view, placement, exchange), "hidden"
