"""``LaborSampler``: neighbours drawn by one variate a source, so that rows share their sources."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnn_dist import rng
from gnn_dist.batch import BatchIndex
from gnn_dist.errors import InputError
from gnn_dist.rng import Stream
from gnn_dist.sampling.neighbor import NeighborSampler
from gnn_dist.sampling.topology import Keys, Neighbours, Topology


@dataclass(frozen=True, init=False)
class LaborSampler(NeighborSampler):
    """LABOR-0: fewer vertices than neighbour sampling at the same expected degree.

    Balin and Çatalyürek, "Layer-neighbor sampling: defusing neighborhood explosion in GNNs"
    (NeurIPS 2023). An edge t → s of a node s with d in-edges is drawn where the variate of t, one
    for each (epoch, batch), is below fan-out / d: min(fan-out, d) edges in the mean. A row that
    would be empty takes the source with the least variate, so that without parallel edges every
    set of a size is as likely as another, and the mean over the drawn edges is an unbiased estimate
    of the mean over all. A draw depends on s and t alone: a global batch may be dealt to ranks in
    any way.
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
                f"sampler.{key}: labor draws by one variate a source, without replacement and "
                "without weights; leave it out, or use the sampler 'neighbor'"
            )
        super().__init__(fanouts, edge_ids=edge_ids, edge=edge)

    def key(self, seed: int, index: BatchIndex, hop: int) -> int:
        return rng.fold(seed, Stream.NEIGHBOURS, index.epoch, index.batch)

    def draw(self, topology: Topology, nodes: np.ndarray, fanout: int, keys: Keys) -> Neighbours:
        return topology.sample(
            nodes,
            fanout,
            keys,
            shared=True,
            edge_ids=self.edge_ids,
            edge=self.edge,
        )
