import numpy as np
import pytest
from support import netlists

from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.aiger import MAX_INPUTS, parse_aiger
from gnn_dist.datasets.circuits.netlist import Kind
from gnn_dist.datasets.circuits.suite import read_file
from gnn_dist.errors import InputError


@pytest.mark.parametrize(
    ("name", "num_ands", "num_inputs", "depth"),
    [
        ("adder", 1020, 256, 255),
        ("sin", 5416, 24, 225),
        ("log2", 32060, 32, 444),
        ("mem_ctrl", 46836, 1204, 114),
        ("hyp", 214335, 256, 24801),
    ],
)
def test_epfl_circuits_have_their_published_size_and_depth(
    shared_data, name, num_ands, num_inputs, depth
):
    netlist = read_file(shared_data / "epfl" / f"{name}.aig")
    assert (netlist.kinds == Kind.AND).sum() == num_ands
    assert netlist.inputs.size == num_inputs
    assert labels.depths(netlist, inverters=0)[2] == depth
    constants = {Kind.CONST0, Kind.CONST1}
    assert set(np.unique(netlist.kinds)) <= {Kind.INPUT, Kind.NOT, Kind.AND} | constants


@pytest.mark.parametrize("name", ["ctrl", "dec", "cavlc", "int2float"])
def test_outputs_compute_what_aigverse_says(shared_data, name):
    io = pytest.importorskip("aigverse.io")
    algorithms = pytest.importorskip("aigverse.algorithms")
    path = shared_data / "epfl" / f"{name}.aig"
    netlist = read_file(path)
    tables = algorithms.simulate(io.read_aiger_into_aig(path))
    n = netlist.inputs.size
    values = netlists.evaluate(netlist, netlists.all_patterns(n), 1 << n)
    assert len(tables) == netlist.outputs.size
    for table, output in zip(tables, netlist.outputs, strict=True):
        assert int(table.to_hex(), 16) == values[output]


def test_circuits_written_by_aigverse_are_read_in_both_formats(tmp_path):
    io = pytest.importorskip("aigverse.io")
    generators = pytest.importorskip("aigverse.generators")
    algorithms = pytest.importorskip("aigverse.algorithms")
    for seed in range(5):
        aig = generators.random_aig(num_pis=6, num_gates=40, seed=seed)
        io.write_aiger(aig, str(tmp_path / "r.aig"))
        netlist = read_file(tmp_path / "r.aig")
        text = _to_ascii((tmp_path / "r.aig").read_bytes())
        twin = parse_aiger(text, "twin")
        patterns = netlists.all_patterns(6)
        expected = [int(t.to_hex(), 16) for t in algorithms.simulate(aig)]
        for each in (netlist, twin):
            values = netlists.evaluate(each, patterns, 64)
            assert [values[v] for v in each.outputs] == expected


def _to_ascii(data: bytes) -> bytes:
    """The ASCII form of a binary file without latches, gates in reverse order."""
    header, _, rest = data.partition(b"\n")
    _, num_inputs, _, num_outputs, num_ands = (int(w) for w in header.split()[1:6])
    *outputs, body = rest.split(b"\n", num_outputs)
    at, gates = 0, []
    for i in range(num_ands):
        literal = lhs = 2 * (num_inputs + 1 + i)
        sides = []
        for _ in range(2):
            delta = shift = 0
            while True:
                byte = body[at]
                at += 1
                delta |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            literal -= delta
            sides.append(literal)
        gates.append(f"{lhs} {sides[0]} {sides[1]}".encode())
    inputs = [str(2 * (i + 1)).encode() for i in range(num_inputs)]
    return b"\n".join([header.replace(b"aig", b"aag"), *inputs, *outputs, *gates[::-1]]) + b"\n"


def test_constants_inverted_inputs_and_latches():
    # Outputs: not input 1, constant 1, constant 0, the AND; one latch that holds 0 | reset 1.
    text = b"aag 4 2 1 4 1\n2\n4\n6 8 1\n3\n1\n0\n8\n8 7 4\nc\nby hand\n"
    netlist = parse_aiger(text, "t")
    assert netlist.inputs.size == 3
    assert netlist.registers.size == 1
    values = netlists.evaluate(netlist, netlists.all_patterns(3), 8)
    one, two, latch = netlists.all_patterns(3)
    both = ~latch & two & 255
    assert [values[v] for v in netlist.outputs] == [~one & 255, 255, 0, both, both]


def test_no_constant_node_where_no_one_reads_it():
    netlist = parse_aiger(b"aag 3 2 0 1 1\n2\n4\n6\n6 2 4\n", "t")
    assert netlist.kinds.tolist() == [Kind.INPUT, Kind.INPUT, Kind.AND]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an AIGER file"),
        (b"hello\n", "the first line must be"),
        (b"aig 1 x 0 0 0\n", "must hold counts"),
        (b"aig 5 2 0 1 1\n6\n\x02\x02", "does not add up: M is 5 for I \\+ L \\+ A = 3"),
        (b"aig 3 2 0 1 1\n6\n\x02", "truncated"),
        (b"aig 3 2 0 1 1 1\n6\n\x02\x02", "properties"),
        (b"aig 3 2 0 1 1\n8\n\x02\x02", "names a variable above"),
        (b"aig 3 2 0 1 1\n6\n\x00\x02", "damaged at AND gate 1 of 1"),
        (b"aig 3 2 0 1 1\n6\n\x80\x80\x80\x80\x80\x80\x80", "damaged at AND gate 1"),
        (b"aig 3 2 0 1 1\n6\n\x07\x02", "damaged at AND gate 1"),
        (b"aig 9999999999 0 0 0 9999999999\n", "truncated: its header .* needs at least"),
        (b"aig 9999999999 9999999999 0 0 0\n", f"at most {MAX_INPUTS}"),
        (b"aag 9999999999 9999999999 0 0 0\n", "truncated"),
        (b"aag 3 2 0 1 1\n2\n4\n6\n6 2\n", "has 2 literals; it must have 3"),
        (b"aag 3 2 0 1 1\n2\n5\n6\n6 2 4\n", "literal 5; it must be even"),
        (b"aag 3 2 0 1 1\n2\n2\n6\n6 2 4\n", "variable 1 is defined twice"),
        (b"aag 9 2 0 1 1\n2\n4\n6\n6 2 18\n", "variable 9 is read and not defined"),
        (b"aag 4 2 0 1 2\n2\n4\n6\n6 2 8\n8 6 4\n", "combinational loop"),
        (b"aag 0 0 0 0 0\n", "has no nodes"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(data, message):
    with pytest.raises(InputError, match=message):
        parse_aiger(data, "t")


def test_a_truncated_file_is_refused_wherever_it_ends(shared_data):
    data = (shared_data / "epfl" / "ctrl.aig").read_bytes()
    header, _, _ = data.partition(b"\n")
    _, _, _, num_outputs, num_ands = (int(w) for w in header.split()[1:6])
    whole = parse_aiger(data, "ctrl")
    symbols = data.index(b"i0 ")
    for end in range(symbols):
        with pytest.raises(InputError):
            parse_aiger(data[:end], "ctrl")
    assert (parse_aiger(data[:symbols], "ctrl").fanin == whole.fanin).all()
    assert (num_outputs, num_ands) == (26, 174)
