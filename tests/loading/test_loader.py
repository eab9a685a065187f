"""The loader delivers the batches of its plan, however they were prepared."""

import numpy as np
import pytest
from support.graphs import random_graph

from gnn_dist.batch import MiniBatch
from gnn_dist.features import FeatureRows, FeatureStore
from gnn_dist.loading import EpochPlan, Loader
from gnn_dist.loading.loader import batch_bytes
from gnn_dist.sampling import LocalTopology, NeighborSampler
from gnn_dist.storage import PartitionedGraph

GRAPH = random_graph(2000, 20_000, seed=3)
BOOK = np.arange(GRAPH.num_nodes)


def loader(prefetch: int, threads: int) -> Loader:
    whole = PartitionedGraph.from_graph(GRAPH)
    train, original = whole.split("train")
    return Loader(
        EpochPlan(train, original, np.zeros(train.size, np.int64), 40, 1, seed=7),
        NeighborSampler([5, 4, 3], edge_ids=True),
        LocalTopology(whole.part(0)),
        FeatureStore(whole),
        seed=7,
        prefetch=prefetch,
        threads=threads,
    )


def delivered(batches: Loader, *only: int) -> list[str]:
    def digest(batch: MiniBatch) -> str:
        assert isinstance(batch.x, FeatureRows)
        nodes = batch.input_nodes.numpy()
        assert np.array_equal(batch.x.materialise().numpy(), GRAPH.node["x"][nodes])
        assert np.array_equal(batch.node["y"].numpy(), GRAPH.node["y"][batch.seeds.numpy()])
        return batch.digest(BOOK)

    return [digest(batch) for batch, _ in batches.epoch(1, *only)]


@pytest.mark.parametrize(("prefetch", "threads"), [(1, 1), (8, 2), (3, 4)])
def test_batches_do_not_depend_on_the_threads_that_sample_them(prefetch, threads):
    alone = delivered(loader(0, 1))
    assert len(set(alone)) == len(alone) == 25
    assert delivered(loader(prefetch, threads)) == alone


def test_rows_are_copied_for_a_model_on_another_device():
    whole = PartitionedGraph.from_graph(GRAPH)
    train, original = whole.split("train")
    copying = Loader(
        EpochPlan(train, original, np.zeros(train.size, np.int64), 40, 1, seed=7),
        NeighborSampler([5, 4, 3]),
        LocalTopology(whole.part(0)),
        FeatureStore(whole),
        seed=7,
        leave=False,
    )
    for batch, _ in copying.epoch(0, 0, 3):
        assert np.array_equal(batch.x.numpy(), GRAPH.node["x"][batch.input_nodes.numpy()])
        assert batch_bytes(batch) > batch.x.nbytes


def test_a_part_of_an_epoch_needs_nothing_before_it():
    assert delivered(loader(4, 2), 11, 17) == delivered(loader(0, 1))[11:17]
