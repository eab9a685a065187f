import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import random_graph
from support.ranks import run_ranks
from support.threads import run_threads

from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.features import Degree, FeatureRows, FeatureStore, NoCache
from gnn_dist.graph import Graph
from gnn_dist.storage import PartitionedGraph, assemble, open_partition, write


def cut(graph: Graph, parts: int, seed: int = 0) -> PartitionedGraph:
    rng = np.random.default_rng(seed)
    return assemble(graph, rng.integers(0, parts, graph.num_nodes).astype(np.int32), parts)


def place(rank: int, hosts: list[str], parts: int) -> Placement:
    return Placement.build(rank=rank, hosts=hosts, num_parts=parts)


def truth(graph: Graph, partitioned: PartitionedGraph, name: str, nodes: np.ndarray) -> np.ndarray:
    return graph.node[name][partitioned.original_ids()[nodes]]


PLACEMENTS = [["a"], ["a", "a"], ["a", "b"], ["a", "a", "b"], ["a", "b", "c", "b"]]


@pytest.mark.parametrize("hosts", PLACEMENTS, ids="-".join)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("policy", [NoCache, Degree])
def test_rows_do_not_depend_on_placement_or_cache(hosts, parts, policy):
    graph = random_graph()
    partitioned = cut(graph, parts)

    def work(rank, exchange):
        store = FeatureStore(
            partitioned, place(rank, hosts, parts), exchange, policy(), fraction=0.3
        )
        rng = np.random.default_rng(rank)
        for size in (0, 1, 25, 60):
            nodes = rng.integers(0, graph.num_nodes, size + rank)
            for name in ("x", "y"):
                rows = store.fetch(name, nodes)
                expected = truth(graph, partitioned, name, nodes)
                assert rows.numpy().dtype == expected.dtype
                np.testing.assert_array_equal(rows.numpy(), expected)
                rows = store.rows(name, torch.from_numpy(nodes))
                if isinstance(rows, FeatureRows):
                    assert rows.shape == expected.shape
                    rows = rows.materialise()
                np.testing.assert_array_equal(rows.numpy(), expected)

    run_threads(len(hosts), work)


@settings(max_examples=30, deadline=None)
@given(
    window=st.lists(st.lists(st.integers(0, 59), max_size=30), min_size=1, max_size=5),
    ahead=st.lists(st.lists(st.integers(0, 59), max_size=30), max_size=3),
    window_rows=st.integers(0, 40),
    fraction=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_windows_bring_the_same_rows_as_single_fetches(window, ahead, window_rows, fraction):
    graph = random_graph()
    partitioned = cut(graph, 3)

    def work(rank, exchange):
        store = FeatureStore(
            partitioned,
            place(rank, ["a", "b"], 3),
            exchange,
            Degree(),
            fraction=fraction,
            window_bytes=window_rows * 20,
        )
        batches = [{"x": np.array(b[rank:], int), "y": np.array(b[:3], int)} for b in window]
        later = [{"x": np.array(b[rank:], int)} for b in ahead]
        for _ in range(2):
            got = list(store.fetch_window(batches, later))
            assert len(got) == len(batches)
            for asked, rows in zip(batches, got, strict=True):
                for name, nodes in asked.items():
                    np.testing.assert_array_equal(
                        rows[name].numpy(), truth(graph, partitioned, name, nodes)
                    )

    run_threads(2, work)


def test_nothing_is_exchanged_where_every_part_is_on_every_host():
    partitioned = cut(random_graph(), 3)

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "a"], 3), exchange, Degree())
        if rank == 0:  # alone: a collective would wait for the other rank for ever
            store.fetch("x", np.arange(60))
        return exchange.calls, store.counts

    for calls, counts in run_threads(2, work):
        assert calls == 0
        assert counts.rounds == 0
        assert counts.needed == 0


def test_rows_of_this_host_need_no_other_rank():
    graph = random_graph()
    partitioned = cut(graph, 2)

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 2), exchange)
        before = exchange.calls
        if rank == 0:  # alone: a collective would wait for the other rank for ever
            nodes = np.arange(partitioned.offsets[1])[::-1]
            rows = store.here("x", nodes)
            np.testing.assert_array_equal(rows.numpy(), truth(graph, partitioned, "x", nodes))
            assert (store.last.rows["owned"], store.last.rounds) == (nodes.size, 0)
            with pytest.raises(InputError, match="node 59 is of another host"):
                store.here("x", np.array([0, 59]))
        return exchange.calls - before

    assert run_threads(2, work) == [0, 0]


def test_counts_by_origin_are_exact():
    graph = random_graph()
    partitioned = cut(graph, 4)
    hosts = ["a", "b", "a"]  # host a has parts 0 and 1, host b parts 2 and 3

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, hosts, 4), exchange, Degree(), fraction=0.25)
        filled = store.counts.copy()
        nodes = np.array([3, 3, 17, 59, 40, 59, 30, 0])
        store.fetch("x", nodes)
        return filled, store.last, store.counts

    for rank, (filled, last, counts) in enumerate(run_threads(3, work)):
        here = {0: {0, 1}, 1: {2, 3}, 2: {0, 1}}[rank]
        own = {0: {0}, 1: {2, 3}, 2: {1}}[rank]
        nodes = np.array([3, 3, 17, 59, 40, 59, 30, 0])
        owner = partitioned.owner(nodes)
        halo = set()
        for p in here:
            halo |= set(partitioned.part(p).halo.tolist())
        halo = {v for v in halo if partitioned.owner(np.array([v]))[0] not in here}
        assert filled.rows["filled"] == int(0.25 * len(halo))
        degree = np.concatenate([np.diff(partitioned.part(p).indptr) for p in range(4)])
        cached = set(sorted(halo, key=lambda v: (-degree[v], v))[: int(0.25 * len(halo))])
        remote = {int(v) for v, o in zip(nodes, owner, strict=True) if o not in here}
        assert last.rows["owned"] == sum(o in own for o in owner)
        assert last.rows["shared"] == sum(o in here - own for o in owner)
        assert last.rows["cached"] == len(remote & cached)
        assert last.rows["remote"] == len(remote - cached)
        assert last.bytes["remote"] == len(remote - cached) * 20
        assert last.rounds == 1
        assert last.requests == len(remote - cached)
        assert counts.as_dict() == (filled + last).as_dict()
        assert counts.transferred == filled.rows["filled"] + last.rows["remote"]


def test_a_window_asks_for_each_row_once():
    graph = random_graph()
    partitioned = cut(graph, 2)
    batches = [np.array([1, 50, 51]), np.array([50, 52, 2]), np.array([51, 52, 50])]
    partitioned_offsets = partitioned.offsets

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 2), exchange)
        list(store.fetch_window([{"x": b} for b in batches]))
        return store.counts, exchange.calls

    for rank, (counts, calls) in enumerate(run_threads(2, work)):
        low, high = partitioned_offsets[rank], partitioned_offsets[rank + 1]
        remote = [set(b[(b < low) | (b >= high)].tolist()) for b in batches]
        assert counts.rows["remote"] == len(set().union(*remote))
        assert counts.needed == sum(map(len, remote))
        assert counts.rounds == 2  # one to fill the (empty) cache
        assert calls <= 2 + 2 * counts.rounds


def test_rows_needed_ahead_are_held_and_then_given_up():
    graph = random_graph()
    partitioned = cut(graph, 2)
    far = np.arange(partitioned.offsets[1], 60)

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 2), exchange)
        asked = far if rank == 0 else np.empty(0, int)
        sent = []
        for ahead in ([{"x": asked}], [{"x": asked}], [], []):
            list(store.fetch_window([{"x": asked}], ahead))
            sent.append(store.last.rows["remote"])
        return sent, store.peak_rows

    (sent, peak), _ = run_threads(2, work)
    assert sent == [far.size, 0, 0, far.size]
    assert peak == far.size


def test_the_window_is_cut_where_its_bytes_end_at_the_same_batch_on_all_ranks():
    graph = random_graph()
    partitioned = cut(graph, 2)
    first = int(partitioned.offsets[1])
    batches = [np.array([first + k, first + k + 1]) for k in range(6)]

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 2), exchange, window_bytes=4 * 20)
        rounds = []
        for _ in store.fetch_window([{"x": b} for b in batches]):
            rounds.append(store.last.rounds)
        return rounds, store.peak_rows

    (mine, peak), (other, _) = run_threads(2, work)
    assert mine == other  # rank 1 owns all of these rows and would not have to cut
    assert sum(mine) == 2
    assert peak <= 4


def test_features_stored_in_half_travel_as_half_and_are_widened(tmp_path):
    graph = random_graph()
    write(cut(graph, 2), tmp_path / "p", partitioner={"name": "random"}, half=["x"])
    partitioned = open_partition(tmp_path / "p")
    nodes = np.arange(60)

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 2), exchange)
        return store.fetch("x", nodes), store.last

    expected = truth(graph, partitioned, "x", nodes).astype(np.float16).astype(np.float32)
    for rows, last in run_threads(2, work):
        assert rows.dtype == torch.float32
        np.testing.assert_array_equal(rows.numpy(), expected)
        assert last.bytes["remote"] == last.rows["remote"] * 5 * 2


def test_rows_of_one_table_are_left_in_it(tmp_path):
    graph = random_graph()
    write(PartitionedGraph.from_graph(graph), tmp_path / "p", partitioner={"name": "one"})
    store = FeatureStore(open_partition(tmp_path / "p"))
    nodes = np.array([5, 5, 7])
    rows = store.rows("x", nodes)
    assert isinstance(rows, FeatureRows)
    assert len(rows) == 3
    assert rows.shape == (3, 5)
    assert rows.dtype == torch.float32
    assert [table.shape for table in rows.tables] == [(60, 5)]
    np.testing.assert_array_equal(rows.materialise().numpy(), graph.node["x"][nodes])
    assert rows.to("cpu") is rows
    assert isinstance(rows.to("meta"), torch.Tensor)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.fetch("z", np.array([1])), ["'z'", "x, y"]),
        (lambda s: s.fetch("x", np.array([1, 60])), ["60", "0 to 59"]),
        (lambda s: s.fetch("x", np.array([-1])), ["-1"]),
    ],
)
def test_what_does_not_exist_is_named(ask, words):
    store = FeatureStore(PartitionedGraph.from_graph(random_graph()))
    with pytest.raises(InputError) as error:
        ask(store)
    assert all(word in str(error.value) for word in words)


def test_a_budget_out_of_range_is_refused():
    graph = PartitionedGraph.from_graph(random_graph())
    with pytest.raises(InputError, match="fraction"):
        FeatureStore(graph, fraction=1.5)
    with pytest.raises(InputError, match="max_bytes"):
        FeatureStore(graph, max_bytes=-1)


def over_gloo(world, hosts):
    graph = random_graph()
    partitioned = cut(graph, 4)
    placement = place(world.rank, hosts, 4)
    store = FeatureStore(partitioned, placement, world.features, Degree(), fraction=0.2)
    nodes = np.random.default_rng(world.rank).integers(0, 60, 30)
    window = [{"x": nodes, "y": nodes[:7]}, {"x": nodes[::-1].copy(), "y": nodes[7:]}]
    same = [
        np.array_equal(rows[name].numpy(), truth(graph, partitioned, name, asked[name]))
        for asked, rows in zip(window, store.fetch_window(window), strict=True)
        for name in asked
    ]
    before = world.features.traffic.copy()
    store.fetch("x", nodes)
    moved = world.features.traffic.since(before)
    return same, store.last, moved


@pytest.mark.parametrize("hosts", [["a", "b"], ["a", "b", "b"]], ids="-".join)
def test_rows_and_counted_bytes_over_real_processes(hosts):
    for same, last, moved in run_ranks(over_gloo, len(hosts), [hosts]):
        assert all(same)
        assert last.sent_bytes == moved.bytes_sent
        assert last.received_bytes == moved.bytes_received
        assert moved.rounds == 2


def test_a_host_without_a_part_asks_for_everything():
    graph = random_graph()
    partitioned = PartitionedGraph.from_graph(graph)

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 1), exchange)
        rows = store.rows("x", np.array([3, 4, 3]))
        return type(rows).__name__, store.last.rows

    (here, mine), (there, theirs) = run_threads(2, work)
    assert (here, mine["owned"], mine["remote"]) == ("FeatureRows", 3, 0)
    assert (there, theirs["owned"], theirs["remote"]) == ("FeatureRows", 0, 2)


@pytest.mark.parametrize("half", [False, True])
def test_rows_are_left_in_the_tables_of_several_parts(tmp_path, half):
    graph = random_graph()
    write(cut(graph, 4), tmp_path / "p", partitioner={"name": "cut"}, half=["x"] if half else [])
    partitioned = open_partition(tmp_path / "p")
    nodes = np.random.default_rng(1).permutation(60)[:50]
    stored = graph.node["x"].astype(np.float16 if half else graph.node["x"].dtype)
    expected = stored.astype(graph.node["x"].dtype)[partitioned.original_ids()[nodes]]

    def work(rank, exchange):
        store = FeatureStore(partitioned, place(rank, ["a", "b"], 4), exchange, Degree())
        before = store.counts.copy()
        rows = store.rows("x", nodes)
        assert isinstance(rows, FeatureRows)
        assert len(rows.tables) == 3  # of two parts here, and what the other host sent
        np.testing.assert_array_equal(rows.materialise().numpy(), expected)
        order = torch.from_numpy(np.random.default_rng(2).permutation(50)[:20])
        np.testing.assert_array_equal(rows[order].materialise().numpy(), expected[order])
        far = len(rows) - int((rows.source < 2).sum())
        assert far == store.last.rows["remote"] + store.last.rows["cached"] > 0
        size = far * 5 * (2 if half else expected.itemsize)
        assert (rows.copied, rows.nbytes) == (size, size + 2 * 8 * 50)
        # where the kernels find them
        where = rows.addresses().numpy()
        bits = np.stack(
            [np.frombuffer(_memory(a, 5 * stored.itemsize), stored.dtype) for a in where]
        )
        np.testing.assert_array_equal(bits.astype(expected.dtype), expected)
        assert (store.counts.rounds - before.rounds) == 1

    run_threads(2, work)


def _memory(address: int, size: int) -> bytes:
    return ctypes.string_at(int(address), size)
