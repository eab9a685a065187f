import pytest

from gnn_dist.cluster import Grid, Placement
from gnn_dist.errors import InputError

LAYOUTS = [
    (list("abcd"), 4),
    (list("aabb"), 2),
    (["a", "b", "a", "b", "c", "d", "c"], 6),
    (list("abcdef"), 4),
]


def placements(hosts, parts):
    return [Placement.build(rank=r, hosts=hosts, num_parts=parts) for r in range(len(hosts))]


@pytest.mark.parametrize(("hosts", "parts"), LAYOUTS)
def test_every_column_holds_every_part_once_and_requests_stay_in_it(hosts, parts):
    count = len(set(hosts))
    for copies in [c for c in range(1, count + 1) if count % c == 0]:
        grids = [Grid.of(p, copies) for p in placements(hosts, parts)]
        members = grids[0].members
        assert all(grid.members == members for grid in grids)
        assert sorted(r for column in members for r in column) == list(range(len(hosts)))
        assert len(members) == copies
        for rank, grid in enumerate(grids):
            mine = next(column for column in members if rank in column)
            assert (grid.column.rank, grid.column.size) == (mine.index(rank), len(mine))
            assert grid.column.num_hosts == count // copies
            assert grid.column.all_local == (copies == count)
            for part in range(parts):
                server = grids[mine[grid.column.server_of(part)]]
                assert part in server.column.local_parts
                # who is near to a part holds it, in whichever column
                assert (part in grid.rows.local_parts) == (part in grid.column.local_parts)
        held = {part for rank in members[0] for part in grids[rank].column.local_parts}
        assert held == set(range(parts))


def test_ranks_of_one_host_are_in_one_column():
    hosts = ["a", "b", "a", "b", "c", "d", "c"]
    for column in Grid.of(placements(hosts, 4)[0], 2).members:
        for name in hosts:
            ranks = {r for r, host in enumerate(hosts) if host == name}
            assert ranks <= set(column) or not ranks & set(column)


def test_one_copy_is_the_placement_itself():
    for placement in placements(list("abcb"), 5):
        grid = Grid.of(placement, 1)
        assert grid.rows == grid.column == placement


def test_copies_that_do_not_divide_the_hosts_are_refused():
    with pytest.raises(InputError, match=r"cluster.replication: 3 copies on 4 hosts; give a"):
        Grid.of(placements(list("abcd"), 4)[0], 3)
