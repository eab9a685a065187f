"""Damaged circuit files give ``InputError``: never a crash, a hang or unbounded memory."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.datasets.circuits.aiger import parse_aiger
from gnn_dist.datasets.circuits.bench import parse_bench
from gnn_dist.datasets.circuits.netlist import Netlist
from gnn_dist.datasets.circuits.verilog import parse_verilog
from gnn_dist.errors import InputError

BINARY = (
    b"aig 9 3 1 2 5\n8 1\n18\n11\n\x02\x02\x04\x02\x03\x05\x02\x04\x02\x06i0 a\nl0 q\no1 y\nc\nx\n"
)
ASCII = b"aag 6 2 1 2 3\n2\n4\n6 13 0\n8\n13\n8 2 4\n10 7 8\n12 10 5\ni0 a\no0 y\nc\nend\n"
BENCH = "# c\nINPUT(a)\nINPUT(b)\nOUTPUT(y)\nq = DFF(y)\nx = NAND(a, q)\ny = XOR(x, b, a)\n"
VERILOG = """module t (a, b, y); input a, b; output y; wire [1:0] w; // c
nand g (w[0], a, b), (w[1], a, \\c[0] ); ff r (.CK(a), .D(w[0]), .Q(\\c[0] ));
assign y = ~(a & w[1]) | b ^ 1'b0 ? w[0] : b; endmodule
"""
LARGEST = 200 << 20  # bytes; the parsers' own limits stay well below


def _parse(parser, data, *, watch_memory=False):
    """The netlist, or None where the input is refused; anything else fails the test."""
    if watch_memory:
        tracemalloc.start()
    try:
        netlist = parser(data, "fuzz")
    except InputError as error:
        if len(str(error)) >= 1000:
            pytest.fail(f"a message of {len(str(error))} characters")
        return None
    finally:
        if watch_memory:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < LARGEST
    assert isinstance(netlist, Netlist)
    assert (netlist.fanin < netlist.destinations()).all()
    for nodes in (netlist.fanin, netlist.outputs, netlist.registers):
        assert nodes.size == 0 or 0 <= nodes.min() <= nodes.max() < netlist.num_nodes
    return netlist


def test_the_files_that_are_damaged_below_are_whole():
    for parser, data in (
        (parse_aiger, BINARY),
        (parse_aiger, ASCII),
        (parse_bench, BENCH),
        (parse_verilog, VERILOG),
    ):
        assert _parse(parser, data).num_gates >= 2


@settings(max_examples=300, deadline=None)
@given(data=st.data(), source=st.sampled_from([BINARY, ASCII]))
def test_aiger_with_bytes_changed_and_cut(data, source):
    whole = bytearray(source)
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    _parse(parse_aiger, bytes(whole[: data.draw(st.integers(0, len(whole)))]), watch_memory=True)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["aig", "aag"]),
    counts=st.lists(
        st.one_of(st.integers(0, 9), st.integers(0, 1 << 34), st.integers(0, 10**30)),
        min_size=3,
        max_size=9,
    ),
    consistent=st.booleans(),
    body=st.one_of(st.binary(max_size=60), st.just(b"2\n4\n6\n" * 10)),
)
def test_aiger_with_any_header(kind, counts, consistent, body):
    if consistent and len(counts) >= 5:
        counts[0] = counts[1] + counts[2] + counts[4]
    header = " ".join([kind, *map(str, counts)]).encode()
    _parse(parse_aiger, header + b"\n" + body, watch_memory=True)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_aiger_of_any_bytes(data):
    _parse(parse_aiger, data, watch_memory=True)


def _damaged(data, source):
    """The text with pieces removed, repeated or replaced by other pieces of it."""
    text = source
    for _ in range(data.draw(st.integers(1, 5))):
        at, to = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        other = sorted(data.draw(st.tuples(*[st.integers(0, len(source))] * 2)))
        change = data.draw(st.sampled_from(["cut", "twice", "other", "any"]))
        middle = {
            "cut": "",
            "twice": text[at:to] * 2,
            "other": source[other[0] : other[1]],
            "any": data.draw(st.text(max_size=5)),
        }[change]
        text = text[:at] + middle + text[to:]
    return text


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_bench_with_pieces_moved(data):
    _parse(parse_bench, _damaged(data, BENCH))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_verilog_with_pieces_moved(data):
    _parse(parse_verilog, _damaged(data, VERILOG))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *("module", "endmodule", "assign", "nand", "not", "input", "output", "wire"),
                *("a", "b", "y", "t", "1", "1'b0", "\\x[0]", "ff", ".D", ".Q", "\n"),
                *("(", ")", ",", ";", "=", "&", "|", "^", "~", "?", ":", ".", "[", "]"),
                *("//", "/*", "*/", "(*", "*)"),
            ]
        ),
        max_size=40,
    )
)
def test_verilog_of_any_tokens(tokens):
    _parse(parse_verilog, "module t (a, y); input a; " + " ".join(tokens) + " endmodule")


@pytest.mark.parametrize(
    "piece",
    [
        *("module a ", "/* ", "(* ", "endmodule ", "(", "~", "a ", "1 ", "\\", "? ", "nand "),
        *("assign y = ", "nand g (y, a, ", "input [1:0] ", "ff g (.D(", "&", " ", "\n", ";"),
    ],
)
@pytest.mark.timeout(30)
def test_long_verilog_of_one_piece_is_no_hang(piece):
    body = piece * (120_000 // len(piece))
    _parse(parse_verilog, body)
    _parse(parse_verilog, f"module t(a); {body} ; endmodule {body}")


@pytest.mark.parametrize("piece", ["(", "INPUT(", "a = AND(", "a", " ", ",", "=", "\n", "a=AND(b)"])
@pytest.mark.timeout(30)
def test_long_bench_of_one_piece_is_no_hang(piece):
    body = piece * (120_000 // len(piece))
    for text in (body, f"y = AND({body})", "\n".join([piece] * 10_000)):
        _parse(parse_bench, text)


def test_random_and_inverter_graphs_survive_a_round_through_the_binary_format():
    """A reader that refused everything would pass the tests above."""
    for seed in range(20):
        draw = random.Random(seed)
        num_inputs, num_ands = draw.randint(1, 9), draw.randint(0, 60)
        body, gates = bytearray(), []
        for i in range(num_ands):
            lhs = 2 * (num_inputs + 1 + i)
            one, two = sorted((draw.randrange(lhs) for _ in range(2)), reverse=True)
            gates.append((one, two))
            for delta in (lhs - one, one - two):
                while delta > 127:
                    body.append(delta & 127 | 128)
                    delta >>= 7
                body.append(delta)
        top = num_inputs + num_ands
        header = f"aig {top} {num_inputs} 0 1 {num_ands}\n{2 * top + 1}\n".encode()
        netlist = _parse(parse_aiger, header + bytes(body))
        assert (netlist.kinds == 5).sum() == num_ands
        read = {lit >> 1 for gate in gates for lit in gate if lit & 1} | {top}
        assert (netlist.kinds == 4).sum() == len(read - {0})
        assert np.bincount(netlist.kinds, minlength=11)[0] == num_inputs
