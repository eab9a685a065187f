"""Feature rows of nodes: read from this host's parts, cached, or asked from their owners."""

from gnn_dist.features.counts import Counts
from gnn_dist.features.policies import BUILTIN, CacheContext, CachePolicy, Degree, NoCache, Round
from gnn_dist.features.rows import FeatureRows
from gnn_dist.features.store import FeatureStore

__all__ = [
    "BUILTIN",
    "CacheContext",
    "CachePolicy",
    "Counts",
    "Degree",
    "FeatureRows",
    "FeatureStore",
    "NoCache",
    "Round",
]
