import numpy as np
import pytest
from support import netlists

from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.netlist import Kind, NetlistBuilder
from gnn_dist.datasets.circuits.suite import available, read_circuit, read_file
from gnn_dist.errors import InputError
from gnn_dist.kernels import simulate

PATTERNS = 16384


def _check_against_brute_force(netlist):
    n = netlist.inputs.size
    size = 1 << n
    inputs = netlists.all_patterns(n)
    expected = netlists.evaluate(netlist, inputs, size)
    words = np.zeros((netlist.num_nodes, -(-size // 64)), np.uint64)
    words[netlist.inputs] = netlists.to_words(inputs, size)
    simulate.evaluate(netlist.kinds, netlist.indptr, netlist.fanin, words)
    mask = (1 << size) - 1
    assert [v & mask for v in netlists.from_words(words)] == expected, "exhaustive patterns"

    exact = np.array([v.bit_count() for v in expected]) / size
    probability, activity = labels.signal_statistics(netlist, patterns=PATTERNS, key=77)
    # Six standard deviations of a binomial share; none where the node is constant.
    bound = 6 * np.sqrt(exact * (1 - exact) / PATTERNS)
    assert (np.abs(probability - exact) <= bound).all()
    toggles = 2 * exact * (1 - exact)
    # Neighbouring pairs share a pattern: the variance is at most three times the binomial one.
    bound = 6 * np.sqrt(3 * toggles * (1 - toggles) / PATTERNS)
    assert (np.abs(activity - toggles) <= bound).all()


def _small(names):
    return [n for n in names if read_circuit(n).inputs.size <= 16]


def test_simulation_agrees_with_brute_force_on_every_installed_circuit_of_16_inputs():
    pytest.importorskip("circuitgraph")
    files = [n for n in available() if not n.startswith(("b1", "b2"))]
    small = [n for n in files if _size(n) < 60_000 and read_circuit(n).inputs.size <= 16]
    assert {"c17", "s27", "ctrl", "dec", "cavlc", "int2float", "mux_4", "switch"} <= set(small)
    for name in small:
        _check_against_brute_force(read_circuit(name))


def _size(name):
    from gnn_dist.datasets.circuits.suite import _library

    return _library()[name].stat().st_size


@pytest.mark.parametrize("name", ["ctrl", "dec", "cavlc", "int2float"])
def test_simulation_agrees_with_brute_force_on_epfl_files_of_16_inputs(shared_data, name):
    _check_against_brute_force(read_file(shared_data / "epfl" / f"{name}.aig"))


@pytest.mark.parametrize(
    "name",
    [
        *("ripple_adder:7", "lookahead_adder:7", "array_multiplier:8", "wallace_multiplier:8"),
        "barrel_shifter:12",
    ],
)
def test_simulation_agrees_with_brute_force_on_generated_circuits_of_16_inputs(name):
    netlist = read_circuit(name)
    assert netlist.inputs.size in (15, 16)
    _check_against_brute_force(netlist)


def test_levels_and_slack_of_a_circuit_by_hand():
    builder = NetlistBuilder("t")
    for net in "abc":
        builder.input(net)
    builder.gate("n", Kind.NOT, ["a"])
    builder.gate("x", Kind.AND, ["n", "b"])
    builder.gate("y", Kind.OR, ["x", "c"])
    builder.gate("z", Kind.NAND, ["a", "c"])
    builder.output("y")
    builder.output("z")
    netlist = builder.build()
    at = {name: v for v, name in enumerate(netlist.names)}
    order = [at[name] for name in "abcnxyz"]
    targets = ["level", "reverse_level", "slack", "relative_slack"]
    rows = labels.compute(netlist, targets, patterns=64, key=0)[order]
    assert rows[:, 0].tolist() == [0, 0, 0, 1, 2, 3, 1]
    assert rows[:, 1].tolist() == [3, 2, 1, 2, 1, 0, 0]
    assert rows[:, 2].tolist() == [0, 1, 2, 0, 0, 0, 2]
    np.testing.assert_allclose(rows[:, 3], rows[:, 2] / 3, rtol=1e-6)
    free = labels.compute(netlist, targets, patterns=64, key=0, inverters=0)[order]
    assert free[:, 0].tolist() == [0, 0, 0, 0, 1, 2, 1]
    assert free[:, 2].tolist() == [0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("name", ["c432", "c1908", "array_multiplier:12"])
def test_some_path_has_no_slack_and_none_has_less(name):
    netlist = read_circuit(name)
    level, reverse, depth = labels.depths(netlist)
    slack = depth - level - reverse
    assert slack.min() == 0
    # Along a critical path every level from 0 to the depth occurs.
    assert set(level[slack == 0]) == set(range(depth + 1))


def test_the_labels_of_a_seed_are_always_the_same():
    netlist = read_circuit("array_multiplier:6")
    one = labels.compute(netlist, ["probability", "activity"], patterns=1000, key=5)
    again = labels.compute(netlist, ["probability", "activity"], patterns=1000, key=5)
    other = labels.compute(netlist, ["probability", "activity"], patterns=1000, key=6)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert one.dtype == np.float32


def test_an_unknown_target_is_refused():
    with pytest.raises(InputError, match="none named 'delay'; use probability"):
        labels.check(["delay"])
