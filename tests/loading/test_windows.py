"""Batches are sampled in bulk and ahead of the windows that fetch them."""

import numpy as np
import pytest
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import storage
from gnn_dist.batch import global_digest
from gnn_dist.cluster import Placement
from gnn_dist.features import FeatureStore
from gnn_dist.loading import EpochPlan, Homes, Horizon, Loader
from gnn_dist.loading.windows import Windows
from gnn_dist.sampling import NeighborSampler, PartitionedTopology


class Sampling:
    """Batches that are their own numbers; remembers what was sampled in each call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, shares):
        self.calls.append(list(shares))
        return list(shares)


def taken(windows: Windows, first: int, stop: int) -> list[tuple]:
    found = []
    for number in range(first, stop):
        s = windows.take(number)
        assert s.batch == number
        if s.window:
            found.append((list(s.window), list(s.ahead)))
    return found


@pytest.mark.parametrize("bulk", [1, 3, 50])
@pytest.mark.parametrize(("first", "stop", "window", "ahead"), [(0, 11, 4, 3), (2, 9, 3, 0)])
def test_every_batch_is_sampled_once_before_its_window_is_fetched(bulk, first, stop, window, ahead):
    sampling = Sampling()
    rounds = taken(
        Windows(first, stop, lambda n: n, sampling, Horizon(bulk, window, ahead)), first, stop
    )
    every = list(range(first, stop))
    assert [b for now, _ in rounds for b in now] == every
    for now, known in rounds:
        assert now == every[now[0] - first :][:window]
        assert known == every[now[0] - first + window :][:ahead]
    assert [b for call in sampling.calls for b in call] == every
    assert {len(call) for call in sampling.calls[:-1]} <= {bulk}


def test_what_is_known_ahead_reaches_into_the_next_epoch_and_is_not_sampled_again():
    sampling, horizon = Sampling(), Horizon(bulk=2, window=4, ahead=3)
    one = Windows(0, 6, lambda n: n, sampling, horizon, follow=6)
    assert taken(one, 0, 6) == [([0, 1, 2, 3], [4, 5, 6]), ([4, 5], [6, 7, 8])]
    assert [batch for batch, _ in one.held] == [6, 7, 8, 9]  # whole bulks
    other = Windows(6, 12, lambda n: n, sampling, horizon, held=one.held)
    assert taken(other, 6, 12) == [([6, 7, 8, 9], [10, 11]), ([10, 11], [])]
    assert [b for call in sampling.calls for b in call] == list(range(12))


EPOCHS = [(0, 0, None), (1, 0, None), (1, 3, None), (4, 0, 5), (5, 0, None), (0, 0, 2)]


def delivered(rank, exchange, horizon):
    graph = random_graph(300, 3000, seed=3)
    assignment = np.random.default_rng(1).integers(0, 2, 300).astype(np.int32)
    parts = storage.assemble(graph, assignment, 2)
    placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=2)
    train, original = parts.split("train")
    loader = Loader(
        EpochPlan(train, original, Homes.of(parts.offsets, placement)(train), 16, 2, 7),
        NeighborSampler([4, 3]),
        PartitionedTopology(parts, placement, exchange),
        FeatureStore(parts, placement, exchange),
        seed=7,
        rank=rank,
        horizon=horizon,
        prefetch=0,
    )
    batches = [batch for wanted in EPOCHS for batch, _ in loader.epoch(*wanted)]
    for batch in batches:
        expected = graph.node["x"][parts.original_ids()[batch.input_nodes.numpy()]]
        assert np.array_equal(batch.x.materialise().numpy(), expected)
    return batches, loader.counts.rows["remote"], parts.original_ids()


def test_epochs_in_any_order_and_cut_short_have_the_batches_of_their_plan():
    """Also where other epochs follow than those whose batches were sampled ahead."""

    def run(horizon):
        ranks = run_threads(2, lambda rank, exchange: delivered(rank, exchange, horizon))
        shares = zip(*(batches for batches, _, _ in ranks), strict=True)
        return [global_digest(share, ranks[0][2]) for share in shares], ranks[0][1]

    alone, _ = run(None)
    apart, rows_apart = run(Horizon(4, 4, 0))
    across, rows_across = run(Horizon(4, 4, 6))
    assert apart == across == alone
    assert rows_across < 0.7 * rows_apart
