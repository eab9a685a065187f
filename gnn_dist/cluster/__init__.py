"""Ranks and hosts, exchanges between processes, and launching them."""

from gnn_dist.cluster.context import Terminal, WorkerContext
from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, LocalExchange, Traffic, request
from gnn_dist.cluster.grid import Grid
from gnn_dist.cluster.launch import Workers, launch
from gnn_dist.cluster.placement import Placement, PlacementMode
from gnn_dist.cluster.shared import SharedExchange, share
from gnn_dist.cluster.tuning import tune_allocator
from gnn_dist.cluster.world import World

__all__ = [
    "CollectiveExchange",
    "Exchange",
    "Grid",
    "LocalExchange",
    "Placement",
    "PlacementMode",
    "SharedExchange",
    "Terminal",
    "Traffic",
    "WorkerContext",
    "Workers",
    "World",
    "launch",
    "request",
    "share",
    "tune_allocator",
]
