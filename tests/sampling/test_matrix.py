"""The fused kernels against products of sparse matrices: equal to the last bit."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.graphs import random_graph

from gnn_dist import rng, storage
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.rng import Stream
from gnn_dist.sampling import (
    FastGcnSampler,
    LaborSampler,
    LadiesSampler,
    LocalTopology,
    MatrixTopology,
    NeighborSampler,
    PartitionedTopology,
)
from gnn_dist.storage import PartitionedGraph

SEED, INDEX = 3, BatchIndex(1, 4)
SAMPLERS = {
    "neighbor": NeighborSampler([4, -1, 3], edge_ids=True, edge=("weight",)),
    "replace": NeighborSampler([4, 3], replace=True, edge_ids=True),
    "weighted": NeighborSampler([4, 3], weights="weight", edge_ids=True),
    "weighted replace": NeighborSampler([4, 3], True, "weight", edge_ids=True),
    "labor": LaborSampler([4, 3, 2], edge_ids=True, edge=("weight",)),
    "ladies": LadiesSampler([12, -1, 20], edge_ids=True, edge=("weight",)),
    "fastgcn": FastGcnSampler([15, 20], edge_ids=True),
}


def parts_of(graph, num_parts):
    assignment = np.random.default_rng(0).integers(0, num_parts, graph.num_nodes)
    return storage.assemble(graph, assignment.astype(np.int32), num_parts)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_of_the_kernels_is_that_of_the_matrices(name):
    graph, sampler = random_graph(90, 1500, seed=5), SAMPLERS[name]
    parts = parts_of(graph, 3)
    seeds = parts.global_ids()[np.array([5, 1, 30, 77])]
    fused = PartitionedTopology(parts, Placement.single(3), LocalExchange())
    for batch in range(3):
        index = BatchIndex(0, batch)
        a = sampler.sample(fused, seeds, seed=SEED, index=index)
        b = sampler.sample(MatrixTopology(parts), seeds, seed=SEED, index=index)
        assert torch.equal(a.input_nodes, b.input_nodes)
        for one, other in zip(a.blocks, b.blocks, strict=True):
            assert torch.equal(one.indptr, other.indptr)
            assert torch.equal(one.indices, other.indices)
            assert torch.equal(one.edge_ids, other.edge_ids)
            assert (one.weight is None) == (other.weight is None)
            if one.weight is not None:
                assert torch.equal(one.weight, other.weight)


def counts(graph):
    """How many edges there are from each node to each, by destination (arrays of its own: scipy
    sorts them in place)."""
    n = graph.num_nodes
    ones = np.ones(graph.num_edges, np.int64)
    return sp.csr_matrix((ones, graph.indices.copy(), graph.indptr.copy()), (n, n))


def adjacency(graph):
    """Rows sum to 1; parallel edges add up; float64."""
    degree = np.maximum(graph.in_degrees(), 1)
    return sp.diags(1.0 / degree) @ counts(graph)


def layer_by_matrices(graph, nodes, masses, size, key):
    """Q·A with its columns scaled by m / (s p), and self-loops as they are: CSR [n, N]."""
    a, n = adjacency(graph), graph.num_nodes
    q = sp.csr_matrix((np.ones(len(nodes)), (range(len(nodes)), nodes)), (len(nodes), n))
    running = np.cumsum(masses)
    times = np.zeros(n)
    for i in range(size):
        bits = int(rng.node_draws(key, np.array([0]), i)[0])
        wanted = int((bits >> 11) * 2.0**-53 * float(running[-1]))
        times[np.searchsorted(running, wanted, side="right")] += 1
    p = masses / running[-1]
    factor = np.divide(times, size * p, out=np.zeros(n), where=p > 0)
    own = sp.diags(a.diagonal())
    return q @ ((a - own) @ sp.diags(factor) + own)


@pytest.mark.parametrize("kind", ["ladies", "fastgcn"])
def test_layers_are_those_of_the_published_products(kind):
    graph = random_graph(60, 600, seed=2)
    topology = LocalTopology(PartitionedGraph.from_graph(graph).part(0))
    sampler = {"ladies": LadiesSampler, "fastgcn": FastGcnSampler}[kind]([25, 25])
    seeds = np.array([4, 20, 33, 7, 50])
    batch = sampler.sample(topology, seeds, seed=SEED, index=INDEX)
    a, nodes = adjacency(graph), seeds
    squares = np.maximum(1, (2**36 // np.maximum(graph.in_degrees(), 1).astype(np.int64) ** 2))
    for hop, block in enumerate(batch.blocks[::-1]):
        rows = nodes if kind == "ladies" else np.arange(60)
        entries = sp.diags(squares, dtype=np.int64) @ counts(graph)
        mass = np.asarray(entries[rows].sum(axis=0)).ravel()
        true = np.asarray(a.multiply(a)[rows].sum(axis=0)).ravel()
        single = np.asarray((counts(graph) > 1).sum(axis=0)).ravel() == 0  # without parallel edges
        np.testing.assert_allclose(mass[single] / 2.0**36, true[single], rtol=1e-6, atol=1e-10)
        key = rng.fold(SEED, Stream.LAYER, *INDEX, hop)
        expected = layer_by_matrices(graph, nodes, mass, 25, key)
        ids = batch.input_nodes.numpy()
        mean = block.weight.double() / block.degrees().repeat_interleave(block.degrees())
        found = sp.csr_matrix(
            (mean.numpy(), ids[block.indices.numpy()], block.indptr.numpy()), expected.shape
        )
        np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-6)
        assert set(ids[block.indices.numpy()]) == set(expected.nonzero()[1])
        nodes = ids[: block.num_src]
