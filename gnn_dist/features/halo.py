"""The halo of a host: nodes of other hosts that its edges come from."""

import numpy as np

from gnn_dist.cluster import Placement
from gnn_dist.storage import PartitionedGraph


def halo_of_host(graph: PartitionedGraph, placement: Placement) -> np.ndarray:
    """Global ids of sources of edges into this host's nodes, owned by other hosts: int64[h].

    Ascending. Parts that share this host are no halo of each other.
    """
    parts = placement.local_parts
    ids = np.unique(np.concatenate([np.empty(0, np.int64), *(graph.part(p).halo for p in parts)]))
    here = np.array([placement.is_local(p) for p in range(graph.num_parts)])
    return ids[~here[graph.owner(ids)]]


def cache_rows(halo: int, row_bytes: int, fraction: float | None, max_bytes: int | None) -> int:
    """Rows that a cache may keep: the smaller of the limits given, 0 where there is none."""
    limits = [] if fraction is None else [int(fraction * halo)]
    if max_bytes is not None:
        limits.append(max_bytes // max(row_bytes, 1))
    return min(limits, default=0)
