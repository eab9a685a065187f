"""Ranks and hosts, exchanges between processes, and launching them."""

from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, LocalExchange, Traffic, request
from gnn_dist.cluster.placement import Placement, PlacementMode
from gnn_dist.cluster.world import World

__all__ = [
    "CollectiveExchange",
    "Exchange",
    "LocalExchange",
    "Placement",
    "PlacementMode",
    "Traffic",
    "World",
    "request",
]
