"""Graphs to DGL and back, and models written in DGL on our mini-batches."""

import importlib.util

import numpy as np
import pytest
import torch
from support.graphs import random_graph

if importlib.util.find_spec("dgl") is None:
    pytest.skip("dgl is not installed (pip install 'gnn-dist[dgl]')", allow_module_level=True)
from gnn_dist.batch import BatchIndex
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.graph import Graph
from gnn_dist.interop.dgl import import_dgl
from gnn_dist.nn.convs import GATConv
from gnn_dist.nn.models import SAGE
from gnn_dist.sampling import LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph

dgl = import_dgl()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated.*")


@pytest.fixture
def graph():
    return random_graph(50, 400, seed=2)


def sampled(graph, fanouts, edge_ids=True, edge=(), weights=None):
    topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    sampler = NeighborSampler(fanouts, edge_ids=edge_ids, edge=edge, weights=weights)
    seeds = graph.splits["train"][:9]
    batch = sampler.sample(topology, seeds, seed=1, index=BatchIndex(0, 0), global_seeds=9)
    batch.x = torch.from_numpy(graph.node["x"])[batch.input_nodes]
    batch.node = {"y": torch.from_numpy(graph.node["y"])[batch.seeds]}
    return batch


def test_a_graph_survives_the_way_there_and_back(graph):
    back = Graph.from_dgl(graph.to_dgl())
    assert back.digest == graph.digest


def test_dgl_sees_the_users_edge_list_and_tensors(graph):
    theirs = graph.to_dgl()
    src, dst = theirs.edges(order="eid")
    data = {(int(e), int(u), int(v)) for e, (u, v) in enumerate(zip(src, dst, strict=True))}
    ours = zip(graph.edge_ids, graph.indices, graph.destinations(), strict=True)
    assert data == {(int(e), int(u), int(v)) for e, u, v in ours}
    assert torch.equal(theirs.ndata["feat"], torch.from_numpy(graph.node["x"]))
    assert torch.equal(theirs.ndata["label"], torch.from_numpy(graph.node["y"]))
    assert theirs.ndata["val_mask"].nonzero().ravel().tolist() == graph.splits["val"].tolist()
    assert torch.equal(theirs.edata["weight"], torch.from_numpy(graph.edge["weight"]))


def test_names_that_both_sides_use_are_kept():
    node = {"x": np.zeros((3, 1)), "feat": np.ones((3, 1)), "label": np.arange(3)}
    graph = Graph.from_edges(np.array([0, 1]), np.array([1, 2]), 3, node=node)
    there = graph.to_dgl()
    assert torch.equal(there.ndata["feat"], torch.ones(3, 1).double())
    back = Graph.from_dgl(there)
    assert set(back.node) == {"x", "feat", "y"}
    assert (back.node["feat"] == 1).all()


def test_a_dgl_graph_without_our_names_is_read():
    theirs = dgl.graph(([0, 1, 1], [2, 2, 0]), num_nodes=4, idtype=torch.int32)
    theirs.ndata["train_mask"] = torch.tensor([1, 0, 0, 1], dtype=torch.uint8)
    theirs.ndata[dgl.NID] = torch.arange(4)
    graph = Graph.from_dgl(theirs)
    assert graph.num_nodes == 4
    assert graph.indices.tolist() == [1, 0, 1]
    assert graph.indptr.tolist() == [0, 1, 1, 3, 3]
    assert graph.splits["train"].tolist() == [0, 3]
    assert not graph.node


def test_typed_graphs_and_several_masks_are_refused():
    typed = dgl.heterograph({("a", "r", "b"): ([0], [0])})
    with pytest.raises(InputError, match="not supported yet"):
        Graph.from_dgl(typed)
    several = dgl.graph(([0], [1]))
    several.ndata["train_mask"] = torch.ones(2, 10)
    with pytest.raises(InputError, match="choose one split"):
        Graph.from_dgl(several)


def test_blocks_hold_the_sampled_edges_and_ids(graph):
    batch = sampled(graph, [4, 3], edge=("weight",))
    blocks = batch.to_dgl()
    assert [b.num_edges() for b in blocks] == [b.num_edges for b in batch.blocks]
    src_of, dst_of = graph.to_dgl().edges(order="eid")
    for block in blocks:
        src, dst = block.edges(order="eid")
        ids = block.edata[dgl.EID]
        assert torch.equal(block.srcdata[dgl.NID][src], src_of[ids])
        assert torch.equal(block.dstdata[dgl.NID][dst], dst_of[ids])
        weight = torch.from_numpy(graph.edge["weight"])[ids]
        assert torch.equal(block.edata["weight"], weight)
        num_dst = block.num_dst_nodes()
        assert torch.equal(block.srcdata[dgl.NID][:num_dst], block.dstdata[dgl.NID])
    assert torch.equal(blocks[0].dstdata[dgl.NID], blocks[1].srcdata[dgl.NID])
    assert torch.equal(blocks[-1].dstdata[dgl.NID], batch.seeds)
    assert torch.equal(blocks[-1].dstdata["label"], batch.node["y"])
    assert torch.equal(blocks[0].srcdata["feat"], batch.x)


def test_rows_left_in_the_table_are_gathered_and_ids_may_be_absent(graph):
    batch = sampled(graph, [3, 3], edge_ids=False)
    x = batch.x
    batch.x = FeatureRows((torch.from_numpy(graph.node["x"]),), batch.input_nodes)
    blocks = batch.to_dgl()
    assert torch.equal(blocks[0].srcdata["feat"], x)
    assert dgl.EID not in blocks[0].edata


class DglSage(torch.nn.Module):
    """As in DGL's examples."""

    def __init__(self, convs):
        super().__init__()
        self.layers = torch.nn.ModuleList(convs)

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            if i < len(self.layers) - 1:
                h = h.relu()
        return h


@pytest.mark.parametrize("fanouts", [[4, 3], [-1, -1]])
def test_graphsage_of_dgl_computes_what_ours_does(graph, fanouts):
    batch = sampled(graph, fanouts)
    ours = SAGE(5, 3, 2, hidden=8)
    convs = []
    for layer, (n, m) in zip(ours.layers, [(5, 8), (8, 3)], strict=True):
        conv = dgl.nn.SAGEConv(n, m, "mean")
        own, others = layer.conv.weight.chunk(2, dim=1)
        conv.fc_self.weight.data.copy_(own)
        conv.fc_neigh.weight.data.copy_(others)
        bias = conv.bias if getattr(conv, "bias", None) is not None else conv.fc_self.bias
        bias.data.copy_(layer.conv.bias)
        convs.append(conv)
    theirs = DglSage(convs)
    blocks = batch.to_dgl()
    out = theirs(blocks, blocks[0].srcdata["feat"])
    torch.testing.assert_close(out, ours(batch.x, batch.blocks), rtol=1e-5, atol=1e-6)
    # and it trains: its gradient is that of our model
    label = blocks[-1].dstdata["label"]
    torch.nn.functional.cross_entropy(out, label).backward()
    torch.nn.functional.cross_entropy(ours(batch.x, batch.blocks), label).backward()
    both = torch.cat((convs[0].fc_self.weight.grad, convs[0].fc_neigh.weight.grad), dim=1)
    torch.testing.assert_close(both, ours.layers[0].conv.weight.grad, rtol=1e-4, atol=1e-6)


def test_attention_of_dgl_computes_what_ours_does(graph):
    batch = sampled(graph, [-1])
    ours = GATConv(5, 6, heads=2, self_loops=False, bias=False)
    theirs = dgl.nn.GATConv(5, 6, 2, allow_zero_in_degree=True, bias=False)
    theirs.fc.weight.data.copy_(ours.weight)
    theirs.attn_l.data.copy_(ours.att_src[None])
    theirs.attn_r.data.copy_(ours.att_dst[None])
    (block,) = batch.to_dgl()
    out = theirs(block, block.srcdata["feat"]).flatten(1)
    torch.testing.assert_close(out, ours(batch.x, batch.blocks[0]), rtol=1e-5, atol=1e-6)


def test_what_is_no_graph_of_dgl_is_named():
    with pytest.raises(InputError, match="NoneType is none; give a DGLGraph"):
        Graph.from_dgl(None)


def test_bfloat16_becomes_float32():
    there = dgl.graph(([0, 1], [1, 2]))
    there.ndata["feat"] = torch.randn(3, 2).bfloat16()
    assert torch.equal(
        torch.from_numpy(Graph.from_dgl(there).node["x"]), there.ndata["feat"].float()
    )
