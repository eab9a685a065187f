"""``Block`` and ``MiniBatch``: what a sampler returns and a model takes.

Nodes of a mini-batch have one numbering: seeds first, then by first appearance, hop by hop. The
sources of an outer block are therefore a prefix of the sources of the next inner one, and local id
``k`` of any block is ``input_nodes[k]``.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnn_dist.features import FeatureRows

from gnn_dist.kernels.transpose import transpose


@dataclass(slots=True, eq=False)
class Block:
    """One hop of message flow: CSC over destinations, local ids, destinations first.

    Attributes:
        indptr: int64[num_dst + 1].
        indices: int32[num_edges], local ids of sources, < ``num_src``. The destinations are the
            sources ``0 .. num_dst - 1``.
        num_src: number of source nodes, at least ``num_dst``.
        edge_ids: int64[num_edges] original edge ids, or None.
        weight: float[num_edges] edge weights for aggregation, or None.
        edge: further named edge tensors with ``num_edges`` rows.
        ids: int64[>= num_dst] original ids of (at least) the destinations; for counter-based
            draws inside a model, such as dropout. None where no model needs them.
        key: the key of those draws, made of seed, epoch, batch and layer.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_ids: Tensor | None = None
    weight: Tensor | None = None
    edge: Mapping[str, Tensor] = field(default_factory=dict)
    ids: Tensor | None = None
    key: int = 0
    _transposed: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        held = (self.indptr, self.indices, self.edge_ids, self.weight, self.ids)
        return sum(t.nbytes for t in (*held, *self.edge.values()) if t is not None)

    def degrees(self) -> Tensor:
        """Edges into each destination: int64[num_dst]."""
        return self.indptr.diff()

    def destinations(self) -> Tensor:
        """Local destination of each edge: int64[num_edges]."""
        rows = torch.arange(self.num_dst, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.degrees(), output_size=self.num_edges)

    def edge_index(self) -> Tensor:
        """int64[2, num_edges], sources above destinations, as PyG has it."""
        return torch.stack((self.indices.long(), self.destinations()))

    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """By source: ``(indptr int64[num_src + 1], destinations int32[E], position int64[E])``.

        ``position`` is the edge's place in ``indices``. The edges of a source keep their order, so
        that sums over them do not depend on who sums. Computed once.
        """
        if self._transposed is None and self.indptr.device.type == "cpu":
            by_source = transpose(self.indptr.numpy(), self.indices.numpy(), self.num_src)
            indptr, destinations, position = map(torch.from_numpy, by_source)
            self._transposed = (indptr, destinations, position)
        if self._transposed is None:
            order = torch.sort(self.indices, stable=True).indices
            counts = torch.bincount(self.indices, minlength=self.num_src)
            indptr = torch.zeros(self.num_src + 1, dtype=torch.int64, device=self.indptr.device)
            torch.cumsum(counts, 0, out=indptr[1:])
            self._transposed = (indptr, self.destinations()[order].int(), order)
        return self._transposed

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Block":
        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return Block(
            self.indptr.to(device, non_blocking=non_blocking),
            self.indices.to(device, non_blocking=non_blocking),
            self.num_src,
            move(self.edge_ids),
            move(self.weight),
            {name: t.to(device, non_blocking=non_blocking) for name, t in self.edge.items()},
            move(self.ids),
            self.key,
            None,
        )

    def __repr__(self) -> str:
        return f"Block({self.num_src} -> {self.num_dst}, {self.num_edges} edges)"


class BatchIndex(NamedTuple):
    """Which global batch: ``epoch`` and ``batch`` count from 0."""

    epoch: int
    batch: int


@dataclass(slots=True, eq=False)
class MiniBatch:
    """One rank's share of a global batch.

    Attributes:
        index: which global batch this is a share of.
        blocks: one per layer, the input layer's first.
        seeds: int64[n] global ids of this rank's seed nodes, the destinations of the last block.
        input_nodes: int64[m] global ids, the sources of the first block, numbered as in all blocks.
        x: the rows of ``input_nodes``: float[m, F], or ``FeatureRows`` (see ``gnn_dist.features``)
            where they are left in the feature table for the first layer to read.
        node: named tensors of the seeds (``y``, ...).
        global_seeds: number of seeds of the whole global batch; the loss of a step is the sum over
            seeds of all ranks divided by this number.
    """

    index: BatchIndex
    blocks: list[Block]
    seeds: Tensor
    input_nodes: Tensor
    x: Union[Tensor, "FeatureRows", None] = None
    node: Mapping[str, Tensor] = field(default_factory=dict)
    global_seeds: int = 0

    def edges(self, original_ids: np.ndarray) -> np.ndarray:
        """The sampled edges in original ids: int64[e, 4], rows (hop, source, destination, edge id).

        ``original_ids`` maps global to original ids. Hop 0 is next to the seeds; edge id is -1
        where the sampler was not asked for it.
        """
        nodes = original_ids[self.input_nodes.cpu().numpy()]
        rows = []
        for hop, block in enumerate(reversed(self.blocks)):
            src, dst = block.edge_index().cpu().numpy()
            eid = np.full(src.size, -1) if block.edge_ids is None else block.edge_ids.cpu().numpy()
            rows.append(np.stack((np.full(src.size, hop), nodes[src], nodes[dst], eid), axis=1))
        return np.concatenate(rows).astype(np.int64, copy=False)

    def to_pyg(self) -> Any:
        """As ``torch_geometric.loader.NeighborLoader`` gives a batch (see ``interop.pyg``)."""
        from gnn_dist.interop.pyg import batch_to_data

        return batch_to_data(self)

    def to_dgl(self) -> list[Any]:
        """As DGL's message-flow blocks, for models written in DGL (see ``interop.dgl``)."""
        from gnn_dist.interop.dgl import batch_to_blocks

        return batch_to_blocks(self)

    def digest(self, original_ids: np.ndarray) -> str:
        """``global_digest`` of this batch alone."""
        return global_digest([self], original_ids)


def global_digest(shares: Iterable[MiniBatch], original_ids: np.ndarray) -> str:
    """Digest of a global batch from the shares of its ranks, in original ids.

    Covers the set of seeds, the set of input nodes and, for each hop, the set of sampled edges
    with multiplicity of parallel edges where edge ids are known. It does not depend on how the
    batch was dealt to ranks nor on the order of nodes.
    """
    shares = list(shares)
    sha = hashlib.blake2b(digest_size=16)
    for nodes in ("seeds", "input_nodes"):
        ids = [original_ids[getattr(share, nodes).cpu().numpy()] for share in shares]
        sha.update(np.unique(np.concatenate(ids)).astype(np.int64).tobytes())
    edges = np.concatenate([share.edges(original_ids) for share in shares])
    sha.update(np.unique(edges, axis=0).tobytes())
    return sha.hexdigest()
