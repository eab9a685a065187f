"""DEF: lengths and vias against the flow's own table, and against small nets by hand."""

import csv

import pytest

from gnn_dist.datasets.def_format import parse_def, read_def
from gnn_dist.errors import InputError

HEAD = "VERSION 5.8 ;\nDESIGN small ;\nUNITS DISTANCE MICRONS 1000 ;\n"
CELLS = """COMPONENTS 2 ;
  - a INV_X1 + PLACED ( 0 0 ) N ;
  - b NAND2_X1 + FIXED ( 3000 1000 ) FS ;
END COMPONENTS
PINS 1 ;
  - in + NET n1 + DIRECTION INPUT + USE SIGNAL + PORT + LAYER m2 ( -7 -7 ) ( 7 7 )
    + PLACED ( 0 5000 ) N ;
END PINS
"""


def _parse(nets: str, count: int, tail: str = "END DESIGN\n"):
    return parse_def(f"{HEAD}{CELLS}NETS {count} ;\n{nets}END NETS\n{tail}")


def test_lengths_follow_every_kind_of_point():
    design = _parse(
        """- n1 ( PIN in ) ( a A ) + USE SIGNAL
             + ROUTED m1 ( 0 0 ) ( 100 * ) ( * 50 ) via12 ( 130 * 20 ) W1
             NEW m2 TAPER ( 10 10 0 ) ( * -30 ) RECT ( -5 -5 5 5 )
             NEW m3 ( 5 5 ) via23 N
             NEW m3 MASK 2 ( 0 0 ) VIRTUAL ( 500 500 ) ( 510 * ) # a comment ; ( 9 9 )
             + FIXED m4 STYLE 1 ( 0 0 ) ( 0 7 ) ;
           - n2 ( a ZN ) ( b A1 ) ;
        """,
        2,
    )
    first, second = design.nets
    assert first.length == 100 + 50 + 30 + 40 + 10 + 7
    assert first.vias == 3
    assert first.pins == (("PIN", "in"), ("a", "A"))
    assert (second.length, second.vias) == (0, 0)
    assert design.wire_length == pytest.approx(0.237)
    assert design.half_perimeters().tolist() == [5.0, 4.0]
    assert [c.macro for c in design.cells] == ["INV_X1", "NAND2_X1"]
    assert (design.ports[0].direction, design.ports[0].y) == ("INPUT", 5000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "ends without END DESIGN"),
        ("DESIGN x ;\nEND DESIGN\n", "no UNITS"),
        (f"{HEAD}{CELLS}NETS 2 ;\n- n ( a A ) ;\nEND NETS\nEND DESIGN\n", "announces 2.*has 1"),
        (f"{HEAD}{CELLS}NETS 1 ;\n- n ( a A ) ;\n", "NETS has no END"),
        (f"{HEAD}NETS 1 ;\nn ( a A ) ;\nEND NETS\nEND DESIGN\n", "not with '-'"),
        (f"{HEAD}NETS 1 ;\n- n + ROUTED m1 ( * 4 ) ;\nEND NETS\nEND DESIGN\n", "stand on"),
        (f"{HEAD}NETS 1 ;\n- n + ROUTED m1 ( x 4 ) ;\nEND NETS\nEND DESIGN\n", "'x' is not a"),
        (f"{HEAD}NETS many ;\nEND NETS\nEND DESIGN\n", "'many' is not a number"),
    ],
)
def test_what_is_malformed_is_named(text, says):
    with pytest.raises(InputError, match=says):
        parse_def(text)


def test_totals_are_those_of_the_flow(shared_data):
    folder = shared_data / "def"
    rows = {r["design_name"]: r for r in csv.DictReader((folder / "route_data_extract.csv").open())}
    compared = 0
    for path in sorted(folder.glob("*.def")):
        design = read_def(path)
        assert design.nets
        row = rows.get(design.name) or rows.get(path.stem.removesuffix("_route"))
        if row is None or not row["total_wire_length"]:
            continue
        assert design.wire_length == pytest.approx(float(row["total_wire_length"]), rel=1e-3)
        assert design.vias == pytest.approx(int(row["total_vias"]), rel=1e-3)
        compared += 1
    assert compared >= 5


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.def"):
        read_def(tmp_path / "nowhere.def")
