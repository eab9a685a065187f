"""Exact inference equals a pass over the whole graph, wherever the partitions are."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.ranks import run_ranks
from torch import nn

from gnn_dist import config, storage, strategies
from gnn_dist.cluster import World
from gnn_dist.graph import Graph
from gnn_dist.nn import gcn_norm

MODELS = {
    "sage": {"hidden": 8, "dropout": 0.5},
    "gcn": {"hidden": 8},
    "gat": {"hidden": 8, "heads": 2},
    "gin": {"hidden": 8, "norm": "layer", "residual": True},
    f"{__name__}.Own": {},
}


class Own(nn.Module):
    """A model of one's own, without ``forward_layer``: evaluated on full mini-batches."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.one = nn.Linear(in_features, 6)
        self.two = nn.Linear(6, out_features)

    def forward(self, x, blocks):
        h = x.materialise() if hasattr(x, "materialise") else x
        for layer, block in zip((self.one, self.two), blocks, strict=True):
            total = torch.zeros(block.num_dst, h.shape[1], dtype=h.dtype)
            total.index_add_(0, block.destinations(), h[block.indices.long()])
            h = layer(h[: block.num_dst] + total).tanh()
        return h


def graph() -> Graph:
    return gcn_norm(random_graph(120, 900, seed=8))


def job(model: str, mode: str) -> config.Config:
    return config.load(
        None,
        {
            "dataset.name": "unused",
            "model.name": model,
            "model.args": MODELS[model],
            "sampler.fanouts": [3, 3],
            "train.precision": "float64",
            "cluster.placement": mode,
            "seed": 1,
        },
    )


def predict(world: World, num_parts: int, mode: str) -> dict[str, tuple]:
    assignment = np.random.default_rng(0).integers(0, num_parts, 120).astype(np.int32)
    parts = storage.assemble(graph(), assignment, num_parts)
    found = {}
    for name in MODELS:
        strategy = strategies.build(job(name, mode), world, parts)
        strategy._inference._chunk = 16
        found[name] = strategy.predict("test")
    return found


def whole_graph(name: str) -> tuple[np.ndarray, torch.Tensor]:
    """One forward pass with a block of all nodes and all edges for each layer."""
    from gnn_dist.batch import Block

    whole = graph()
    strategy = strategies.build(
        job(name, "auto"), World.local(), storage.PartitionedGraph.from_graph(whole)
    )
    edge = {n: torch.from_numpy(whole.edge_in_csc_order(n)) for n in whole.edge}
    block = Block(torch.from_numpy(whole.indptr), torch.from_numpy(whole.indices), 120, edge=edge)
    with torch.no_grad():
        x = torch.from_numpy(whole.node["x"]).double()
        output = strategy.model.eval()(x, [block, block])
    ids = whole.splits["test"]
    return ids, output[ids]


@pytest.mark.parametrize(
    ("size", "num_parts", "mode"),
    [(1, 1, "auto"), (1, 3, "auto"), (2, 3, "auto"), (2, 2, "per-rank"), (4, 2, "per-rank")],
)
def test_predictions_equal_one_pass_over_the_whole_graph(size, num_parts, mode):
    if size == 1:
        found = predict(World.local(), num_parts, mode)
    else:
        first, *others = run_ranks(predict, size, (num_parts, mode), timeout=120)
        found = first
        assert all(value is None for other in others for value in other.values())
    for name in MODELS:
        ids, output = whole_graph(name)
        found_ids, found_output, found_target = found[name]
        assert np.array_equal(found_ids.numpy(), ids)
        assert torch.allclose(found_output, output, rtol=1e-10, atol=1e-12), name
        assert np.array_equal(found_target.numpy(), graph().node["y"][ids])
