"""Without DGL every door to it says how to install it."""

import importlib.util

import pytest
import torch
from support.graphs import random_graph

from gnn_dist import storage
from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.interop import dgl_partitions


@pytest.mark.parametrize(
    "door",
    [
        lambda folder: random_graph().to_dgl(),
        lambda folder: Graph.from_dgl(object()),
        lambda folder: MiniBatch(BatchIndex(0, 0), [], torch.arange(2), torch.arange(2)).to_dgl(),
        lambda folder: dgl_partitions.write(
            storage.PartitionedGraph.from_graph(random_graph()), folder / "dgl"
        ),
        lambda folder: dgl_partitions.read(folder),
    ],
    ids=["to_dgl", "from_dgl", "batch", "write", "read"],
)
def test_the_remedy_is_named(monkeypatch, tmp_path, door):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "dgl" else find_spec(name)
    )
    with pytest.raises(InputError, match=r"dgl: is not installed; .*pip install 'gnn-dist\[dgl\]'"):
        door(tmp_path)
    assert list(tmp_path.iterdir()) == []
