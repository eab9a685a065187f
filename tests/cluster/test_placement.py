import itertools
import re

import pytest

from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError


def build(hosts: str, parts: int, rank: int = 0, mode: str = "auto") -> Placement:
    return Placement.build(rank=rank, hosts=list(hosts), num_parts=parts, mode=mode)


def test_ranks_of_one_name_share_a_host_and_its_partitions():
    placement = build("aabb", 4, rank=2)
    assert placement.host_of_rank == (0, 0, 1, 1)
    assert placement.host_of_part == (0, 0, 1, 1)
    assert placement.host == 1
    assert placement.local_parts == (2, 3)
    assert placement.local_ranks == (2, 3)
    assert placement.is_leader
    assert not build("aabb", 4, rank=3).is_leader


def test_hosts_are_numbered_by_first_appearance_when_ranks_are_mixed():
    assert build("baab", 2).host_of_rank == (0, 1, 1, 0)


def test_per_rank_makes_every_rank_a_host():
    placement = build("aaaa", 4, rank=3, mode="per-rank")
    assert placement.num_hosts == 4
    assert placement.local_parts == (3,)
    assert not placement.all_local


@pytest.mark.parametrize(("hosts", "parts"), [("a", 1), ("a", 7), ("aaa", 2)])
def test_one_host_needs_no_collective(hosts, parts):
    for rank in range(len(hosts)):
        placement = build(hosts, parts, rank)
        assert placement.all_local
        assert placement.servers() == (rank,) * parts


@pytest.mark.parametrize("parts", range(1, 9))
@pytest.mark.parametrize("hosts", ["ab", "aab", "abc", "aabbccdd", "abab"])
def test_partitions_are_dealt_in_contiguous_even_runs(hosts, parts):
    placement = build(hosts, parts)
    assert list(placement.host_of_part) == sorted(placement.host_of_part)
    counts = [len(placement.parts_of_host(h)) for h in range(placement.num_hosts)]
    assert sum(counts) == parts
    assert max(counts) - min(counts) <= 1


def test_a_host_may_own_no_partition():
    placement = build("abc", 1, rank=2)
    assert placement.local_parts == ()
    assert placement.server_of(0) == 0
    assert not placement.all_local


@pytest.mark.parametrize("hosts", ["ab", "aabb", "aaab", "abab", "aabbbc"])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_a_server_lies_on_the_host_that_owns_the_partition(hosts, parts):
    for rank in range(len(hosts)):
        placement = build(hosts, parts, rank)
        for part, server in enumerate(placement.servers()):
            assert placement.host_of_rank[server] == placement.host_of_part[part]
            if placement.is_local(part):
                assert server == rank


def test_requests_are_spread_over_the_owners_ranks():
    asked = [build("aaaabbbb", 2, rank).server_of(1) for rank in range(4)]
    assert sorted(asked) == [4, 5, 6, 7]
    one_asker = [build("abbb", 6, 0).server_of(part) for part in (3, 4, 5)]
    assert sorted(one_asker) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, (0,), ()), "no partitions"),
        ((1, 1, (0,), (0,)), "rank: 1"),
        ((0, 2, (0,), (0,)), "1 hosts for 2 ranks"),
        ((0, 2, (0, 2), (0,)), "numbered 0 to 1"),
        ((0, 1, (0,), (0, 1)), "part 1 lies on host 1"),
    ],
)
def test_an_impossible_placement_is_refused(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Placement(*arguments)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="use auto or per-rank"):
        build("a", 1, mode="spread")
    with pytest.raises(InputError, match="below 1"):
        build("a", 0)


def test_all_ranks_agree_on_everything_but_themselves():
    views = [build("aabcc", 7, rank) for rank in range(5)]
    for a, b in itertools.pairwise(views):
        assert (a.host_of_rank, a.host_of_part) == (b.host_of_rank, b.host_of_part)
        assert a.all_local == b.all_local
