"""Small jobs for the strategy ``split``, and a graph cut at random."""

import numpy as np
from support.graphs import random_graph

from gnn_dist import config, storage
from gnn_dist.nn import gcn_norm
from gnn_dist.sampling import NeighborSampler

MODELS = {
    "sage": {"hidden": 8, "dropout": 0.3},
    "gcn": {"hidden": 8},
    "gat": {"hidden": 8, "heads": 2},
    "gin": {"hidden": 8},
    "support.models.Layers": {},
}


class Plain(NeighborSampler):
    """A sampler of one's own that takes no ``replace``, no ``weights`` and no edge tensors."""

    def __init__(self, fanouts, edge_ids=False):
        super().__init__(fanouts, edge_ids=edge_ids)


def job(strategy: str, model: str = "sage", batch_size: int = 17, **more) -> config.Config:
    values = {
        "dataset.name": "unused",
        "sampler.fanouts": [4, 3, 3],
        "model.name": model,
        "model.args": MODELS[model],
        "train.strategy": strategy,
        "train.precision": "float64",
        "train.batch_size": batch_size,
        "cluster.placement": "per-rank",
        "seed": 5,
    }
    return config.load(None, {**values, **more})


def cut(num_parts: int) -> storage.PartitionedGraph:
    whole = gcn_norm(random_graph(150, 1200, seed=2))
    assignment = np.random.default_rng(num_parts).integers(0, num_parts, 150).astype(np.int32)
    return storage.assemble(whole, assignment, num_parts)
