import pytest
from support import netlists

from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.bench import parse_bench
from gnn_dist.datasets.circuits.netlist import Kind
from gnn_dist.datasets.circuits.suite import read_file
from gnn_dist.errors import InputError


def test_c6288_has_its_published_size_and_depth(shared_data):
    netlist = read_file(shared_data / "bench" / "c6288_orig.bench")
    assert (netlist.kinds == Kind.AND).sum() == 2337
    assert labels.depths(netlist, inverters=0)[2] == 120


def test_c6288_multiplies(shared_data):
    """The circuit is a 16 by 16 multiplier: its outputs are those of Python's product."""
    netlist = read_file(shared_data / "bench" / "c6288_orig.bench")

    def number(v: int) -> int:  # of the net, which rises with the weight of the bit
        return int(netlist.names[v].split("gat")[0].strip("_"))

    by_number = sorted(netlist.inputs.tolist(), key=number)
    a, b = 0xBEEF, 0x1CED
    given = {v: (a >> i) & 1 for i, v in enumerate(by_number[:16])}
    given |= {v: (b >> i) & 1 for i, v in enumerate(by_number[16:])}
    values = netlists.evaluate(netlist, [given[v] for v in netlist.inputs.tolist()], 1)
    bits = [values[v] for v in sorted(netlist.outputs.tolist(), key=number)]
    assert sum(bit << i for i, bit in enumerate(bits)) == a * b


def test_gates_constants_comments_and_flip_flops():
    text = """# a comment
    INPUT(a)   # another
    input( b )
    OUTPUT(y)
    q = DFF(d)
    d = XNOR(a, q, b)
    one = vdd
    zero = gnd()
    y = nand(d, one)
    z = BUFF(zero)
    """
    netlist = parse_bench(text, "t")
    names = netlist.names
    assert [Kind(int(k)).name for k in netlist.kinds[[names.index(n) for n in "abqdyz"]]] == [
        *("INPUT", "INPUT", "INPUT", "XNOR", "NAND", "BUF"),
    ]
    assert [names[v] for v in netlist.outputs] == ["y", "d"]
    a, b, q = netlists.all_patterns(3)
    given = {"a": a, "b": b, "q": q}
    values = netlists.evaluate(netlist, [given[names[v]] for v in netlist.inputs], 8)
    assert values[names.index("y")] == (a ^ q ^ b) & 255  # nand(xnor, 1)
    assert values[names.index("z")] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INPUT(a)\ny = AND(a, b)\n", "gate 'y' reads the net 'b', which is not defined"),
        ("INPUT(a)\nOUTPUT(y)\n", "output 'y' is not defined"),
        ("INPUT(a)\nx = AND(a, y)\ny = NOT(x)\n", "combinational loop goes through gate 'x'"),
        ("INPUT(a)\ny = MAJ(a, a, a)\n", r"line 2 .* 'y = MAJ\(a, a, a\)'; lines are"),
        ("INPUT(a)\ny = AND(a b)\n", "line 2"),
        ("INPUT(a)\ny = AND()\n", "AND 'y' has 0 fan-ins"),
        ("INPUT(a)\ny = NOT(a, a)\n", "NOT 'y' has 2 fan-ins"),
        ("INPUT(a)\nINPUT(a)\n", "'a' is driven twice"),
        ("garbage\n", "line 1"),
        ("", "has no nodes"),
    ],
)
def test_bad_files_are_refused_with_the_reason(text, message):
    with pytest.raises(InputError, match=message):
        parse_bench(text, "t")


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "x.bench").write_bytes(b"INPUT(a)\n\xff\xfe\x00")
    with pytest.raises(InputError, match=r"x\.bench is not text"):
        read_file(tmp_path / "x.bench")
