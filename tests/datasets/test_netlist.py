import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import netlists

from gnn_dist.datasets.circuits.netlist import Kind, Netlist, NetlistBuilder
from gnn_dist.errors import InputError


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), num_gates=st.integers(0, 60))
def test_gates_in_any_order_make_the_same_circuit(seed, num_gates):
    original = netlists.random_netlist(5, num_gates, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(original.num_nodes)  # new place -> old node
    place = np.argsort(order)
    fanins = [original.fanin[original.indptr[v] : original.indptr[v + 1]] for v in order]
    shuffled = Netlist.from_gates(
        "shuffled",
        original.kinds[order],
        np.concatenate([[0], np.cumsum([len(f) for f in fanins])]),
        place[np.concatenate([*fanins, np.zeros(0, np.int64)]).astype(int)].astype(np.int32),
        place[original.outputs],
        [f"v{v}" for v in order],
    )
    old = [int(name[1:]) for name in shuffled.names]
    assert sorted(old) == list(range(original.num_nodes))
    np.testing.assert_array_equal(shuffled.kinds, original.kinds[old])
    for v in range(shuffled.num_nodes):
        fanin = shuffled.fanin[shuffled.indptr[v] : shuffled.indptr[v + 1]]
        assert (fanin < v).all()
        assert [old[u] for u in fanin] == original.fanin[
            original.indptr[old[v]] : original.indptr[old[v] + 1]
        ].tolist()
    assert [old[v] for v in shuffled.outputs] == original.outputs.tolist()


def _build(*gates, outputs=(), inputs=("a", "b")):
    builder = NetlistBuilder("t")
    for net in inputs:
        builder.input(net)
    for net, kind, *fanin in gates:
        builder.gate(net, kind, fanin)
    for net in outputs:
        builder.output(net)
    return builder.build()


def test_a_loop_is_refused_and_a_gate_on_it_named():
    gates = [
        ("front", Kind.AND, "a", "b"),
        ("x", Kind.AND, "front", "z"),
        ("y", Kind.NOT, "x"),
        ("z", Kind.OR, "y", "b"),
        ("behind", Kind.NOT, "z"),
    ]
    with pytest.raises(InputError, match=r"combinational loop.*'x' -> 'y' -> 'z' -> 'x'") as error:
        _build(*gates, outputs=["behind"])
    assert "behind" not in str(error.value)
    assert "flip-flop" in str(error.value)


def test_a_gate_that_reads_itself_is_a_loop():
    with pytest.raises(InputError, match=r"combinational loop goes through gate 'x' \(1 gates"):
        _build(("x", Kind.AND, "a", "x"))


def test_a_long_loop_is_found_and_shortened_in_the_message():
    gates = [(f"g{i}", Kind.NOT, f"g{(i + 1) % 5000}") for i in range(5000)]
    with pytest.raises(InputError, match=r"5000 gates: .* \.\.\."):
        _build(*gates)


def test_undefined_and_doubly_driven_nets_are_named():
    with pytest.raises(InputError, match=r"gate 'x' reads the net 'nowhere'.*define it"):
        _build(("x", Kind.AND, "a", "nowhere"))
    with pytest.raises(InputError, match="output 'y' is not defined"):
        _build(("x", Kind.AND, "a", "b"), outputs=["y"])
    with pytest.raises(InputError, match="'x' is driven twice"):
        _build(("x", Kind.AND, "a", "b"), ("x", Kind.OR, "a", "b"))


@pytest.mark.parametrize(
    ("kind", "fanin"), [(Kind.AND, ""), (Kind.NOT, "ab"), (Kind.BUF, ""), (Kind.CONST1, "a")]
)
def test_a_wrong_number_of_fan_ins_is_refused(kind, fanin):
    with pytest.raises(InputError, match=rf"the {kind.name} 'x' has {len(fanin)} fan-ins; give"):
        _build(("x", kind, *fanin))


def test_an_empty_circuit_is_refused():
    with pytest.raises(InputError, match="has no nodes"):
        _build(inputs=())


def test_flip_flops_are_cut():
    builder = NetlistBuilder("counter")
    builder.flip_flop("q", "d")
    builder.gate("d", Kind.NOT, ["q"])  # a loop, were it not for the flip-flop
    builder.output("q")
    netlist = builder.build()
    assert netlist.names == ("q", "d")
    assert netlist.inputs.tolist() == netlist.registers.tolist() == [0]
    assert netlist.outputs.tolist() == [0, 1]


def test_a_netlist_cannot_be_changed():
    netlist = netlists.random_netlist(3, 5, seed=0)
    for array in (netlist.kinds, netlist.indptr, netlist.fanin, netlist.outputs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
