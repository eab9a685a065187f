"""Models on full neighbourhoods equal PyG's layers on the whole graph; dropout, seeds, mistakes."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from torch import nn

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.graph import Graph
from gnn_dist.nn import GAT, GCN, GIN, SAGE, add_self_loops, build_model, gcn_norm
from gnn_dist.nn.convs import GATConv, GCNConv, GINConv, SAGEConv


def whole_graph_block(graph: Graph) -> Block:
    edge = {name: torch.from_numpy(graph.edge_in_csc_order(name)) for name in graph.edge}
    return Block(
        torch.from_numpy(graph.indptr),
        torch.from_numpy(graph.indices),
        graph.num_nodes,
        edge=edge,
        ids=torch.arange(graph.num_nodes),
        key=7,
    )


def edge_index(graph: Graph) -> torch.Tensor:
    return torch.from_numpy(np.stack((graph.indices, graph.destinations()))).long()


@pytest.fixture
def pyg():
    return pytest.importorskip("torch_geometric.nn")


@pytest.fixture
def graph() -> Graph:
    return random_graph(seed=3, features=12)


@pytest.fixture
def x(graph: Graph) -> torch.Tensor:
    return torch.from_numpy(graph.node["x"]).double()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("aggregator", ["mean", "max", "sum"])
@pytest.mark.parametrize(("n", "m"), [(12, 5), (12, 40), (12, 1)])
def test_sage_equals_pyg(pyg, graph, x, aggregator, n, m) -> None:
    ours = SAGEConv(n, m, aggregator=aggregator, normalize=True).double()
    theirs = pyg.SAGEConv(n, m, aggr=aggregator, normalize=True).double()
    with torch.no_grad():
        theirs.lin_r.weight.copy_(ours.weight[:, :n])
        theirs.lin_l.weight.copy_(ours.weight[:, n:])
        theirs.lin_l.bias.copy_(ours.bias)
    close(ours(x, whole_graph_block(graph)), theirs(x, edge_index(graph)))


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_equals_pyg(pyg, graph, x, m, weighted) -> None:
    ours = GCNConv(12, m).double()
    theirs = pyg.GCNConv(12, m).double()
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.weight)
        ours.bias.normal_()
        theirs.bias.copy_(ours.bias)
    # PyG keeps the weight of a loop that exists; this package's loops have weight 1
    keep = graph.indices != graph.destinations()
    loop_free = Graph.from_edges(
        graph.indices[keep],
        graph.destinations()[keep],
        graph.num_nodes,
        edge={"weight": graph.edge_in_csc_order("weight")[keep]},
    )
    weight = torch.from_numpy(loop_free.edge_in_csc_order("weight")).double()
    prepared = gcn_norm(loop_free, "weight" if weighted else None)
    expected = theirs(x, edge_index(loop_free), weight if weighted else None)
    torch.testing.assert_close(
        ours(x, whole_graph_block(prepared)), expected, rtol=1e-5, atol=1e-6
    )  # the edge tensor is float32


def test_gcn_norm_replaces_the_loops_that_a_graph_has(pyg, graph) -> None:
    prepared = gcn_norm(graph)
    loops = prepared.indices == prepared.destinations()
    assert loops.sum() == graph.num_nodes
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(dense, (graph.destinations(), graph.indices), 1)
    np.fill_diagonal(dense, 1)
    degree = dense.sum(1)
    expected = dense / np.sqrt(degree[:, None] * degree[None, :])
    ours = np.zeros_like(dense)
    values = prepared.edge_in_csc_order("gcn") / prepared.in_degrees()[prepared.destinations()]
    np.add.at(ours, (prepared.destinations(), prepared.indices), values)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize(("heads", "concat"), [(1, True), (4, True), (3, False)])
def test_gat_equals_pyg(pyg, graph, x, heads, concat) -> None:
    ours = GATConv(12, 6, heads=heads, concat=concat).double()
    theirs = pyg.GATConv(12, 6, heads=heads, concat=concat).double()
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.weight)
        theirs.att_src.copy_(ours.att_src[None])
        theirs.att_dst.copy_(ours.att_dst[None])
        ours.bias.normal_()
        theirs.bias.copy_(ours.bias)
    block = whole_graph_block(graph)
    close(ours(x, block), theirs(x, edge_index(graph)))
    ours.self_loops, theirs.add_self_loops = False, False
    looped = add_self_loops(graph)  # without any edge a row of theirs is 0 / 1e-16
    close(ours(x, whole_graph_block(looped)), theirs(x, edge_index(looped)))


def test_gin_equals_pyg(pyg, graph, x) -> None:
    mlp = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)).double()
    ours = GINConv(mlp, eps=0.3, train_eps=True).double()
    theirs = pyg.GINConv(mlp, eps=0.3, train_eps=True).double()
    close(ours(x, whole_graph_block(graph)), theirs(x, edge_index(graph)))


@pytest.mark.parametrize("model", [SAGE, GCN, GAT, GIN])
def test_layers_on_sampled_blocks_equal_layers_on_the_whole_graph(model, graph) -> None:
    """Two hops of full neighbourhoods of three seeds, with rows left in the feature table."""
    graph = gcn_norm(graph)
    net = build_model(
        f"gnn_dist.nn.{model.__name__}",
        {"hidden": 8, "norm": "layer", "residual": True},
        in_features=12,
        out_features=3,
        num_layers=2,
    ).eval()
    whole = whole_graph_block(graph)
    x = torch.from_numpy(graph.node["x"])
    expected = net.forward_layer(1, net.forward_layer(0, x, whole), whole)
    nodes = np.array([5, 17, 40])
    blocks = []
    seeds = nodes
    for _ in range(2):
        rows = [slice(graph.indptr[v], graph.indptr[v + 1]) for v in nodes]
        edges = np.concatenate([np.arange(r.start, r.stop) for r in rows])
        found = graph.indices[edges]
        new = [v for v in dict.fromkeys(found.tolist()) if v not in set(nodes.tolist())]
        sources = np.concatenate((nodes, np.array(new, dtype=np.int64)))
        local = {v: k for k, v in enumerate(sources.tolist())}
        indptr = np.concatenate(([0], np.cumsum([r.stop - r.start for r in rows])))
        gcn = torch.from_numpy(graph.edge_in_csc_order("gcn")[edges])
        indices = torch.tensor([local[v] for v in found.tolist()], dtype=torch.int32)
        blocks.insert(0, Block(torch.from_numpy(indptr), indices, len(sources), edge={"gcn": gcn}))
        nodes = sources
    rows = FeatureRows((x,), torch.from_numpy(nodes))
    torch.testing.assert_close(net(rows, blocks), expected[seeds], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gin"])
def test_training_does_not_depend_on_how_seeds_are_dealt(name, graph) -> None:
    """Two ranks' gradients, dropout included, sum to those of one (float64)."""
    graph = gcn_norm(graph)
    whole = whole_graph_block(graph)
    x = torch.from_numpy(graph.node["x"]).double()
    args = {"hidden": 8, "dropout": 0.5, "input_dropout": 0.2}
    if name == "gat":
        args["attention_dropout"] = 0.3
    net = build_model(name, args, in_features=12, out_features=3, num_layers=2).double()

    def gradients(parts: list[slice]) -> list[torch.Tensor]:
        net.zero_grad()
        for part in parts:
            block, order = share(whole, part)
            net.forward_layer(
                1, net.forward_layer(0, x, whole)[order], block
            ).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    def share(block: Block, part: slice) -> tuple[Block, torch.Tensor]:
        """The rows ``part`` of a block, and the order that puts them first among the sources."""
        order = torch.cat((torch.arange(part.start, part.stop), torch.arange(0, part.start)))
        order = torch.cat((order, torch.arange(part.stop, block.num_src)))
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        lo, hi = int(block.indptr[part.start]), int(block.indptr[part.stop])
        edge = {k: v[lo:hi] for k, v in block.edge.items()}
        indptr = block.indptr[part.start : part.stop + 1] - lo
        indices = place[block.indices[lo:hi].long()].int()
        ids = block.ids[order]
        return Block(indptr, indices, block.num_src, edge=edge, ids=ids, key=block.key), order

    one = gradients([slice(0, 60)])
    two = gradients([slice(0, 23), slice(23, 60)])
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_parameters_depend_on_the_seed_alone() -> None:
    sizes = {"in_features": 4, "out_features": 2, "num_layers": 3}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    a = build_model("sage", {"hidden": 8}, **sizes, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    b = build_model("sage", {"hidden": 8}, **sizes, seed=5)
    c = build_model("sage", {"hidden": 8}, **sizes, seed=6)
    for p, q, r in zip(a.parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, r)


class OwnModel(nn.Module):
    """A user's model: takes what it asks for and no more."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_features, width)

    def forward(self, x, blocks):
        return self.lin(x[: blocks[-1].num_dst])


def test_a_model_of_the_users_own_is_given_the_sizes_that_it_takes(monkeypatch) -> None:
    sizes = {"in_features": 4, "out_features": 2, "num_layers": 3}
    monkeypatch.setattr("gnn_dist.nn.OwnModel", OwnModel, raising=False)
    monkeypatch.setattr("gnn_dist.nn.not_a_model", lambda: {}, raising=False)
    model = build_model("gnn_dist.nn.OwnModel", {"width": 6}, **sizes)
    assert model.lin.weight.shape == (6, 4)
    with pytest.raises(InputError, match=r"needs width; add them to model\.args"):
        build_model("gnn_dist.nn.OwnModel", {}, **sizes)
    with pytest.raises(InputError, match="takes no argument 'depth'"):
        build_model("gnn_dist.nn.OwnModel", {"depth": 6}, **sizes)
    with pytest.raises(InputError, match=r"must give an nn\.Module"):
        build_model("gnn_dist.nn.not_a_model", {}, **sizes)


def test_mistakes_are_named(graph, x) -> None:
    sizes = {"in_features": 12, "out_features": 2, "num_layers": 2}
    block = whole_graph_block(graph)
    with pytest.raises(InputError, match="2 layers for 1 blocks"):
        build_model("sage", {}, **sizes)(x.float(), [block])
    with pytest.raises(InputError, match="no edge tensor 'gcn'"):
        build_model("gcn", {}, **sizes)(x.float(), [block, block])
    for args, message in (
        ({"dropout": 1.0}, "model.dropout: 1.0 is not a probability"),
        ({"input_dropout": -1}, "model.input_dropout: -1 is not a probability"),
        ({"activation": "sine"}, "model.activation: 'sine' is none of"),
        ({"norm": "group"}, "model.norm: 'group' is none of layer, batch"),
        ({"hidden": 0}, "model.hidden: 0 is below 1"),
        ({"aggregator": "median"}, "model.aggregator: 'median' is none of"),
    ):
        with pytest.raises(InputError, match=message):
            build_model("sage", args, **sizes)
    with pytest.raises(InputError, match="3 heads cannot share 8 hidden columns"):
        build_model("gat", {"heads": 3, "hidden": 8}, **sizes)
    with pytest.raises(InputError, match=r"attention_dropout: 1\.5 is not a probability"):
        build_model("gat", {"attention_dropout": 1.5}, **sizes)


def test_gcn_without_preparation_is_the_mean_with_the_node_itself(graph, x) -> None:
    conv = GCNConv(12, 5, norm="right", bias=False).double()
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(dense, (graph.destinations(), graph.indices), 1)
    dense += np.eye(graph.num_nodes)
    mean = torch.from_numpy(dense / dense.sum(1, keepdims=True))
    close(conv(x, whole_graph_block(graph)), mean @ x @ conv.weight.T)
