"""A partition made here is read by DGL, and one made by DGL is read here."""

import importlib
import importlib.util
import json

import numpy as np
import pytest
import torch
from support.graphs import random_graph

if importlib.util.find_spec("dgl") is None:
    pytest.skip("dgl is not installed (pip install 'gnn-dist[dgl]')", allow_module_level=True)
from gnn_dist import cli, storage
from gnn_dist.errors import InputError
from gnn_dist.interop import dgl_partitions
from gnn_dist.interop.dgl import import_dgl

dgl = import_dgl()
importlib.import_module("dgl.distributed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated.*")


@pytest.fixture
def cut():
    graph = random_graph(60, 400, seed=6)
    assignment = np.random.default_rng(1).integers(0, 3, 60).astype(np.int32)
    return graph, assignment, storage.assemble(graph, assignment, 3)


def test_a_partition_survives_the_way_there_and_back(cut, tmp_path):
    graph, _, parts = cut
    config = dgl_partitions.write(parts, tmp_path / "dgl", "circuit")
    assert config == tmp_path / "dgl" / "circuit.json"
    for place in (config, tmp_path / "dgl"):
        back = dgl_partitions.read(place)
        assert back.digest == graph.digest
        assert back.offsets.tolist() == parts.offsets.tolist()
        assert np.array_equal(back.original_ids(), parts.original_ids())


def test_dgl_reads_our_partition(cut, tmp_path, monkeypatch):
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")  # DGL checks more
    graph, assignment, parts = cut
    config = str(dgl_partitions.write(parts, tmp_path))
    whole = graph.to_dgl()
    src, dst = (e.numpy() for e in whole.edges(order="eid"))
    seen = []
    for index in range(3):
        local, node, edge, book, name, ntypes, _ = dgl.distributed.load_partition(config, index)
        assert (name, ntypes) == ("graph", ["_N"])
        owned = np.flatnonzero(assignment == index)
        original = node["_N/orig_id"].numpy()
        assert original.tolist() == owned.tolist()
        assert np.array_equal(node["_N/feat"].numpy(), graph.node["x"][owned])
        assert np.array_equal(node["_N/label"].numpy(), graph.node["y"][owned])
        train = node["_N/train_mask"].numpy().astype(bool)
        assert owned[train].tolist() == sorted(set(owned) & set(graph.splits["train"]))
        ids = edge["_N:_E:_N/orig_id"].numpy()
        assert sorted(ids) == np.flatnonzero(assignment[dst] == index).tolist()
        assert np.array_equal(edge["_N:_E:_N/weight"].numpy(), graph.edge["weight"][ids])
        # the edges of the local graph, through global ids, are the graph's own
        global_ids = local.ndata[dgl.NID]
        back = parts.original_ids()[global_ids.numpy()]
        u, v = (e.numpy() for e in local.edges(order="eid"))
        assert np.array_equal(back[u], src[ids])
        assert np.array_equal(back[v], dst[ids])
        assert np.array_equal(book.nid2partid(global_ids).numpy(), assignment[back])
        assert (book.eid2partid(local.edata[dgl.EID]) == index).all()
        inner = local.ndata["inner_node"].bool()
        assert torch.equal(book.partid2nids(index), global_ids[inner])
        seen.append(ids)
    assert sorted(np.concatenate(seen)) == list(range(400))


def test_a_model_trains_in_dgl_on_our_partition(cut, tmp_path):
    graph, _, _ = cut
    dgl_partitions.write(storage.PartitionedGraph.from_graph(graph), tmp_path, "one")
    dgl.distributed.initialize(None)  # standalone mode of DistDGL takes one part
    whole = dgl.distributed.DistGraph("one", part_config=str(tmp_path / "one.json"))
    assert whole.num_nodes() == 60
    assert torch.equal(whole.ndata["feat"][torch.arange(60)], torch.from_numpy(graph.node["x"]))
    train = dgl.distributed.node_split(whole.ndata["train_mask"], whole.get_partition_book())
    assert train.tolist() == graph.splits["train"].tolist()
    sampler = dgl.dataloading.MultiLayerNeighborSampler([3, 3])
    loader = dgl.dataloading.DistNodeDataLoader(whole, train, sampler, batch_size=8)
    conv = torch.nn.ModuleList([dgl.nn.SAGEConv(5, 8, "mean"), dgl.nn.SAGEConv(8, 3, "mean")])
    pairs = set(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))
    batches = 0
    for inputs, seeds, blocks in loader:
        h = whole.ndata["feat"][inputs]
        for layer, block in zip(conv, blocks, strict=True):
            h = layer(block, h)
            u, v = block.edges()
            ends = block.srcdata[dgl.NID][u].tolist(), block.dstdata[dgl.NID][v].tolist()
            assert set(zip(*ends, strict=True)) <= pairs
        loss = torch.nn.functional.cross_entropy(h, whole.ndata["label"][seeds])
        loss.backward()
        assert torch.isfinite(loss)
        batches += 1
    assert batches == 4
    dgl.distributed.exit_client()


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_partition_made_by_dgl_is_read_here(cut, tmp_path, num_parts):
    graph, _, _ = cut
    node_ids, edge_ids = dgl.distributed.partition_graph(
        graph.to_dgl(), "theirs", num_parts, str(tmp_path), part_method="random",
        return_mapping=True,
    )  # fmt: skip
    read = dgl_partitions.read(tmp_path / "theirs.json", node_ids=node_ids, edge_ids=edge_ids)
    assert read.num_parts == num_parts
    assert read.digest == graph.digest  # the same graph, edges and tensors in the user's order
    for index in range(num_parts):
        *_, book, _, _, _ = dgl.distributed.load_partition(
            str(tmp_path / "theirs.json"), index, load_feats=False
        )
        theirs = node_ids[book.partid2nids(index)]
        assert read.part(index).original_ids.tolist() == sorted(theirs.tolist())


def test_without_its_mapping_a_partition_of_dgl_has_dgls_ids(cut, tmp_path):
    graph, _, _ = cut
    node_ids, edge_ids = dgl.distributed.partition_graph(
        graph.to_dgl(), "theirs", 3, str(tmp_path), part_method="random", return_mapping=True
    )
    read = dgl_partitions.read(tmp_path)
    assert read.original_ids().tolist() == list(range(60))
    whole = graph.to_dgl()
    src, dst = (e[edge_ids] for e in whole.edges(order="eid"))
    for part in (read.part(index) for index in range(3)):
        assert np.array_equal(part.node["x"], graph.node["x"][node_ids[part.original_ids]])
        rows = np.repeat(np.arange(part.first, part.last), np.diff(part.indptr))
        ids = part.edge_ids
        assert np.array_equal(node_ids.numpy()[part.indices], src.numpy()[ids])
        assert np.array_equal(node_ids.numpy()[rows], dst.numpy()[ids])
        weight = graph.edge["weight"][edge_ids.numpy()]
        assert np.array_equal(part.edge["weight"], weight[ids])


@pytest.mark.parametrize("maker", ["ours", "dgl"])
def test_it_trains_here_after_the_way_over_dgl(cut, tmp_path, maker):
    """Read, written as our own partition, opened again, and trained on from the command line."""
    graph, _, parts = cut
    if maker == "ours":
        back = dgl_partitions.read(dgl_partitions.write(parts, tmp_path / "dgl"))
    else:
        node_ids, edge_ids = dgl.distributed.partition_graph(
            graph.to_dgl(), "theirs", 3, str(tmp_path / "dgl"), part_method="random",
            return_mapping=True,
        )  # fmt: skip
        back = dgl_partitions.read(tmp_path / "dgl", node_ids=node_ids, edge_ids=edge_ids)
    back.info["num_classes"] = 3
    storage.write(back, tmp_path / "ours", partitioner={"name": "dgl", "args": {}, "seed": 0})
    opened = storage.open_partition(tmp_path / "ours", verify=True, expect_graph=graph.digest)
    assert np.array_equal(opened.part(2).node["x"], back.part(2).node["x"])
    flags = {
        "partition.path": tmp_path / "ours", "output": tmp_path / "run", "sampler.fanouts": "3,3",
        "train.epochs": 2, "train.batch_size": 10, "model.args.hidden": 4,
        "train.baselines": "false",
    }  # fmt: skip
    assert cli.main(["train", *(f"--{key}={value}" for key, value in flags.items())]) == 0
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["partition"]["parts"] == 3
    assert found["epochs"][1]["loss"] < found["epochs"][0]["loss"]


@pytest.mark.parametrize("file", ["graph.json", "part1/graph.dgl", "part0/node_feat.dgl"])
def test_a_missing_file_is_named(cut, tmp_path, file):
    config = dgl_partitions.write(cut[2], tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(InputError, match=file):
        dgl_partitions.read(config)


@pytest.mark.parametrize("file", ["graph.json", "part1/graph.dgl", "part0/edge_feat.dgl"])
def test_a_damaged_file_is_named(cut, tmp_path, file):
    config = dgl_partitions.write(cut[2], tmp_path)
    (tmp_path / file).write_bytes(b"no such thing")
    with pytest.raises(InputError, match=rf"{file}.*is damaged"):
        dgl_partitions.read(config)


def test_paths_cannot_leave_the_folder(cut, tmp_path):
    config = dgl_partitions.write(cut[2], tmp_path / "dgl")
    about = json.loads(config.read_text())
    about["part-1"]["part_graph"] = "../elsewhere/graph.dgl"
    config.write_text(json.dumps(about))
    with pytest.raises(InputError, match="outside its folder"):
        dgl_partitions.read(config)


def test_a_typed_partition_is_refused(cut, tmp_path):
    config = dgl_partitions.write(cut[2], tmp_path)
    about = json.loads(config.read_text())
    about["ntypes"] = {"a": 0, "b": 1}
    config.write_text(json.dumps(about))
    with pytest.raises(InputError, match="not supported yet"):
        dgl_partitions.read(config)


def test_a_wrong_mapping_is_refused(cut, tmp_path):
    dgl_partitions.write(cut[2], tmp_path)
    with pytest.raises(InputError, match="node_ids must hold every id from 0 to 59 once"):
        dgl_partitions.read(tmp_path, node_ids=np.zeros(60, np.int64))


def test_an_existing_folder_is_not_overwritten(cut, tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        dgl_partitions.write(cut[2], tmp_path)
