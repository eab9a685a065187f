import random

import numpy as np
import pytest
from support import netlists

from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.generate import KINDS, generate
from gnn_dist.datasets.circuits.netlist import Kind
from gnn_dist.datasets.circuits.suite import read_circuit
from gnn_dist.errors import InputError
from gnn_dist.kernels import simulate

COUNT = 96


def _run(netlist, *operands):
    """The outputs as integers for operands given as (values, width), through the kernel."""
    columns = [
        sum((value >> bit & 1) << k for k, value in enumerate(values))
        for values, width in operands
        for bit in range(width)
    ]
    assert len(columns) == netlist.inputs.size
    words = np.zeros((netlist.num_nodes, -(-COUNT // 64)), np.uint64)
    words[netlist.inputs] = netlists.to_words(columns, COUNT)
    simulate.evaluate(netlist.kinds, netlist.indptr, netlist.fanin, words)
    bits = netlists.from_words(words[netlist.outputs])
    return [sum((bit >> k & 1) << i for i, bit in enumerate(bits)) for k in range(COUNT)]


def _numbers(width, seed):
    draw = random.Random(seed)
    corners = [0, 1, (1 << width) - 1, 1 << (width - 1)]
    return (corners + [draw.getrandbits(width) for _ in range(COUNT)])[:COUNT]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 100])
def test_generated_circuits_compute_what_python_does(width):
    a, b, carry = _numbers(width, 1), _numbers(width, 2)[::-1], _numbers(1, 3)
    top = (1 << width) - 1
    a[-1], b[-1], carry[-1] = top, top, 1
    for kind in ("ripple_adder", "lookahead_adder"):
        got = _run(generate(kind, width), (a, width), (b, width), (carry, 1))
        assert got == [x + y + c for x, y, c in zip(a, b, carry, strict=True)], kind
    for kind in ("array_multiplier", "wallace_multiplier"):
        got = _run(generate(kind, width), (a, width), (b, width))
        assert got == [x * y for x, y in zip(a, b, strict=True)], kind
    stages = (width - 1).bit_length()
    shift = [s % (1 << stages) for s in b]
    got = _run(generate("barrel_shifter", width), (a, width), (shift, stages))
    assert got == [(x << s) & top for x, s in zip(a, shift, strict=True)]


def test_depth_and_size_are_those_of_the_textbook():
    def depth(kind, width):
        return labels.depths(generate(kind, width))[2]

    assert generate("ripple_adder", 64).num_gates == 5 * 64
    assert depth("ripple_adder", 64) == 2 * 64 + 1
    assert depth("lookahead_adder", 64) < 20  # logarithmic
    assert depth("wallace_multiplier", 64) < 60 < depth("array_multiplier", 64)
    assert generate("array_multiplier", 16).num_gates == 16 * 16 + 5 * 16 * 15 - 3 * 16
    assert depth("barrel_shifter", 64) <= 3 * 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_circuit_is_read_by_its_name_and_is_the_same_each_time(kind):
    one, two = read_circuit(f"{kind}:9"), generate(kind, 9)
    assert one.name == f"{kind}:9"
    for field in ("kinds", "indptr", "fanin", "outputs"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    # Few gates drive nothing: none but the carry out of a product, which is always 0.
    idle = (one.fan_out_counts() == 0) & (one.kinds > Kind.CONST1)
    idle[one.outputs] = False
    assert idle.sum() <= 2


def test_millions_of_gates_fit_the_bound():
    netlist = generate("wallace_multiplier", 450)
    assert netlist.num_gates > 1_200_000
    a, b = _numbers(450, 5), _numbers(450, 6)
    assert _run(netlist, (a, 450), (b, 450)) == [x * y for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ripple_adder:0", "must be at least 1"),
        ("ripple_adder:-4", "must end with a width"),
        ("ripple_adder:x", "must end with a width"),
        ("array_multiplier:999999", "at most"),
        ("ripple_adder:99999999999", "must end with a width"),
    ],
)
def test_bad_widths_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        read_circuit(name)


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="cannot generate 'divider'; use one of ripple_adder"):
        generate("divider", 8)
