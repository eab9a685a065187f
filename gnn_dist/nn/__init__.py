"""Layers, models and tasks over blocks."""

from gnn_dist.nn.build import BUILTIN, build_model
from gnn_dist.nn.convs import GATConv, GCNConv, GINConv, SAGEConv
from gnn_dist.nn.models import GAT, GCN, GIN, GNN, SAGE
from gnn_dist.nn.prepare import add_self_loops, gcn_norm
from gnn_dist.nn.tasks import Task

TRANSFORMS = {
    "add_self_loops": "gnn_dist.nn.prepare.add_self_loops",
    "gcn_norm": "gnn_dist.nn.prepare.gcn_norm",
}
"""Short names of what can be done to a graph before it is partitioned."""

__all__ = [
    "BUILTIN",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "SAGE",
    "TRANSFORMS",
    "GATConv",
    "GCNConv",
    "GINConv",
    "SAGEConv",
    "Task",
    "add_self_loops",
    "build_model",
    "gcn_norm",
]
