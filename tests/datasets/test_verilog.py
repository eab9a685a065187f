import random

import networkx as nx
import numpy as np
import pytest
from support import netlists

from gnn_dist.datasets.circuits.netlist import Kind
from gnn_dist.datasets.circuits.suite import read_circuit
from gnn_dist.datasets.circuits.verilog import parse_verilog
from gnn_dist.errors import InputError

PATTERNS = 512


def _outputs_by_circuitgraph(name, given):
    """The outputs of a library circuit as circuitgraph's own parser understands it."""
    circuit = pytest.importorskip("circuitgraph").from_lib(name)
    everything = (1 << PATTERNS) - 1
    values = {}
    for node in nx.topological_sort(circuit.graph):
        fanin = [values[u] for u in circuit.graph.predecessors(node)]
        kind = circuit.graph.nodes[node]["type"]
        if kind == "input":
            value = given(node)
        elif kind == "bb_output":  # the Q of a flip-flop, whose net it drives
            [net] = circuit.graph.successors(node)
            value = given(net)
        elif kind in ("0", "1"):
            value = everything * int(kind)
        else:
            value = fanin[0]
            for other in fanin[1:]:
                if kind in ("and", "nand"):
                    value &= other
                elif kind in ("or", "nor"):
                    value |= other
                else:
                    value ^= other
            if kind in ("not", "nand", "nor", "xnor"):
                value ^= everything
        values[node] = value
    flip_flops = [n for n in circuit.graph if circuit.graph.nodes[n]["type"] == "bb_input"]
    return (
        {n.removeprefix("\\"): values[n] for n in circuit.outputs()},
        sorted(values[n] for n in flip_flops if n.endswith(".D")),
    )


@pytest.mark.parametrize(
    "name",
    [
        *("c17", "c17_assign", "c17_gates", "c17g", "c432", "c432g", "c499g", "c880", "c2670"),
        *("s27", "s27_unrolled_4", "switch", "banyan_8", "ctrl", "int2float", "router", "adder"),
    ],
)
def test_library_circuits_compute_what_circuitgraph_says(name):
    netlist = read_circuit(name)

    def given(net):
        return random.Random(net.removeprefix("\\").strip()).getrandbits(PATTERNS)

    inputs = [given(netlist.names[v]) for v in netlist.inputs]
    values = netlists.evaluate(netlist, inputs, PATTERNS)
    expected, next_state = _outputs_by_circuitgraph(name, given)
    split = netlist.outputs.size - netlist.registers.size
    outputs = {netlist.names[v]: values[v] for v in netlist.outputs[:split]}
    assert outputs == {net.strip(): value for net, value in expected.items()}
    assert sorted(values[v] for v in netlist.outputs[split:]) == next_state


MODULE = """
module t(a, b, c, y, \\y[1] , z);
  input a, b, c; /* a
  comment; */ output y, z;
  output \\y[1] ;
  wire [1:0] w;
  {}
endmodule
"""


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("a & b | c", lambda a, b, c: (a & b) | c),
        ("a | b & c", lambda a, b, c: a | (b & c)),
        ("a ^ b & c", lambda a, b, c: a ^ (b & c)),
        ("a | b ^ c", lambda a, b, c: a | (b ^ c)),
        ("~a | ~b", lambda a, b, c: ~a | ~b),
        ("~(a | b) & !c", lambda a, b, c: ~(a | b) & ~c),
        ("a ~^ b", lambda a, b, c: ~(a ^ b)),
        ("a ^~ b ^ c", lambda a, b, c: ~(a ^ b) ^ c),
        ("a ~^ b ~^ c", lambda a, b, c: ~(~(a ^ b) ^ c)),
        ("a & b & c & a", lambda a, b, c: a & b & c),
        ("(a & b) ^ (a & b)", lambda a, b, c: 0),
        ("a ? b : c", lambda a, b, c: (a & b) | (~a & c)),
        ("a ? b : c ? a : b", lambda a, b, c: (a & b) | (~a & ((c & a) | (~c & b)))),
        ("a ^ 1'b1", lambda a, b, c: ~a),
        ("1'h0 | b", lambda a, b, c: b),
        ("~~c", lambda a, b, c: c),
        ("~ ( ~ ( a ) )", lambda a, b, c: a),
        ("1'b0", lambda a, b, c: 0),
        ("a", lambda a, b, c: a),
    ],
)
def test_expressions_bind_as_in_verilog(expression, function):
    body = f"assign y = {expression}, \\y[1] = {expression}; and (z, {expression}, 1'b1);"
    netlist = parse_verilog(MODULE.format(body), "t")
    a, b, c = netlists.all_patterns(3)
    given = {"a": a, "b": b, "c": c}
    values = netlists.evaluate(netlist, [given[netlist.names[v]] for v in netlist.inputs], 8)
    outputs = {netlist.names[v]: values[v] for v in netlist.outputs}
    assert outputs == dict.fromkeys(["y", "y[1]", "z"], function(a, b, c) & 255)


def test_buses_several_instances_and_several_outputs():
    text = """
    module other(x); input x; endmodule
    module t (a, y);
      input [0:2] a;
      output [3:0] y;
      nand g1 (y[0], a[0], a[1]), (y[1], a[1] , a [2]);
      not n (y[2], y[3], a[2]);
    endmodule"""
    netlist = parse_verilog(text, "t")
    assert [netlist.names[v] for v in netlist.inputs] == ["a[0]", "a[1]", "a[2]"]
    assert [netlist.names[v] for v in netlist.outputs] == ["y[3]", "y[2]", "y[1]", "y[0]"]
    kinds = {netlist.names[v]: Kind(int(netlist.kinds[v])).name for v in netlist.outputs}
    assert kinds == {"y[0]": "NAND", "y[1]": "NAND", "y[2]": "NOT", "y[3]": "NOT"}


def test_the_first_module_is_read_where_none_has_the_files_name():
    text = "module first(a, y); input a; output y; not (y, a); endmodule\n module b(); endmodule"
    assert parse_verilog(text, "file").num_gates == 1


def test_flip_flops_with_inverted_outputs_are_cut():
    body = "assign y = b; dff r (.CK(c), .D(a & b), .Q(z), .QN(\\y[1] ));"
    netlist = parse_verilog(MODULE.format(body), "t")
    names = list(netlist.names)
    assert netlist.registers.tolist() == [names.index("z")]
    inverter = names.index("y[1]")
    assert netlist.kinds[inverter] == Kind.NOT
    assert netlist.fanin[netlist.indptr[inverter]] == names.index("z")
    assert netlist.kinds[netlist.outputs[-1]] == Kind.AND
    assert netlist.outputs.size == 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("assign y = a & nowhere;", "reads the net 'nowhere', which is not defined"),
        ("assign y = z; assign z = y, \\y[1] = a;", "combinational loop"),
        ("nand (y, a, b); nand (y, a, c);", "'y' is driven twice"),
        ("assign y = a + b;", r"not understood at '\+'"),
        ("assign y = (a & b;", "not understood at 'the end'"),
        ("assign y = a b;", "not understood at 'b'"),
        ("assign y = 2'b10;", 'not understood at "2\'b10"'),
        ("assign y = ? a : b;", "not understood"),
        ("assign y;", "assignment that is not understood"),
        ("always @(posedge a) y <= b;", "not gate-level Verilog"),
        ("reg q;", "not gate-level Verilog"),
        ("nand (y);", "too few pins"),
        ("nand (y, , a);", "too few pins"),
        ("nand (a & b, c);", "output is not a net"),
        ("nand y, a;", "not understood"),
        ("nand (y, a, b", "not understood"),
        ("mux m (y, a, b);", "not gate-level"),
        ("mux m (.Y(y), .A(a), .B(b));", "neither a primitive gate nor a flip-flop"),
        ("dff r (.D(a), .Q(y), .RESET(b));", "neither a primitive gate nor a flip-flop"),
        ("input [99999999:0] big;", "wider than"),
        ("input [a:0] big;", "range that is not understood"),
        ("assign y = " + "(" * 5000 + "a" + ")" * 5000 + ";", "nested deeper"),
        ("assign y = " + "a ? b : " * 5000 + "c;", "nested deeper"),
    ],
)
def test_what_is_not_gate_level_is_refused_with_the_reason(body, message):
    with pytest.raises(InputError, match=message):
        parse_verilog(MODULE.format(body), "t")


def test_files_without_a_whole_module_are_refused():
    for text in ("", "module t(a);", "endmodule", "// module t(a); endmodule\n"):
        with pytest.raises(InputError, match="has no 'module"):
            parse_verilog(text, "t")


def test_ports_declared_in_the_header_are_refused_clearly():
    with pytest.raises(InputError, match="declares its ports in the module's header"):
        parse_verilog("module t(input a, output y); not (y, a); endmodule", "t")


def test_a_library_circuit_keeps_its_gates_and_their_pins_in_order():
    netlist = read_circuit("c17")
    fanins = {
        netlist.names[v]: [
            netlist.names[u] for u in netlist.fanin[netlist.indptr[v] : netlist.indptr[v + 1]]
        ]
        for v in np.flatnonzero(netlist.kinds == Kind.NAND)
    }
    assert fanins == {
        "N10": ["N1", "N3"],
        "N11": ["N3", "N6"],
        "N16": ["N2", "N11"],
        "N19": ["N11", "N7"],
        "N22": ["N10", "N16"],
        "N23": ["N16", "N19"],
    }
