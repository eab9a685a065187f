"""PyG's data and models work on our batches unchanged."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph

torch_geometric = pytest.importorskip("torch_geometric")
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import GraphSAGE  # noqa: E402
from torch_geometric.utils import k_hop_subgraph  # noqa: E402

from gnn_dist.batch import BatchIndex  # noqa: E402
from gnn_dist.errors import InputError  # noqa: E402
from gnn_dist.graph import Graph  # noqa: E402
from gnn_dist.interop.pyg import NeighborLoader  # noqa: E402
from gnn_dist.sampling import LocalTopology, NeighborSampler  # noqa: E402
from gnn_dist.storage import PartitionedGraph  # noqa: E402

FIRST = BatchIndex(0, 0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(100, 700, seed=3)


def our_batch(graph: Graph, seeds: np.ndarray, fanouts, index=FIRST):
    topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    sampler = NeighborSampler(fanouts, edge_ids=True)
    batch = sampler.sample(topology, seeds, seed=0, index=index)
    batch.x = torch.from_numpy(graph.node["x"])[batch.input_nodes]
    batch.node = {"y": torch.from_numpy(graph.node["y"])[batch.seeds]}
    return batch


def test_a_graph_survives_the_way_there_and_back(graph):
    data = graph.to_pyg()
    assert data.validate()
    back = Graph.from_pyg(data)
    assert back.digest == graph.digest


def test_edges_keep_the_order_of_the_edge_list():
    src, dst = np.array([3, 0, 2, 1]), np.array([1, 0, 1, 0])
    weight = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    data = Graph.from_edges(src, dst, 4, edge={"weight": weight}).to_pyg()
    assert data.edge_index.tolist() == [src.tolist(), dst.tolist()]
    assert data.edge_weight.tolist() == weight.tolist()


@pytest.mark.parametrize("fanouts", [[3, 2], [4, 3, 2], [-1, -1]])
def test_a_batch_is_the_one_that_the_loader_draws(graph, fanouts):
    loader = NeighborLoader(graph, fanouts, graph.splits["train"], batch_size=7)
    for number, data in enumerate(loader):
        seeds = graph.splits["train"][number * 7 : number * 7 + 7]
        batch = our_batch(graph, seeds, fanouts, BatchIndex(0, number)).to_pyg()
        for name in ("n_id", "e_id", "edge_index", "x"):
            assert torch.equal(batch[name], data[name]), name
        for name in ("num_sampled_nodes", "num_sampled_edges", "batch_size"):
            assert batch[name] == data[name], name
        assert torch.equal(batch.y, data.y[: data.batch_size])


def test_a_batch_is_a_subgraph_that_is_expanded_once_a_node(graph):
    data = next(iter(NeighborLoader(graph, [3, 2], graph.splits["train"], batch_size=9)))
    whole = graph.to_pyg()
    assert torch.equal(whole.edge_index[:, data.e_id], data.n_id[data.edge_index])
    assert torch.equal(whole.x[data.n_id], data.x)
    assert torch.equal(whole.edge_weight[data.e_id], data.edge_weight)
    assert sum(data.num_sampled_nodes) == data.num_nodes == data.n_id.unique().numel()
    assert sum(data.num_sampled_edges) == data.edge_index.shape[1]
    into = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    ends = np.cumsum(data.num_sampled_nodes)
    assert into[: ends[0]].max() <= 3
    assert into[ends[0] : ends[1]].max() <= 2
    assert into[ends[1] :].sum() == 0
    assert torch.equal(data.input_id, torch.arange(9))


def test_all_neighbours_are_the_k_hop_subgraph(graph):
    seeds = graph.splits["train"][:4]
    data = next(iter(NeighborLoader(graph, [-1, -1], seeds, batch_size=4)))
    whole = graph.to_pyg()
    nodes, _, _, _ = k_hop_subgraph(torch.from_numpy(seeds), 2, whole.edge_index)
    assert sorted(data.n_id.tolist()) == sorted(nodes.tolist())


def test_pygs_model_runs_unchanged_and_trimmed(graph):
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    seeds = graph.splits["train"][:10]
    exact = model(*(graph.to_pyg()[k] for k in ("x", "edge_index")))[torch.from_numpy(seeds)]
    data = our_batch(graph, seeds, [-1, -1]).to_pyg()
    whole = model(data.x, data.edge_index)[: data.batch_size]
    trimmed = model(
        data.x,
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )[: data.batch_size]
    assert torch.allclose(whole, exact, atol=1e-5)
    assert torch.allclose(trimmed, exact, atol=1e-5)


def test_the_loader_trains_pygs_model(graph):
    data = graph.to_pyg()
    loader = NeighborLoader(data, [5, 5], data.train_mask, batch_size=16, shuffle=True, seed=1)
    model = GraphSAGE(5, 16, num_layers=2, out_channels=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(15):
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])


def test_batches_drawn_ahead_are_the_same_and_are_transformed(graph):
    def loader(**more) -> NeighborLoader:
        return NeighborLoader(graph, [3, 2], batch_size=7, shuffle=True, seed=4, **more)

    def mark(data):
        data.seen = data.num_nodes
        return data

    ahead = list(loader(num_workers=3, persistent_workers=True, transform=mark))
    for one, other in zip(loader(), ahead, strict=True):
        assert torch.equal(one.n_id, other.n_id)
        assert torch.equal(one.edge_index, other.edge_index)
        assert other.seen == one.num_nodes


def test_epochs_differ_and_loaders_of_one_seed_agree(graph):
    make = lambda: NeighborLoader(graph, [3], batch_size=20, shuffle=True, seed=4)  # noqa: E731
    loader = make()
    first, second = [[d.n_id for d in loader] for _ in range(2)]
    assert len(loader) == len(first) == 5
    assert sorted(torch.cat([d[:20] for d in first]).tolist()) == list(range(100))
    assert any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )
    assert all(torch.equal(a, b.n_id) for a, b in zip(first, make(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_neighbors": [0]}, "fanouts"),
        ({"num_neighbors": [2], "input_nodes": np.array([100])}, "0 to 99"),
        ({"num_neighbors": [2], "input_nodes": np.ones(7, bool)}, "mask"),
        ({"num_neighbors": [2], "batch_size": 0}, "batch_size"),
    ],
)
def test_bad_arguments_are_named(graph, arguments, words):
    with pytest.raises(InputError, match=words):
        next(iter(NeighborLoader(graph, **arguments)))


def test_a_batch_without_edges():
    graph = Graph.from_edges(
        np.empty(0, int), np.empty(0, int), 3, node={"x": np.ones((3, 2), np.float32)}
    )
    data = next(iter(NeighborLoader(graph, [2, 2], batch_size=3)))
    assert isinstance(data, Data)
    assert data.edge_index.shape == (2, 0)
    assert data.num_sampled_nodes == [3, 0, 0]


ENDS = torch.tensor([[0, 1, 2], [1, 2, 0]])
TYPED = torch_geometric.data.HeteroData()
TYPED["a", "to", "a"].edge_index = ENDS
BAD = {
    "typed": (TYPED, ["HeteroData", "to_homogeneous()"]),
    "no edges given": (Data(x=torch.ones(3, 2)), ["data.edge_index", "[2, E]"]),
    "no data": (None, ["NoneType", "torch_geometric.data.Data"]),
    "ids as mask": (
        Data(edge_index=ENDS, num_nodes=3, train_mask=torch.tensor([2, 1, 0])),
        ["data.train_mask", "int64", "one boolean a node"],
    ),
    "short mask": (
        Data(edge_index=ENDS, num_nodes=3, val_mask=torch.tensor([True])),
        ["data.val_mask", "(1,)", "3 nodes"],
    ),
    "edge tensor": (
        Data(edge_index=ENDS, num_nodes=3, edge_attr=torch.ones(2, 5)),
        ["data.edge_attr", "(2, 5)", "3 edges"],
    ),
    "sparse": (Data(edge_index=ENDS, x=torch.eye(3).to_sparse()), ["data.x", "to_dense()"]),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_is_no_graph_is_named(case):
    data, words = BAD[case]
    with pytest.raises(InputError) as error:
        Graph.from_pyg(data)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        Data(x=torch.randn(4, 2), edge_index=torch.empty(2, 0, dtype=torch.long)),
        Data(x=torch.randn(9, 2), edge_index=ENDS),
        Data(edge_index=ENDS.int(), num_nodes=3),
        Data(edge_index=ENDS, num_nodes=3, edge_attr=torch.rand(3), edge_weight=torch.rand(3, 1)),
        Data(edge_index=ENDS, num_nodes=3, train_mask=torch.tensor([1, 0, 1], dtype=torch.uint8)),
    ],
)
def test_odd_graphs_survive_too(data):
    graph = Graph.from_pyg(data)
    back = graph.to_pyg()
    assert torch.equal(back.edge_index, data.edge_index.long())
    for name in ("x", "edge_attr", "edge_weight"):
        if name in data:
            assert torch.equal(back[name], data[name])
    if "train_mask" in data:
        assert torch.equal(back.train_mask, data.train_mask.bool())
    assert Graph.from_pyg(back).digest == graph.digest


def test_bfloat16_becomes_float32():
    x = torch.randn(3, 2).bfloat16()
    graph = Graph.from_pyg(Data(x=x, edge_index=ENDS))
    np.testing.assert_array_equal(graph.node["x"], x.float().numpy())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input_nodes": []}, ["input_nodes", "0 nodes make no batch"]),
        ({"input_nodes": torch.zeros(100, dtype=torch.bool)}, ["0 nodes make no batch"]),
        ({"input_nodes": torch.tensor([1.5])}, ["input_nodes", "float32"]),
        ({"input_nodes": torch.tensor([[1, 2]])}, ["input_nodes", "(1, 2)"]),
        ({"batch_size": 101, "drop_last": True}, ["100 nodes make no batch of 101"]),
        ({"num_workers": -1}, ["num_workers", "-1"]),
        ({"batch_size": 2.5}, ["batch_size", "2.5"]),
        ({"num_neighbors": 3}, ["num_neighbors", "[10, 5]"]),
    ],
)
def test_a_loader_of_nothing_is_refused(graph, arguments, words):
    with pytest.raises(InputError) as error:
        NeighborLoader(graph, **{"num_neighbors": [2], **arguments})
    for word in words:
        assert word in str(error.value)


def test_a_batch_larger_than_the_graph_holds_all(graph):
    (batch,) = NeighborLoader(graph, [-1], batch_size=1000)
    assert sorted(batch.n_id.tolist()) == list(range(100))
    assert sorted(batch.e_id.tolist()) == list(range(700))
