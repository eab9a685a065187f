"""``NeighborSampler``: node-wise neighbour sampling, the same code over every topology."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.rng import Stream
from gnn_dist.sampling.relabel import Relabeller
from gnn_dist.sampling.topology import ALL, Keys, Neighbours, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One rank's share of a global batch, before it is sampled.

    Attributes:
        index: which global batch.
        seeds: int64[n] *global* ids, distinct.
        global_seeds: how many seeds the whole global batch has; these alone where None.
        batch_seeds: all of them, global ids, for samplers whose draws depend on the whole batch.
    """

    index: BatchIndex
    seeds: np.ndarray | Tensor
    global_seeds: int | None = None
    batch_seeds: np.ndarray | None = None


@dataclass(frozen=True, init=False)
class NeighborSampler:
    """Draws up to ``fanouts[h]`` in-edges of every node reached in fewer than ``h + 1`` hops.

    Hamilton, Ying, Leskovec, "Inductive representation learning on large graphs" (2017). The draw
    of a node in a hop depends on (seed, epoch, batch, hop, original id) alone. Several threads may
    sample at once with one sampler.

    Attributes:
        fanouts: one number a layer, from the seeds outward; -1 takes all in-edges.
        replace: draw with replacement.
        weights: the edge tensor that holds non-negative weights, or None for a uniform draw. An
            edge of weight 0 is never drawn, except by fan-out -1, which takes every edge.
        edge_ids: whether blocks carry original edge ids.
        edge: edge tensors that blocks carry; ``weight`` becomes ``Block.weight``.
    """

    fanouts: tuple[int, ...]
    replace: bool
    weights: str | None
    edge_ids: bool
    edge: tuple[str, ...]
    _thread: threading.local = field(repr=False, compare=False)

    def __init__(
        self,
        fanouts: Sequence[int],
        replace: bool = False,
        weights: str | None = None,
        edge_ids: bool = False,
        edge: Sequence[str] = (),
    ) -> None:
        if not fanouts:
            raise InputError("sampler.fanouts: is empty; give one number a layer, as in [10, 5]")
        for fanout in fanouts:
            if isinstance(fanout, bool) or int(fanout) != fanout or (fanout < 1 and fanout != ALL):
                raise InputError(
                    f"sampler.fanouts: {fanout} is not valid; give whole numbers "
                    ">= 1, or -1 for all"
                )
        set_ = object.__setattr__
        set_(self, "fanouts", tuple(int(fanout) for fanout in fanouts))
        set_(self, "replace", bool(replace))
        set_(self, "weights", weights)
        set_(self, "edge_ids", bool(edge_ids))
        set_(self, "edge", tuple(edge))
        set_(self, "_thread", threading.local())

    def __reduce__(self) -> Any:
        return type(self), (self.fanouts, self.replace, self.weights, self.edge_ids, self.edge)

    def sample(
        self,
        topology: Topology,
        seeds: np.ndarray | Tensor,
        *,
        seed: int,
        index: BatchIndex,
        global_seeds: int | None = None,
    ) -> MiniBatch:
        """One rank's share of global batch ``index``, without features.

        Args:
            seeds: int64[n] *global* ids, distinct.
            seed: seed of the run.
            global_seeds: seeds of the whole global batch; these alone where None.

        Raises ``InputError`` for a seed that is repeated or out of range, and for an edge tensor
        that the graph does not have.
        """
        return self._sample(topology, [Share(index, seeds, global_seeds)], seed)[0]

    def sample_bulk(
        self, topology: Topology, shares: Sequence[Share], *, seed: int
    ) -> list[MiniBatch]:
        """The same mini-batches as one ``sample`` after the other, in one round a hop for all.

        Tripathy, Yelick, Buluç, "Distributed matrix-based sampling for graph neural network
        training" (MLSys 2024) sample many batches at once to save rounds of communication; where
        there are none, the batches are drawn one by one.
        """
        if topology.collective:
            return self._sample(topology, shares, seed)
        return [self._sample(topology, [share], seed)[0] for share in shares]

    def _sample(self, topology: Topology, shares: Sequence[Share], seed: int) -> list[MiniBatch]:
        numbering = self._numbering(topology.num_nodes)
        seeds = [node_ids(share.seeds) for share in shares]
        nodes = list(seeds)  # of each batch, as far as it is numbered
        blocks: list[list[Block]] = [[] for _ in shares]
        alone = len(shares) == 1
        for ids in seeds:  # what cannot be used fails before anything is asked of other ranks
            numbering.start(ids)
        for hop, fanout in enumerate(self.fanouts):
            bounds = np.zeros(len(shares) + 1, np.int64)
            np.cumsum([ids.size for ids in nodes], out=bounds[1:])
            keys = Keys(tuple(self.key(seed, share.index, hop) for share in shares), bounds)
            drawn = self.draw(topology, nodes[0] if alone else np.concatenate(nodes), fanout, keys)
            layer = len(self.fanouts) - 1 - hop
            for b, (share, rows) in enumerate(zip(shares, split(drawn, bounds), strict=True)):
                if not alone:  # one table numbers all batches: each enters anew
                    numbering.start(nodes[b])
                block = make_block(rows, numbering)
                block.key = rng.fold(seed, Stream.DROPOUT, *share.index, layer)
                blocks[b].append(block)
                nodes[b] = numbering.nodes if alone else numbering.nodes.copy()
        return [
            finish(topology, share, ids, reached, made)
            for share, ids, reached, made in zip(shares, seeds, nodes, blocks, strict=True)
        ]

    def key(self, seed: int, index: BatchIndex, hop: int) -> int:
        """The key of all draws of a hop."""
        return rng.fold(seed, Stream.NEIGHBOURS, index.epoch, index.batch, hop)

    def draw(self, topology: Topology, nodes: np.ndarray, fanout: int, keys: Keys) -> Neighbours:
        """The in-edges of ``nodes`` (int64[n], global ids) that one hop takes."""
        return topology.sample(
            nodes,
            fanout,
            keys,
            replace=self.replace,
            weights=self.weights,
            edge_ids=self.edge_ids,
            edge=self.edge,
        )

    def _numbering(self, num_nodes: int) -> Relabeller:
        """This thread's relabeller."""
        held: Relabeller | None = getattr(self._thread, "relabeller", None)
        if held is None or held.num_nodes != num_nodes:
            held = self._thread.relabeller = Relabeller(num_nodes)
        return held


def node_ids(nodes: np.ndarray | Tensor, name: str = "seeds") -> np.ndarray:
    """``nodes`` as a contiguous int64[n] array, or an ``InputError``."""
    array = np.asarray(nodes)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name}: must be one-dimensional whole numbers (global node ids), "
            f"these have dtype {array.dtype} and shape {array.shape}"
        )
    return np.ascontiguousarray(array, np.int64)


def split(drawn: Neighbours, bounds: np.ndarray) -> Iterator[Neighbours]:
    """The rows ``bounds[g] .. bounds[g + 1] - 1`` of each group, as views."""
    if bounds.size == 2:
        yield drawn
        return
    for low, high in itertools.pairwise(bounds.tolist()):
        first, last = int(drawn.indptr[low]), int(drawn.indptr[high])
        yield Neighbours(
            drawn.indptr[low : high + 1] - first,
            drawn.indices[first:last],
            None if drawn.edge_ids is None else drawn.edge_ids[first:last],
            {name: rows[first:last] for name, rows in drawn.edge.items()},
        )


def finish(
    topology: Topology, share: Share, seeds: np.ndarray, nodes: np.ndarray, blocks: list[Block]
) -> MiniBatch:
    """The mini-batch of blocks in the order of hops; ``nodes`` int64[m] by local id, copied."""
    input_nodes = torch.from_numpy(nodes.copy())
    ids = torch.from_numpy(topology.original_ids(input_nodes.numpy()))
    for block in blocks:
        block.ids = ids
    return MiniBatch(
        share.index,
        blocks[::-1],
        torch.from_numpy(seeds),
        input_nodes,
        global_seeds=seeds.size if share.global_seeds is None else share.global_seeds,
    )


def make_block(drawn: Neighbours, numbering: Relabeller) -> Block:
    """A block over what ``numbering`` holds, which new sources are added to."""
    edge = {name: torch.from_numpy(rows) for name, rows in drawn.edge.items()}
    indices = torch.from_numpy(numbering.add(drawn.indices))
    return Block(
        torch.from_numpy(drawn.indptr),
        indices,
        numbering.count,
        None if drawn.edge_ids is None else torch.from_numpy(drawn.edge_ids),
        edge.pop("weight", None),
        edge,
    )


def full_neighbour_block(
    topology: Topology,
    nodes: np.ndarray | Tensor,
    *,
    edge_ids: bool = False,
    edge: Sequence[str] = (),
    numbering: Relabeller | None = None,
) -> tuple[Block, np.ndarray]:
    """All in-edges of ``nodes`` (int64[n] global ids, distinct), for exact layer-wise inference.

    Returns the block and its sources' global ids, int64[num_src], ``nodes`` first. ``numbering``
    may be kept from call to call to save its table of 8 bytes a node. Collective where the
    topology is.
    """
    nodes = node_ids(nodes, "nodes")
    if numbering is None:
        numbering = Relabeller(topology.num_nodes)
    numbering.start(nodes, "nodes")
    drawn = topology.sample(nodes, ALL, 0, edge_ids=edge_ids, edge=edge)
    block = make_block(drawn, numbering)
    return block, numbering.nodes.copy()
