import pickle
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import draws
from support.graphs import random_graph

from gnn_dist import rng, storage
from gnn_dist.batch import BatchIndex, global_digest
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.rng import Stream
from gnn_dist.sampling import LocalTopology, NeighborSampler, PartitionedTopology
from gnn_dist.storage import PartitionedGraph

SEED, INDEX = 11, BatchIndex(3, 5)
OPTIONS = (
    {},
    {"replace": True},
    {"weights": "weight"},
    {"weights": "weight", "replace": True},
)


def whole(graph):
    return LocalTopology(PartitionedGraph.from_graph(graph).part(0))


def in_parts(graph, num_parts, seed=0):
    assignment = np.random.default_rng(seed).integers(0, num_parts, graph.num_nodes)
    parts = storage.assemble(graph, assignment, num_parts)
    return parts, PartitionedTopology(parts, Placement.single(num_parts), LocalExchange())


def in_edges(graph):
    """destination → (edge ids, sources, weights) in the graph's order."""
    ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
    weight = graph.edge.get("weight", np.ones(graph.num_edges, np.float32))
    rows = {}
    for v in range(graph.num_nodes):
        here = slice(graph.indptr[v], graph.indptr[v + 1])
        rows[v] = ids[here].tolist(), graph.indices[here].tolist(), weight[ids[here]].tolist()
    return rows


def expected_edges(graph, seeds, fanouts, index=INDEX, replace=False, weights=None):
    """The batch in plain Python: a set of (hop, source, destination, edge id), and the nodes."""
    rows, edges, nodes = in_edges(graph), [], list(seeds)
    for hop, fanout in enumerate(fanouts):
        key = rng.fold(SEED, Stream.NEIGHBOURS, index.epoch, index.batch, hop)
        for v in list(nodes):
            ids, sources, weight = rows[v]
            if weights is None:
                places = draws.row(key, v, len(ids), fanout, replace)
            else:
                places = draws.weighted_row(key, v, weight, fanout, replace)
            for j in places:
                edges.append((hop, sources[j], v, ids[j]))
                if sources[j] not in nodes:
                    nodes.append(sources[j])
    return edges, nodes


@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_is_what_the_documents_say(options):
    graph = random_graph(40, 300, seed=1)
    seeds, fanouts = np.array([5, 1, 30]), (3, -1, 2)
    sampler = NeighborSampler(fanouts, edge_ids=True, edge=("weight",), **options)
    batch = sampler.sample(whole(graph), seeds, seed=SEED, index=INDEX)
    edges, nodes = expected_edges(graph, seeds.tolist(), fanouts, **options)
    assert batch.input_nodes.tolist() == nodes
    assert [tuple(row) for row in batch.edges(np.arange(40)).tolist()] == edges
    assert batch.seeds.tolist() == seeds.tolist()
    assert batch.global_seeds == 3
    for block in batch.blocks:
        np.testing.assert_array_equal(block.weight, graph.edge["weight"][block.edge_ids])


def test_shapes_dtypes_and_keys_of_blocks():
    graph = random_graph(40, 300, seed=1)
    batch = NeighborSampler([3, 2]).sample(
        whole(graph), torch.tensor([4, 2]), seed=SEED, index=INDEX, global_seeds=9
    )
    outer, inner = batch.blocks[1], batch.blocks[0]
    assert batch.index == INDEX
    assert batch.global_seeds == 9
    assert (outer.num_dst, inner.num_dst) == (2, outer.num_src)
    assert inner.num_src == batch.input_nodes.numel()
    for layer, block in enumerate(batch.blocks):
        assert (block.indptr.dtype, block.indices.dtype) == (torch.int64, torch.int32)
        assert block.indices.max() < block.num_src
        assert block.edge_ids is None
        assert block.weight is None
        assert block.ids[: block.num_dst].tolist() == batch.input_nodes[: block.num_dst].tolist()
        assert block.key == rng.fold(SEED, Stream.DROPOUT, 3, 5, layer)
    assert batch.seeds.dtype == batch.input_nodes.dtype == torch.int64


def test_ids_of_blocks_are_original_ones():
    graph = random_graph(50, 300, seed=2)
    parts, topology = in_parts(graph, 3)
    batch = NeighborSampler([3, 3]).sample(topology, np.arange(8), seed=1, index=INDEX)
    for block in batch.blocks:
        expected = parts.original_ids()[batch.input_nodes.numpy()]
        assert block.ids[: block.num_dst].tolist() == expected[: block.num_dst].tolist()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("num_parts", [1, 2, 4, 50])
def test_batches_do_not_depend_on_the_partition(num_parts, options):
    graph = random_graph(50, 500, seed=3)
    sampler = NeighborSampler([4, 3, 2], edge_ids=True, edge=("weight",), **options)
    parts, topology = in_parts(graph, num_parts, seed=num_parts)
    original = np.array([7, 3, 40, 12])
    for batch in range(5):
        index = BatchIndex(0, batch)
        one = sampler.sample(whole(graph), original, seed=SEED, index=index)
        cut = sampler.sample(topology, parts.global_ids()[original], seed=SEED, index=index)
        assert cut.digest(parts.original_ids()) == one.digest(np.arange(50))
        # not the sets alone: numbering and order are the same too
        assert parts.original_ids()[cut.input_nodes.numpy()].tolist() == one.input_nodes.tolist()
        for a, b in zip(one.blocks, cut.blocks, strict=True):
            assert torch.equal(a.indptr, b.indptr)
            assert torch.equal(a.indices, b.indices)
            assert torch.equal(a.edge_ids, b.edge_ids)
            assert torch.equal(a.weight, b.weight)
            assert torch.equal(a.ids[: a.num_dst], b.ids[: b.num_dst])


def test_batches_do_not_depend_on_how_seeds_are_dealt_to_ranks():
    graph = random_graph(60, 500, seed=4)
    topology, sampler = whole(graph), NeighborSampler([3, 3], edge_ids=True)
    seeds = np.random.default_rng(0).permutation(60)[:12]

    def shares(*parts):
        return [sampler.sample(topology, p, seed=SEED, index=INDEX) for p in parts]

    book = np.arange(60)
    together = global_digest(shares(seeds), book)
    assert global_digest(shares(seeds[::-1].copy()), book) == together
    assert global_digest(shares(seeds[:5], seeds[5:]), book) == together
    assert global_digest(shares(seeds[::2], seeds[1::2], seeds[:0]), book) == together
    assert global_digest(shares(seeds[:11]), book) != together


def test_seed_epoch_batch_and_hop_each_change_the_draws():
    graph = random_graph(60, 3000, seed=5)
    topology, sampler = whole(graph), NeighborSampler([5], edge_ids=True)
    seeds = np.arange(60)

    def edges(seed, epoch, batch):
        drawn = sampler.sample(topology, seeds, seed=seed, index=BatchIndex(epoch, batch))
        return tuple(drawn.blocks[0].edge_ids.tolist())

    assert len({edges(1, 0, 0), edges(2, 0, 0), edges(1, 1, 0), edges(1, 0, 1)}) == 4
    assert edges(1, 0, 0) == edges(1, 0, 0)
    two_hops = NeighborSampler([5, 5], edge_ids=True)
    batch = two_hops.sample(topology, seeds, seed=1, index=BatchIndex(0, 0))
    by_hop = [defaultdict(set), defaultdict(set)]
    for hop, _, destination, edge in batch.edges(np.arange(60)):
        by_hop[hop][destination].add(edge)
    assert any(by_hop[0][v] != by_hop[1][v] for v in range(60))


@st.composite
def small_graphs(draw):
    """Empty rows, self-loops, parallel edges, one node."""
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=60))
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return Graph.from_edges(src, dst, num_nodes)


@given(small_graphs(), st.lists(st.sampled_from([-1, 1, 2, 4]), min_size=1, max_size=3),
       st.booleans(), st.integers(1, 4), st.randoms(use_true_random=False))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_any_graph_in_any_parts(graph, fanouts, replace, num_parts, random):
    seeds = random.sample(range(graph.num_nodes), random.randint(0, graph.num_nodes))
    edges, nodes = expected_edges(graph, seeds, fanouts, replace=replace)
    parts, topology = in_parts(graph, num_parts, seed=random.randint(0, 99))
    sampler = NeighborSampler(fanouts, replace, edge_ids=True)
    batch = sampler.sample(
        topology, parts.global_ids()[np.array(seeds, np.int64)], seed=SEED, index=INDEX
    )
    book = parts.original_ids()
    assert book[batch.input_nodes.numpy()].tolist() == nodes
    assert [tuple(row) for row in batch.edges(book).tolist()] == edges
    real = set()
    for v, (ids, sources, _) in in_edges(graph).items():
        real |= {(u, v, e) for e, u in zip(ids, sources, strict=True)}
    assert {edge[1:] for edge in edges} <= real
    assert [block.num_src for block in batch.blocks[1:]] == [b.num_dst for b in batch.blocks[:-1]]


def test_no_seeds_give_empty_blocks():
    graph = random_graph(20, 60)
    sampler = NeighborSampler([3, -1], edge_ids=True, edge=("weight",))
    for topology in (whole(graph), in_parts(graph, 3)[1]):
        batch = sampler.sample(topology, np.empty(0, np.int64), seed=0, index=INDEX)
        assert batch.input_nodes.numel() == batch.global_seeds == 0
        for block in batch.blocks:
            assert (block.num_src, block.num_dst, block.num_edges) == (0, 0, 0)
            assert block.weight.dtype == torch.float32
            assert block.edge_ids.dtype == torch.int64


def test_edge_tensors_of_any_shape_follow_their_edges():
    graph = random_graph(30, 200, seed=6)
    tensors = {
        "weight": np.arange(200, dtype=np.float64),
        "attr": np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32),
        "kind": np.arange(200, dtype=np.uint8),
        "half": np.arange(200).astype(np.float16),
        "flag": np.arange(200) % 3 == 0,
    }
    graph = Graph(graph.indptr, graph.indices, graph.edge_ids, edge=tensors)
    sampler = NeighborSampler([3], edge_ids=True, edge=tuple(tensors))
    for topology in (whole(graph), in_parts(graph, 4)[1]):
        (block,) = sampler.sample(topology, np.arange(30), seed=0, index=INDEX).blocks
        ids = block.edge_ids.numpy()
        assert set(block.edge) == {"attr", "kind", "half", "flag"}
        for name, rows in {**block.edge, "weight": block.weight}.items():
            np.testing.assert_array_equal(rows.numpy(), tensors[name][ids])
        assert block.edge["half"].dtype == torch.float32
        assert block.weight.dtype == torch.float64


def test_several_threads_may_use_one_sampler():
    graph = random_graph(3000, 30_000, seed=7)
    topology, sampler = whole(graph), NeighborSampler([5, 5, 5])
    book = np.arange(3000)

    def digest(batch):
        seeds = np.random.default_rng(batch).permutation(3000)[:64]
        drawn = sampler.sample(topology, seeds, seed=0, index=BatchIndex(0, batch))
        return drawn.digest(book)

    alone = [digest(batch) for batch in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(digest, range(40))) == alone


def test_a_batch_keeps_its_arrays_when_the_next_is_drawn():
    graph = random_graph(60, 500, seed=8)
    topology, sampler = whole(graph), NeighborSampler([3, 3], edge_ids=True)
    first = sampler.sample(topology, np.arange(5), seed=0, index=BatchIndex(0, 0))
    before = first.digest(np.arange(60))
    sampler.sample(topology, np.arange(50), seed=0, index=BatchIndex(0, 1))
    assert first.digest(np.arange(60)) == before
    assert graph.indices.tobytes() == random_graph(60, 500, seed=8).indices.tobytes()


def test_one_sampler_serves_graphs_of_several_sizes():
    sampler = NeighborSampler([2, 2], edge_ids=True)
    for num_nodes in (10, 400, 10):
        graph = random_graph(num_nodes, 5 * num_nodes, seed=num_nodes)
        batch = sampler.sample(whole(graph), np.arange(5), seed=SEED, index=INDEX)
        edges, _ = expected_edges(graph, range(5), (2, 2))
        assert [tuple(row) for row in batch.edges(np.arange(num_nodes)).tolist()] == edges


@pytest.mark.parametrize("options", OPTIONS)
def test_a_written_partition_gives_the_same_batches(tmp_path, options):
    graph = random_graph(50, 400, seed=9)
    parts, topology = in_parts(graph, 2)
    storage.write(parts, tmp_path / "parts", partitioner={"name": "random"})
    mapped = PartitionedTopology(
        storage.open_partition(tmp_path / "parts"), Placement.single(2), LocalExchange()
    )
    sampler = NeighborSampler([3, -1], edge_ids=True, edge=("weight",), **options)
    book = parts.original_ids()
    in_memory, on_disk = (
        sampler.sample(t, np.arange(9), seed=SEED, index=INDEX) for t in (topology, mapped)
    )
    assert on_disk.digest(book) == in_memory.digest(book)
    assert torch.equal(on_disk.blocks[0].weight, in_memory.blocks[0].weight)


def test_a_sampler_can_be_pickled_and_compared():
    sampler = NeighborSampler([3, -1], True, "weight", True, ["weight"])
    again = pickle.loads(pickle.dumps(sampler))
    assert again == sampler
    assert again != NeighborSampler([3, 2], True, "weight", True, ["weight"])
    assert again.fanouts == (3, -1)


@pytest.mark.parametrize("fanouts", [[], [0], [3, -2], [2.5], [True]])
def test_fanouts_that_cannot_be_used(fanouts):
    with pytest.raises(InputError, match=r"sampler\.fanouts: "):
        NeighborSampler(fanouts)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 2, 1], "seeds: node 1 is given twice"),
        ([60], "seeds: entry 0 is 60, a node that does not exist; ids run from 0 to 59"),
        ([0, -3], "seeds: entry 1 is -3"),
        ([0.5], "seeds: must be one-dimensional whole numbers"),
        ([[1], [2]], "seeds: must be one-dimensional whole numbers"),
    ],
)
def test_seeds_that_cannot_be_used(seeds, message):
    topology = whole(random_graph())
    with pytest.raises(InputError, match=message):
        NeighborSampler([2]).sample(topology, np.array(seeds), seed=0, index=INDEX)


@pytest.mark.parametrize("cut", [False, True])
def test_edge_tensors_that_cannot_be_used(cut):
    graph = random_graph()
    weight = graph.edge["weight"].copy()
    weight[17] = -0.5
    wide = np.ones((graph.num_edges, 2), np.float32)
    graph = Graph(
        graph.indptr, graph.indices, graph.edge_ids, edge={"weight": weight, "wide": wide}
    )
    topology = in_parts(graph, 2)[1] if cut else whole(graph)

    def sample(**options):
        return NeighborSampler([2], **options).sample(
            topology, np.arange(graph.num_nodes), seed=0, index=INDEX
        )

    with pytest.raises(InputError, match=r"sampler.weights: .* 'w'; it has weight, wide"):
        sample(weights="w")
    with pytest.raises(InputError, match=r"sampler.edge: .* 'w'; it has weight, wide"):
        sample(edge=["w"])
    with pytest.raises(InputError, match=r"'weight' holds -0.5 for edge 17; .* not be negative"):
        sample(weights="weight")
    with pytest.raises(InputError, match=r"'wide' has shape \(2,\); give one number an edge"):
        sample(weights="wide")
