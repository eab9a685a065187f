import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.loading import EpochPlan, Homes, deal


def plan(n=103, ranks=3, batch_size=10, offset=0, **kwargs) -> EpochPlan:
    original = np.arange(n) * 7 + 3
    rng = np.random.default_rng(offset)
    return EpochPlan(
        rng.permutation(n), original, rng.integers(0, ranks, n), batch_size, ranks, 5, **kwargs
    )


@given(st.lists(st.integers(0, 3), max_size=40), st.just(4))
def test_seeds_are_dealt_evenly_and_home_where_that_is_even(homes, ranks):
    ranks_of = deal(np.array(homes, np.int64), ranks)
    counts = np.bincount(ranks_of, minlength=ranks)
    assert counts.max() - counts.min() <= 1 if homes else ranks_of.size == 0
    # nobody is sent away while its home has room
    for rank in range(ranks):
        away = [h for h, r in zip(homes, ranks_of, strict=True) if h == rank and r != rank]
        if away:
            assert counts[rank] == sum(
                h == rank and r == rank for h, r in zip(homes, ranks_of, strict=True)
            )


def test_a_global_batch_is_the_same_set_for_any_number_of_ranks_and_any_numbering():
    seen = []
    for ranks, offset in ((1, 0), (2, 1), (4, 2)):
        p = plan(ranks=ranks, offset=offset)
        to_original = dict(zip(p.global_ids.tolist(), p.original_ids.tolist(), strict=True))
        order = p.order(2)
        batches = []
        for b in range(p.num_batches):
            positions = p.batch(order, b)
            shares = [p.share(positions, r) for r in range(ranks)]
            batches.append(sorted(to_original[i] for s in shares for i in s.tolist()))
        seen.append(batches)
    assert seen[0] == seen[1] == seen[2]


def test_an_epoch_holds_every_training_node_once_and_epochs_differ():
    p = plan()
    positions = np.concatenate([p.batch(p.order(0), b) for b in range(p.num_batches)])
    assert sorted(positions) == list(range(103))
    assert p.num_batches == 11
    assert (p.order(0) != p.order(1)).any()


def test_the_last_smaller_batch_can_be_left_out():
    assert plan(drop_last=True).num_batches == 10


def test_a_plan_without_a_batch_is_an_error():
    with pytest.raises(InputError, match="train split"):
        plan(n=0)
    with pytest.raises(InputError, match="batch_size"):
        plan(batch_size=0)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "hosts", [["a"], ["a", "a"], ["a", "b"], ["a", "a", "b", "b"], list("abcd")]
)
def test_every_node_has_one_home_on_its_owners_host(num_parts, hosts):
    sizes = np.arange(num_parts) * 3 + 5
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    placement = Placement.build(rank=0, hosts=hosts, num_parts=num_parts)
    homes = Homes.of(offsets, placement)
    ids = np.arange(offsets[-1])
    found = homes(ids)
    owner = np.searchsorted(offsets, ids, side="right") - 1
    for node, rank in enumerate(found):
        assert placement.host_of_rank[rank] == placement.host_of_part[owner[node]]
    ranges = {r: homes.ranges(r) for r in range(len(hosts))}
    listed = sorted((lo, hi, r) for r, pairs in ranges.items() for lo, hi in pairs)
    assert [i for lo, hi, _ in listed for i in range(lo, hi)] == ids.tolist()
    assert all(found[i] == r for lo, hi, r in listed for i in range(lo, hi))
    assert homes.counts(len(hosts)).tolist() == np.bincount(found, minlength=len(hosts)).tolist()
