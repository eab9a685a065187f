import numpy as np
import pytest
from support import draws
from support.graphs import random_graph
from support.threads import run_threads

from gnn_dist import rng, storage
from gnn_dist.batch import BatchIndex, global_digest
from gnn_dist.cluster import Placement
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.rng import Stream
from gnn_dist.sampling import (
    LaborSampler,
    LocalTopology,
    NeighborSampler,
    PartitionedTopology,
    Share,
)
from gnn_dist.storage import PartitionedGraph

SEED, INDEX = 11, BatchIndex(3, 5)


def whole(graph):
    return LocalTopology(PartitionedGraph.from_graph(graph).part(0))


def dense_graph(num_nodes=300, degree=40, seed=0):
    """No parallel edges."""
    generator = np.random.default_rng(seed)
    src, dst = np.unique(generator.integers(0, num_nodes, (2, num_nodes * degree)), axis=1)
    return Graph.from_edges(src, dst, num_nodes)


def expected_row(key, sources, fanout):
    """Positions in plain Python, after the documents."""
    if fanout < 0 or fanout >= len(sources):
        return list(range(len(sources)))
    variates = [draws.unit(draws.word(key, s, 0)) for s in sources]
    chosen = [j for j, r in enumerate(variates) if r < fanout / len(sources)]
    return chosen or [int(np.argmin(variates))]


@pytest.mark.parametrize("fanouts", [(3, -1, 2), (1, 1)])
def test_a_batch_is_what_the_documents_say(fanouts):
    graph = random_graph(40, 300, seed=1)
    batch = LaborSampler(fanouts, edge_ids=True).sample(
        whole(graph), np.array([5, 1, 30]), seed=SEED, index=INDEX
    )
    key = rng.fold(SEED, Stream.NEIGHBOURS, INDEX.epoch, INDEX.batch)  # one for all hops
    nodes, edges = [5, 1, 30], []
    for hop, fanout in enumerate(fanouts):
        for v in list(nodes):
            sources = graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()
            for j in expected_row(key, sources, fanout):
                position = graph.indptr[v] + j
                edge = position if graph.edge_ids is None else graph.edge_ids[position]
                edges.append((hop, sources[j], v, edge))
                if sources[j] not in nodes:
                    nodes.append(sources[j])
    assert batch.input_nodes.tolist() == nodes
    assert [tuple(row) for row in batch.edges(np.arange(40)).tolist()] == edges


def test_batches_do_not_depend_on_partition_ranks_and_bulk():
    graph = random_graph(80, 900, seed=4)
    sampler = LaborSampler([4, 3, 2], edge_ids=True, edge=("weight",))
    assignment = np.random.default_rng(1).integers(0, 3, 80).astype(np.int32)
    parts = storage.assemble(graph, assignment, 3)
    seeds = np.random.default_rng(0).permutation(80)[:18]
    indexes = [BatchIndex(0, b) for b in range(4)]

    def run(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=3)
        topology = PartitionedTopology(parts, placement, exchange)
        mine = parts.global_ids()[seeds][rank::2]
        return sampler.sample_bulk(topology, [Share(i, mine) for i in indexes], seed=1)

    for b, shares in enumerate(zip(*run_threads(2, run), strict=True)):
        alone = sampler.sample(whole(graph), seeds, seed=1, index=indexes[b])
        assert global_digest(shares, parts.original_ids()) == alone.digest(np.arange(80))


def test_degrees_are_those_of_neighbour_sampling_in_the_mean_and_vertices_are_fewer():
    graph, seeds = dense_graph(600), np.arange(0, 600, 6)
    topology, fanouts = whole(graph), (6, 6)
    neighbour, labor = NeighborSampler(fanouts), LaborSampler(fanouts)
    edges, vertices = np.zeros((2, 2)), np.zeros((2, 2))
    for b in range(60):
        for k, sampler in enumerate((neighbour, labor)):
            batch = sampler.sample(topology, seeds, seed=2, index=BatchIndex(0, b))
            outer = batch.blocks[1]
            edges[k, 0] += outer.num_edges
            vertices[k] += outer.num_src, batch.input_nodes.numel()
    # 100 rows of 6 edges of 40, 60 times: the number drawn has a spread below 0.5%
    assert edges[1, 0] == pytest.approx(edges[0, 0], rel=0.02)
    assert (vertices[1] < 0.8 * vertices[0]).all()


@pytest.mark.parametrize("fanout", [1, 2, 7])
def test_the_mean_over_the_drawn_edges_is_unbiased(fanout):
    graph, batches = dense_graph(60, 12), 4000
    topology, seeds = whole(graph), np.arange(20)
    x = np.random.default_rng(3).standard_normal(60) + 1.0
    sampler = LaborSampler([fanout])
    total, square = np.zeros(20), np.zeros(20)
    for b in range(batches):
        batch = sampler.sample(topology, seeds, seed=4, index=BatchIndex(0, b))
        block, rows = batch.blocks[0], x[batch.input_nodes.numpy()]
        drawn = rows[block.indices.numpy()]
        mean = np.add.reduceat(drawn, block.indptr.numpy()[:-1]) / block.degrees().numpy()
        total += mean
        square += mean**2
    exact = np.array(
        [x[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].mean() for v in seeds]
    )
    error = np.sqrt(np.maximum(square / batches - (total / batches) ** 2, 0) / batches)
    assert (np.abs(total / batches - exact) < 4.5 * error + 1e-9).all()
    assert (error < 0.03).all()


@pytest.mark.parametrize("options", [{"replace": True}, {"weights": "weight"}])
def test_what_labor_does_not_do_is_refused(options):
    with pytest.raises(InputError, match=f"sampler.{next(iter(options))}: labor draws by one"):
        LaborSampler([3], **options)
