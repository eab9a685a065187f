"""From an epoch plan to ordered mini-batches that are ready when the model wants them."""

from gnn_dist.loading.homes import Homes
from gnn_dist.loading.loader import Loader, LoadTimes, Sampler, batch_bytes
from gnn_dist.loading.plan import EpochPlan, deal
from gnn_dist.loading.prefetch import Prefetcher

__all__ = [
    "EpochPlan",
    "Homes",
    "LoadTimes",
    "Loader",
    "Prefetcher",
    "Sampler",
    "batch_bytes",
    "deal",
]
