from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import netlists

from gnn_dist.kernels import simulate


def _values(netlist, inputs, num_patterns):
    words = np.zeros((netlist.num_nodes, -(-num_patterns // 64)), np.uint64)
    words[netlist.inputs] = netlists.to_words(inputs, num_patterns)
    simulate.evaluate(netlist.kinds, netlist.indptr, netlist.fanin, words)
    everything = (1 << num_patterns) - 1
    return [value & everything for value in netlists.from_words(words)]


@settings(max_examples=60, deadline=None)
@given(
    num_inputs=st.integers(1, 8),
    num_gates=st.integers(0, 40),
    widest=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_every_kind_of_gate_computes_its_truth_table(num_inputs, num_gates, widest, seed):
    netlist = netlists.random_netlist(num_inputs, num_gates, seed, widest=widest)
    inputs = netlists.all_patterns(num_inputs)
    expected = netlists.evaluate(netlist, inputs, 1 << num_inputs)
    assert _values(netlist, inputs, 1 << num_inputs) == expected


def _patterns(netlist, patterns, key):
    """The patterns of a run, read off its input rows."""
    words = np.zeros((netlist.num_nodes, -(-patterns // 64)), np.uint64)
    simulate.fill_random(words, netlist.inputs, np.uint64(key), 0)
    return [v & ((1 << patterns) - 1) for v in netlists.from_words(words[netlist.inputs])]


@pytest.mark.parametrize("patterns", [1, 2, 63, 64, 65, 128, 1000])
def test_ones_and_toggles_are_counted_exactly(patterns):
    netlist = netlists.random_netlist(6, 50, seed=3)
    ones, toggles = simulate.simulate_random(
        netlist.kinds, netlist.indptr, netlist.fanin, patterns=patterns, key=9
    )
    values = netlists.evaluate(netlist, _patterns(netlist, patterns, 9), patterns)
    for v, value in enumerate(values):
        bits = f"{value:0{patterns}b}"
        assert ones[v] == bits.count("1")
        assert toggles[v] == sum(a != b for a, b in pairwise(bits))


def test_the_result_does_not_depend_on_how_many_words_are_held():
    netlist = netlists.random_netlist(9, 300, seed=5)
    arrays = (netlist.kinds, netlist.indptr, netlist.fanin)
    whole = simulate.simulate_random(*arrays, patterns=5000, key=1)
    cut = simulate.simulate_random(*arrays, patterns=5000, key=1, budget=1)
    np.testing.assert_array_equal(whole[0], cut[0])
    np.testing.assert_array_equal(whole[1], cut[1])


def test_inputs_are_fair_and_independent():
    netlist = netlists.random_netlist(40, 1, seed=0)
    patterns = 1 << 14
    columns = _patterns(netlist, patterns, key=123)
    bits = np.array([[c >> k & 1 for k in range(patterns)] for c in columns], np.float64)
    bound = 5 * 0.5 / np.sqrt(patterns)
    assert np.abs(bits.mean(axis=1) - 0.5).max() < bound
    between_inputs = np.corrcoef(bits)[~np.eye(40, dtype=bool)]
    assert np.abs(between_inputs).max() < 5 / np.sqrt(patterns)
    centred = bits - 0.5
    for lag in (1, 63, 64):
        in_time = 4 * (centred[:, lag:] * centred[:, :-lag]).mean(axis=1)
        assert np.abs(in_time).max() < 5 / np.sqrt(patterns - lag)


@settings(max_examples=12, deadline=None)
@given(num_gates=st.integers(1, 25), seed=st.integers(0, 10_000))
def test_longest_paths_are_those_of_networkx(num_gates, seed):
    netlist = netlists.random_netlist(4, num_gates, seed)
    rng = np.random.default_rng(seed)
    delay = rng.integers(0, 5, netlist.num_nodes)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(netlist.num_nodes))
    graph.add_edges_from(zip(netlist.fanin.tolist(), netlist.destinations().tolist(), strict=True))
    above = simulate.longest_from_inputs(netlist.indptr, netlist.fanin, delay)
    below = simulate.longest_to_ends(netlist.indptr, netlist.fanin, delay)
    hops = simulate.hop_levels(netlist.indptr, netlist.fanin)
    for v in range(netlist.num_nodes):
        before = graph.subgraph(nx.ancestors(graph, v) | {v}).copy()
        after = graph.subgraph(nx.descendants(graph, v) | {v}).copy()
        assert hops[v] == nx.dag_longest_path_length(before)
        for sub in (before, after):
            for a, b in sub.edges:
                sub[a][b]["weight"] = int(delay[b])
        sources = [u for u in before if before.in_degree(u) == 0]
        longest = max(_longest(before, u, v) + int(delay[u]) for u in sources)
        assert above[v] == longest
        assert below[v] == max(_longest(after, v, u) for u in after)


def _longest(graph, start, end):
    """The longest path by dynamic programming over networkx's order, -1e9 where there is none."""
    best = dict.fromkeys(graph, -(10**9))
    best[start] = 0
    for u in nx.topological_sort(graph):
        for w in graph.successors(u):
            best[w] = max(best[w], best[u] + graph[u][w]["weight"])
    return best[end]


def test_nodes_on_or_behind_a_loop_have_no_level():
    # 0 -> 1 <-> 2 -> 3, and 4 alone
    indptr = np.array([0, 0, 2, 3, 4, 4])
    fanin = np.array([0, 2, 1, 2], np.int32)
    assert simulate.hop_levels(indptr, fanin).tolist() == [0, -1, -1, -1, 0]


def test_warmup_compiles_what_a_run_calls():
    simulate.warmup()
    for kernel in (simulate.evaluate, simulate.count, simulate.fill_random):
        before = set(kernel.signatures)
        netlist = netlists.random_netlist(3, 9, seed=1)
        simulate.simulate_random(netlist.kinds, netlist.indptr, netlist.fanin, patterns=300, key=7)
        assert set(kernel.signatures) == before
