"""A known graph: exact inference against PyG, and the published accuracy of GCN."""

import numpy as np
import pytest
import torch

from gnn_dist import config, datasets, storage, strategies
from gnn_dist.cluster import WorkerContext, World
from gnn_dist.nn import gcn_norm
from gnn_dist.storage import PartitionedGraph
from gnn_dist.training import worker
from gnn_dist.training.worker import Payload

GCN = {
    "dataset.name": "planetoid",
    "dataset.transforms": ["gcn_norm"],
    "model.name": "gcn",
    "model.args": {"hidden": 16, "dropout": 0.5, "input_dropout": 0.5},
    "sampler.fanouts": [-1, -1],
    "train.batch_size": 140,
    "train.epochs": 200,
    "train.lr": 0.01,
    "train.weight_decay": 5e-4,
    "train.evaluate_every": 0,
    "train.baselines": False,
    "loader.prefetch": 2,
}


@pytest.fixture(scope="module")
def cora(shared_data):
    return datasets.load("planetoid", {"path": str(shared_data / "planetoid"), "name": "cora"})


def test_exact_inference_equals_a_full_graph_pass_of_pyg(cora):
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = gcn_norm(cora)
    job = config.load(None, {**GCN, "train.precision": "float64"})
    assignment = np.random.default_rng(0).integers(0, 3, graph.num_nodes).astype(np.int32)
    strategy = strategies.build(job, World.local(), storage.assemble(graph, assignment, 3))
    ids, output, target = strategy.predict("test")

    convs = [pyg.GCNConv(1433, 16).double(), pyg.GCNConv(16, 7).double()]
    data = cora.to_pyg()
    with torch.no_grad():
        ours = [layer.conv for layer in strategy.model.layers]
        for theirs, mine in zip(convs, ours, strict=True):
            named = dict(mine.named_parameters())
            weight = next(v for v in named.values() if v.ndim == 2)
            theirs.lin.weight.copy_(weight)
            theirs.bias.copy_(next(v for v in named.values() if v.ndim == 1))
        h = convs[0](data.x.double(), data.edge_index).relu()
        exact = convs[1](h, data.edge_index)
    assert torch.equal(ids, torch.from_numpy(cora.splits["test"]))
    # the normalisation is stored in float32
    assert torch.allclose(output, exact[ids], rtol=1e-5, atol=1e-6)
    assert torch.equal(target, data.y[ids])


def test_gcn_reaches_its_published_accuracy(cora, tmp_path):
    graph = gcn_norm(cora)
    path = tmp_path / "partition"
    storage.write(PartitionedGraph.from_graph(graph), path, partitioner={"name": "one"})
    found = []
    for seed in range(3):
        job = config.load(None, {**GCN, "seed": seed})
        folder = tmp_path / str(seed)
        folder.mkdir()
        context = WorkerContext(World.local(), show=lambda text: None, keep=lambda text: None)
        result = worker.train(context, Payload(job, path, folder))
        found.append(100 * result.metrics["test"]["accuracy"])
    # Kipf & Welling (2017), table 2: 81.5
    assert np.mean(found) == pytest.approx(81.0, abs=1.5), found
