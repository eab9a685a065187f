"""A partition made here is read by PyG, and one made by PyG is read here."""

import sys
import types

import numpy as np
import pytest
import torch
from support.graphs import random_graph

pytest.importorskip("torch_geometric")
from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore

from gnn_dist import storage
from gnn_dist.errors import InputError
from gnn_dist.interop import pyg_partitions

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated.*")


@pytest.fixture
def cut():
    graph = random_graph(60, 400, seed=6)
    assignment = np.random.default_rng(1).integers(0, 3, 60).astype(np.int32)
    return graph, assignment, storage.assemble(graph, assignment, 3)


def test_a_partition_survives_the_way_there_and_back(cut, tmp_path):
    graph, _, parts = cut
    pyg_partitions.write(parts, tmp_path / "pyg")
    back = pyg_partitions.read(tmp_path / "pyg")
    assert back.digest == graph.digest
    assert back.offsets.tolist() == parts.offsets.tolist()
    assert np.array_equal(back.original_ids(), parts.original_ids())


def test_pyg_reads_our_partition(cut, tmp_path):
    graph, assignment, parts = cut
    pyg_partitions.write(parts, tmp_path)
    for index in range(3):
        features = LocalFeatureStore.from_partition(str(tmp_path), index)
        owned = np.flatnonzero(assignment == index)
        assert features.get_global_id(None).tolist() == owned.tolist()
        x = features.get_tensor(group_name=None, attr_name="x", index=None)
        assert np.array_equal(x.numpy(), graph.node["x"][owned])
        topology = LocalGraphStore.from_partition(str(tmp_path), index)
        row, col = topology.get_edge_index(None, layout="coo")
        eid = topology.get_edge_id(None, layout="coo")
        src, dst = graph.to_pyg().edge_index[:, eid]
        assert torch.equal(row, src)
        assert torch.equal(col, dst)
        assert (
            sorted(eid.tolist())
            == np.flatnonzero(assignment[graph.to_pyg().edge_index[1].numpy()] == index).tolist()
        )


def pygs_own(graph, assignment, root, monkeypatch):
    """What PyG's Partitioner writes, with our assignment in METIS's place (it needs pyg-lib)."""
    from torch_geometric.distributed import partition as pyg
    from torch_geometric.utils import index_sort

    data = graph.to_pyg()
    data = type(data)(x=data.x, edge_index=data.edge_index, edge_attr=data.edge_weight[:, None])

    class Clusters:
        def __init__(self, data, num_parts, **kwargs):
            part = torch.from_numpy(assignment.astype(np.int64))
            _, node_perm = index_sort(part, num_parts, stable=True)
            sizes = torch.bincount(part, minlength=num_parts)
            partptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
            place = torch.empty_like(node_perm)
            place[node_perm] = torch.arange(len(node_perm))
            row, col = place[data.edge_index]
            edge_perm = torch.argsort(col, stable=True)
            self.data = data
            self.partition = types.SimpleNamespace(
                node_perm=node_perm, partptr=partptr, edge_perm=edge_perm
            )
            self.row, self.col = row[edge_perm], col[edge_perm]

        def __getitem__(self, index):
            start, end = self.partition.partptr[index : index + 2]
            mask = (self.col >= start) & (self.col < end)
            perm = self.partition.edge_perm[mask]
            nodes = self.partition.node_perm[start:end]
            return type(self.data)(
                x=self.data.x[nodes],
                edge_index=torch.stack((self.row[mask], self.col[mask] - start)),
                edge_attr=self.data.edge_attr[perm],
            )

    monkeypatch.setattr(pyg, "ClusterData", Clusters)
    pyg.Partitioner(data, 3, str(root)).generate_partition()


def test_a_partition_made_by_pyg_is_read_here(cut, tmp_path, monkeypatch):
    graph, assignment, parts = cut
    pygs_own(graph, assignment, tmp_path / "pyg", monkeypatch)
    read = pyg_partitions.read(tmp_path / "pyg")
    assert np.array_equal(read.original_ids(), parts.original_ids())
    for index in range(3):
        ours, theirs = parts.part(index), read.part(index)
        assert np.array_equal(ours.indptr, theirs.indptr)
        assert np.array_equal(ours.indices, theirs.indices)
        assert np.array_equal(ours.edge_ids, theirs.edge_ids)
        assert np.array_equal(ours.node["x"], theirs.node["x"])
        assert np.array_equal(ours.edge["weight"], theirs.edge["attr"][:, 0])


class Evil:
    def __reduce__(self):
        return sys.exit, (77,)


def test_code_in_a_partition_is_not_run(cut, tmp_path):
    pyg_partitions.write(cut[2], tmp_path / "pyg")
    torch.save(Evil(), tmp_path / "pyg" / "part_1" / "node_feats.pt")
    with pytest.raises(InputError, match=r"part_1/node_feats\.pt"):
        pyg_partitions.read(tmp_path / "pyg")


@pytest.mark.parametrize(
    ("damage", "words"),
    [("META.json", r"META\.json"), ("part_0/graph.pt", r"graph\.pt"), ("edge_map.pt", "edge_map")],
)
def test_a_missing_file_is_named(cut, tmp_path, damage, words):
    pyg_partitions.write(cut[2], tmp_path / "pyg")
    (tmp_path / "pyg" / damage).unlink()
    with pytest.raises(InputError, match=words):
        pyg_partitions.read(tmp_path / "pyg")


def test_an_existing_folder_is_not_overwritten(cut, tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        pyg_partitions.write(cut[2], tmp_path)
