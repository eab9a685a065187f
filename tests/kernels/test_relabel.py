import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.kernels import relabel as kernels


def by_dictionary(seeds, hops):
    local = {}
    for v in seeds:
        local.setdefault(v, len(local))
    numbered = [[local.setdefault(v, len(local)) for v in hop] for hop in hops]
    return numbered, list(local)


@pytest.mark.parametrize("table_dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(st.data())
def test_nodes_are_numbered_by_first_appearance(table_dtype, dtype, data):
    num_nodes = data.draw(st.integers(1, 300))
    table, bits = np.zeros(num_nodes, table_dtype), 9
    nodes = np.empty(num_nodes + 1, np.int64)
    node = st.integers(0, num_nodes - 1)
    for epoch in range(1, 4):  # what an earlier batch left behind does not count
        seeds = data.draw(st.lists(node, unique=True, max_size=20))
        hops = data.draw(st.lists(st.lists(node, max_size=150), max_size=3))
        assert kernels.enter(np.array(seeds, np.int64), table, bits, epoch, nodes) == -1
        count = len(seeds)
        numbered = []
        for hop in hops:
            sources = np.array(hop, dtype)
            out = sources if dtype is np.int32 else np.empty(len(hop), np.int32)
            count = kernels.relabel(sources, table, bits, epoch, nodes, count, out)
            numbered.append(out.tolist())
        assert (numbered, nodes[:count].tolist()) == by_dictionary(seeds, hops)


def test_a_repeated_id_is_found():
    table, nodes = np.zeros(5, np.uint32), np.empty(6, np.int64)
    assert kernels.enter(np.array([3, 1, 3, 1]), table, 3, 1, nodes) == 2


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 5, 1000, 1 << 20, (1 << 20) + 1])
def test_a_table_has_room_for_every_local_id_beside_the_epoch(num_nodes):
    table, bits, epochs = kernels.new_table(num_nodes)
    assert table.size == num_nodes
    assert table.dtype == np.uint32
    assert num_nodes - 1 < 1 << bits
    assert (epochs << bits | (1 << bits) - 1) <= np.iinfo(table.dtype).max
    assert epochs >= 63
