import numpy as np
import pytest
from support.graphs import communities_in_two_parts, random_graph
from support.threads import run_threads

from gnn_dist import rng as keys
from gnn_dist.batch import BatchIndex
from gnn_dist.cluster import LocalExchange, Placement
from gnn_dist.errors import InputError
from gnn_dist.features import (
    AllParts,
    Degree,
    FeatureStore,
    Lookahead,
    NoCache,
    Score,
    Vip,
    Workload,
    inclusion_probability,
    predict,
    seed_probability,
)
from gnn_dist.features.owners import Owners
from gnn_dist.features.vip import inclusion, trials
from gnn_dist.graph import Graph
from gnn_dist.loading.plan import EpochPlan, deal
from gnn_dist.sampling import LocalTopology, NeighborSampler, PartitionedTopology
from gnn_dist.storage import PartitionedGraph, assemble


def by_sampling(graph, workload, draws, seeds_a_batch, **options):
    """How often each node is an input node, over many draws of seeds and neighbours."""
    sampler = NeighborSampler(workload.fanouts, workload.replace, workload.weights, **options)
    topology = LocalTopology(graph.part(0))
    generator = np.random.default_rng(1)
    count = np.zeros(graph.num_nodes)
    for draw in range(draws):
        seeds = generator.choice(workload.seeds, seeds_a_batch, replace=False)
        batch = sampler.sample(topology, seeds, seed=3, index=BatchIndex(0, draw))
        count[batch.input_nodes.numpy()] += 1
    return count / draws


def analysed(graph, workload):
    return inclusion_probability(graph, AllParts(graph), workload)


def test_a_directed_tree_has_the_exact_probabilities():
    # 0 <- 1, 2, 3 and 1 <- 4, 5: edges point to the seed, and never the other way
    graph = PartitionedGraph.from_graph(
        Graph.from_edges(np.array([1, 2, 3, 4, 5]), np.array([0, 0, 0, 1, 1]), 7)
    )
    workload = Workload(np.array([0, 6]), np.array([0.5, 0.5]), (1, 1))
    # Seed 0 draws one of three in each of two hops; 1 draws only if it was reached by the first.
    child, grandchild = 0.5 * (1 - (2 / 3) ** 2), 0.5 * (1 / 3) * (1 / 2)
    expected = [0.5, child, child, child, grandchild, grandchild, 0.5]
    np.testing.assert_allclose(analysed(graph, workload), expected, rtol=1e-12)


def test_all_neighbours_of_certain_seeds_are_certain():
    graph = PartitionedGraph.from_graph(random_graph())
    workload = Workload(np.array([4, 9]), np.ones(2), (-1, -1))
    batch = NeighborSampler((-1, -1)).sample(
        LocalTopology(graph.part(0)), np.array([4, 9]), seed=0, index=BatchIndex(0, 0)
    )
    expected = np.zeros(60)
    expected[batch.input_nodes.numpy()] = 1
    np.testing.assert_array_equal(analysed(graph, workload), expected)


@pytest.mark.parametrize(
    ("fanouts", "replace", "weights"),
    [((2, 3), False, None), ((3,), True, None), ((2, 2), False, "weight"), ((2, -1), False, None)],
)
def test_analysis_is_near_the_frequencies_of_sampling(fanouts, replace, weights):
    rng = np.random.default_rng(0)
    src, dst = np.unique(rng.integers(0, 300, (2, 2400)), axis=1)  # no parallel edges
    weight = rng.uniform(0.1, 2, src.size)
    graph = PartitionedGraph.from_graph(Graph.from_edges(src, dst, 300, edge={"weight": weight}))
    workload = Workload(np.arange(0, 300, 3), np.full(100, 0.08), fanouts, replace, weights)
    draws = 1500
    expected = by_sampling(graph, workload, draws, 8)
    found = analysed(graph, workload)
    assert abs(found.sum() / expected.sum() - 1) < 0.02
    noise = np.sqrt(found * (1 - found) / draws)
    assert np.mean(np.abs(found - expected) < 3 * noise + 0.02) > 0.97


def test_ranks_find_together_what_one_process_finds():
    graph = assemble(random_graph(), (np.arange(60) % 4).astype(np.int32), 4)
    hosts = ["a", "b", "b"]

    def work(rank, exchange):
        placement = Placement.build(rank=rank, hosts=hosts, num_parts=4)
        seeds = np.arange(rank, 60, 7)
        workload = Workload(seeds, np.full(seeds.size, 0.3), (3, 2))
        owners = Owners(graph, placement, exchange)
        together = inclusion(graph, owners, workload, window=3)
        return together, inclusion(graph, AllParts(graph), workload, window=3)

    for together, alone in run_threads(3, work):
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_trials_have_the_mean_and_the_chance_of_none():
    reached = np.array([0.05, 0.3, 0.5, 1.0, 0.02])
    k = 4
    one_seed = np.log1p(-k * 0.05)
    independent = k * np.log1p(-0.3)
    between = np.log(0.03)
    missed = np.array([one_seed, independent, between, -np.inf, k * np.log1p(-0.01)])
    p, m = trials(reached, missed, k)
    np.testing.assert_allclose((m * p)[:4], (k * reached)[:4])
    np.testing.assert_allclose(m[:2], [1, 4], rtol=1e-6)
    np.testing.assert_allclose(m[:3] * np.log1p(-p[:3]), missed[:3], rtol=1e-6)
    assert m[4] == k  # never more trials than batches


def test_seed_probability_follows_how_seeds_are_dealt():
    rng = np.random.default_rng(0)
    homes = rng.choice(3, 300, p=[0.6, 0.3, 0.1])
    count = np.zeros((3, 300))
    for _ in range(2000):
        picked = rng.choice(300, 30, replace=False)
        ranks = deal(homes[picked], 3)
        count[ranks, picked] += 1
    for rank in range(3):
        found = seed_probability(homes, 30, 3, rank)
        assert abs(found.sum() - 10) < 1e-9
        for home in range(3):
            expected = count[rank, homes == home].mean() / 2000
            assert abs(found[homes == home].mean() - expected) < 0.008
    assert seed_probability(np.zeros(501, int), 500, 1, 0)[0] == 0.5  # batches of 500 and of 1
    assert seed_probability(np.zeros(501, int), 500, 1, 0, drop_last=True)[0] == 500 / 501


@pytest.fixture(scope="module")
def community_graph():
    return communities_in_two_parts()


@pytest.mark.parametrize(
    ("make", "window", "ahead"),
    [
        (NoCache, 1, 0), (NoCache, 6, 0), (NoCache, 6, 6), (NoCache, 1, 6), (Degree, 1, 0),
        (Vip, 1, 0), (Vip, 6, 0), (Vip, 4, 6), (Lookahead, 3, 3), (Lookahead, 6, 12),
    ],
)  # fmt: skip
def test_predictions_agree_with_what_the_store_counts(community_graph, make, window, ahead):
    graph, epochs, fraction = community_graph, 6, 0.15
    topology = PartitionedTopology(graph, Placement.single(2), LocalExchange())
    sampler = NeighborSampler((4, 6))
    first, last = graph.offsets[:2]
    seeds = np.arange(first, last, 6)
    plan = EpochPlan(seeds, seeds, np.zeros(seeds.size, int), 50, 1, seed=0)
    trace = [
        sampler.sample(
            topology, plan.share(plan.batch(plan.order(e), b), 0), seed=0, index=BatchIndex(e, b)
        ).input_nodes.numpy()
        for e in range(epochs)
        for b in range(plan.num_batches)
    ]
    mean = seeds.size / plan.num_batches
    workload = Workload(seeds, np.full(seeds.size, mean / seeds.size), (4, 6))

    def work(rank, exchange):
        placement = Placement.build(rank=rank, hosts=["a", "b"], num_parts=2)
        store = FeatureStore(
            graph, placement, exchange, make(), fraction=fraction, workload=workload
        )
        asked = [{"x": nodes if rank == 0 else nodes[:0]} for nodes in trace]
        for start in range(0, len(asked), window):
            stop = start + window
            for _ in store.fetch_window(asked[start:stop], asked[stop : stop + ahead]):
                pass
        return placement, store.counts

    placement, counts = run_threads(2, work)[0]
    found = predict(
        graph, placement, workload, make(), fraction=fraction, batches=plan.num_batches,
        epochs=epochs, window=window, ahead=ahead,
    )  # fmt: skip
    assert found.kept == counts.rows["filled"]
    assert abs(found.needed / (counts.needed / len(trace)) - 1) < 0.05
    assert abs(found.hit_rate - counts.hit_rate) < 0.02
    assert abs(found.saved - counts.saved) < 0.02
    assert found.row_bytes == 4


def test_what_depends_on_the_draws_is_not_predicted(community_graph):
    placement = Placement.build(rank=0, hosts=["a", "b"], num_parts=2)
    workload = Workload(np.arange(5), np.full(5, 0.1), (2,))
    with pytest.raises(InputError, match="Score"):
        predict(community_graph, placement, workload, Score(), fraction=0.1, batches=1, epochs=1)


@pytest.mark.parametrize("hosts", [["a"], ["a", "b"]])
def test_a_rank_that_reaches_no_other_host_needs_nothing(hosts):
    ring = np.arange(10)
    graph = Graph.from_edges(np.append(ring, 15), np.append(np.roll(ring, 1), 3), 20)
    parts = assemble(graph, (np.arange(20) // 10).astype(np.int32), 2)
    placement = Placement.build(rank=0, hosts=hosts, num_parts=2)
    workload = Workload(np.array([7]), np.ones(1), (2, 2))  # two hops away from 3, not nearer
    for policy in (Degree(), Lookahead("degree"), Vip()):
        found = predict(
            parts, placement, workload, policy, fraction=1.0, batches=1, epochs=2, ahead=1
        )
        assert (found.needed, found.remote, found.hit_rate, found.saved) == (0, 0, 0, 0)


def test_a_missing_weight_tensor_is_named():
    graph = PartitionedGraph.from_graph(random_graph())
    workload = Workload(np.arange(5), np.full(5, 0.1), (2,), weights="mass")
    with pytest.raises(InputError, match="'mass'"):
        analysed(graph, workload)


def test_rehearsed_epochs_are_none_of_those_trained_on():
    keys_ = {keys.fold(0, keys.Stream.NEIGHBOURS, e, 0, 0) for e in range(-3, 3)}
    assert len(keys_) == 6
