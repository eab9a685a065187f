"""Feature rows of nodes: read from this host's parts, cached, or asked from their owners."""

from gnn_dist.features.counts import Counts
from gnn_dist.features.lookahead import Lookahead
from gnn_dist.features.owners import AllParts
from gnn_dist.features.policies import (
    BUILTIN,
    CacheContext,
    CachePolicy,
    Degree,
    NoCache,
    Presample,
    Ranked,
    Round,
    Vip,
)
from gnn_dist.features.predict import Prediction, predict
from gnn_dist.features.rows import FeatureRows
from gnn_dist.features.score import Score
from gnn_dist.features.store import FeatureStore
from gnn_dist.features.vip import inclusion_probability
from gnn_dist.features.workload import Workload, seed_probability

__all__ = [
    "BUILTIN",
    "AllParts",
    "CacheContext",
    "CachePolicy",
    "Counts",
    "Degree",
    "FeatureRows",
    "FeatureStore",
    "Lookahead",
    "NoCache",
    "Prediction",
    "Presample",
    "Ranked",
    "Round",
    "Score",
    "Vip",
    "Workload",
    "inclusion_probability",
    "predict",
    "seed_probability",
]
