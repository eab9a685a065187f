"""Layer-wise importance sampling: a number of nodes a layer, drawn for the whole batch at once.

The sources of a layer are ``s`` draws with replacement from a distribution ``p``; an edge from a
node j that was drawn m times has the importance m / (s p_j). What a batch draws depends on its
whole frontier and on nothing else, so every rank draws the same nodes and keeps the edges of its
own rows: batches do not depend on how seeds are dealt to ranks.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.kernels import sample_layer as kernels
from gnn_dist.kernels.gather import gather
from gnn_dist.kernels.sample import take
from gnn_dist.rng import Stream
from gnn_dist.sampling.matrix import MatrixTopology
from gnn_dist.sampling.neighbor import Share, finish, make_block, node_ids
from gnn_dist.sampling.relabel import Relabeller
from gnn_dist.sampling.topology import ALL, Neighbours, Topology, running_masses

Drawn = tuple[np.ndarray, np.ndarray]
"""(int64[d] global ids that were drawn, float64[d] their importance m / (s p))."""


class LayerSampler(ABC):
    """What LADIES and FastGCN share.

    ``Block.weight`` is what makes the mean of weight · row over the edges of a block an unbiased
    estimate of the mean over all in-edges of a node. A node's edge from itself, where the graph has
    one, is always kept.

    Args:
        fanouts: nodes drawn a layer, from the seeds outward; -1 takes all in-edges.
        edge_ids, edge: as for ``NeighborSampler``; an edge tensor ``weight`` multiplies weights.
    """

    def __init__(
        self,
        fanouts: Sequence[int],
        replace: bool = False,
        weights: str | None = None,
        edge_ids: bool = False,
        edge: Sequence[str] = (),
    ) -> None:
        if replace or weights is not None:
            key = "weights" if weights is not None else "replace"
            raise InputError(
                f"sampler.{key}: a layer-wise sampler has a distribution of its own; leave it out"
            )
        if not fanouts or any(int(n) != n or (n < 1 and n != ALL) for n in fanouts):
            raise InputError(
                f"sampler.fanouts: {list(fanouts)} is not valid; give the nodes of each layer, "
                "whole numbers >= 1, or -1 for all in-edges"
            )
        self.fanouts = tuple(int(n) for n in fanouts)
        self.edge_ids = bool(edge_ids)
        self.edge = tuple(edge)
        self._thread = threading.local()

    def __reduce__(self) -> Any:
        return type(self), (self.fanouts, False, None, self.edge_ids, self.edge)

    @abstractmethod
    def _frontier(self, own: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """The nodes whose rows a rank must read: its own, or those of the whole batch."""

    @abstractmethod
    def _masses(
        self, topology: Topology, frontier: np.ndarray, rows: Neighbours
    ) -> tuple[np.ndarray, np.ndarray]:
        """(int64[c] candidates in the order of their original ids, int64[c] running sum of what p
        is proportional to)."""

    def sample(
        self,
        topology: Topology,
        seeds: np.ndarray | Tensor,
        *,
        seed: int,
        index: BatchIndex,
        global_seeds: int | None = None,
    ) -> MiniBatch:
        """As ``NeighborSampler.sample``, of a batch that has these seeds alone."""
        return self.sample_bulk(topology, [Share(index, seeds, global_seeds)], seed=seed)[0]

    def sample_bulk(
        self, topology: Topology, shares: Sequence[Share], *, seed: int
    ) -> list[MiniBatch]:
        """This rank's shares, one after the other; draws are for each ``Share.batch_seeds``."""
        return [self._share(topology, share, seed) for share in shares]

    def _share(self, topology: Topology, share: Share, seed: int) -> MiniBatch:
        own, others = self._numberings(topology.num_nodes)
        seeds = node_ids(share.seeds)
        whole = seeds if share.batch_seeds is None else node_ids(share.batch_seeds)
        own.start(seeds)
        blocks: list[Block] = []
        for hop, size in enumerate(self.fanouts):
            frontier = self._frontier(own.nodes, whole)
            rows = topology.sample(frontier, ALL, 0, edge_ids=self.edge_ids, edge=self.edge)
            key = rng.fold(seed, Stream.LAYER, *share.index, hop)
            drawn, importance = self.draw(topology, frontier, rows, size, key)
            factor = _of_edges(others, drawn, importance, rows.indices)
            others.start(frontier)
            places = others.add(own.nodes.copy())
            block = make_block(_kept(rows, factor, frontier, places), own)
            block.key = rng.fold(seed, Stream.DROPOUT, *share.index, len(self.fanouts) - 1 - hop)
            blocks.append(block)
            others.start(whole)
            others.add(drawn.copy())
            whole = others.nodes.copy()
        return finish(topology, share, seeds, own.nodes, blocks)

    def draw(
        self, topology: Topology, frontier: np.ndarray, rows: Neighbours, size: int, key: int
    ) -> Drawn:
        if size == ALL:
            every = np.unique(rows.indices).astype(np.int64)
            return every, np.ones(every.size)
        candidates, cumulative = self._masses(topology, frontier, rows)
        return draw_nodes(candidates, cumulative, size, key)

    def _numberings(self, num_nodes: int) -> tuple[Relabeller, Relabeller]:
        held: tuple[Relabeller, Relabeller] | None = getattr(self._thread, "held", None)
        if held is None or held[0].num_nodes != num_nodes:
            held = self._thread.held = (Relabeller(num_nodes), Relabeller(num_nodes))
        return held


class LadiesSampler(LayerSampler):
    """LADIES: p proportional to the column sums of Q·(A∘A), Q choosing the rows of the frontier.

    Zou, Hu, Wang, Jiang, Sun, Gu, "Layer-dependent importance sampling for training deep and large
    graph convolutional networks" (NeurIPS 2019). A is the adjacency matrix with rows that sum to 1.
    Every rank reads the rows of the whole batch's frontier.
    """

    def _frontier(self, own: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return whole

    def _masses(
        self, topology: Topology, frontier: np.ndarray, rows: Neighbours
    ) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(topology, MatrixTopology):
            return running_masses(
                topology.squared_columns(frontier),
                topology.original_ids(np.arange(topology.num_nodes)),
            )
        _, numbering = self._numberings(topology.num_nodes)
        numbering.start(frontier)
        place = numbering.add(rows.indices.copy())
        mass = np.zeros(numbering.count, np.int64)
        kernels.squared_masses(rows.indptr, place, mass)
        nodes = numbering.nodes[mass > 0]
        order = np.argsort(topology.original_ids(nodes))
        return nodes[order], np.cumsum(mass[mass > 0][order])


class FastGcnSampler(LayerSampler):
    """FastGCN: one p for all batches, proportional to the column sums of A∘A.

    Chen, Ma, Xiao, "FastGCN: fast learning with graph convolutional networks via importance
    sampling" (ICLR 2018). Every rank draws the same nodes and reads the rows of its own frontier.
    """

    def _frontier(self, own: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return own.copy()

    def _masses(
        self, topology: Topology, frontier: np.ndarray, rows: Neighbours
    ) -> tuple[np.ndarray, np.ndarray]:
        return topology.source_masses()


def draw_nodes(candidates: np.ndarray, cumulative: np.ndarray, size: int, key: int) -> Drawn:
    """``size`` draws with replacement in proportion to the steps of ``cumulative`` int64[c]."""
    if not candidates.size:
        return candidates, np.empty(0)
    times = np.zeros(candidates.size, np.int64)
    kernels.draw_with_replacement(cumulative, np.uint64(key), size, times)
    hit = np.flatnonzero(times)
    mass = np.diff(cumulative, prepend=0)[hit]
    return candidates[hit], times[hit] * (float(cumulative[-1]) / (size * mass))


def _of_edges(
    numbering: Relabeller, drawn: np.ndarray, importance: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """The importance of each edge's source: float64[e]."""
    numbering.start(drawn)
    place = numbering.add(sources.copy())
    factor = np.zeros(numbering.count)
    factor[: drawn.size] = importance
    return factor[place]


def _kept(
    rows: Neighbours, factor: np.ndarray, frontier: np.ndarray, places: np.ndarray
) -> Neighbours:
    """The edges that a block has, with the weights that reach the aggregation."""
    indptr, positions, weight = kernels.keep_edges(
        rows.indptr, rows.indices, factor, frontier, places
    )
    edge = {name: gather(np.ascontiguousarray(t), positions) for name, t in rows.edge.items()}
    if "weight" in edge:
        weight *= edge["weight"].reshape(-1)
    edge["weight"] = weight
    return Neighbours(
        indptr,
        take(np.ascontiguousarray(rows.indices), positions),
        None if rows.edge_ids is None else take(np.ascontiguousarray(rows.edge_ids), positions),
        edge,
    )
