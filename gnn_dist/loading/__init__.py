"""From an epoch plan to ordered mini-batches that are ready when the model wants them."""

from gnn_dist.loading.homes import Homes
from gnn_dist.loading.loader import Loader, Sampler, batch_bytes, draws_in_bulk, rehearse
from gnn_dist.loading.plan import EpochPlan, deal
from gnn_dist.loading.prefetch import Prefetcher
from gnn_dist.loading.windows import Horizon, LoadTimes, timed

__all__ = [
    "EpochPlan",
    "Homes",
    "Horizon",
    "LoadTimes",
    "Loader",
    "Prefetcher",
    "Sampler",
    "batch_bytes",
    "deal",
    "draws_in_bulk",
    "rehearse",
    "timed",
]
