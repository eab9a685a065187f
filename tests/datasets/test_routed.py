"""Routed designs as a graph: nodes, direction, labels."""

import numpy as np
import pytest

from gnn_dist.datasets.def_format import read_def
from gnn_dist.datasets.routed import routed
from gnn_dist.errors import InputError

TEXT = """VERSION 5.8 ;
DESIGN {name} ;
UNITS DISTANCE MICRONS 1000 ;
COMPONENTS 2 ;
  - a INV_X4 + PLACED ( 0 0 ) N ;
  - b NAND2_X1 + PLACED ( 3000 1000 ) N ;
END COMPONENTS
PINS 2 ;
  - in + NET n1 + DIRECTION INPUT + PLACED ( 0 0 ) N ;
  - out + NET n3 + DIRECTION OUTPUT + PLACED ( 5000 0 ) N ;
END PINS
NETS 3 ;
  - n1 ( PIN in ) ( a A ) ( b A2 ) + ROUTED m1 ( 0 0 ) ( 7000 * ) via12 ;
  - n2 ( a ZN ) ( b A1 ) + ROUTED m1 ( 0 0 ) ( * 3000 ) ;
  - n3 ( PIN out ) ( b ZN ) ;
END NETS
END DESIGN
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}_route.def").write_text(TEXT.format(name=name))
    return tmp_path


def test_edges_go_from_driver_to_net_to_sinks(folder):
    split = {"train": ["one"], "test": ["two"]}
    graph = routed(path=str(folder), split=split, targets=["length", "vias"])
    assert graph.num_nodes == 14
    a, b, pin, out, n1, n2, n3 = range(7)
    dst = np.repeat(np.arange(14), np.diff(graph.indptr))
    edges = set(zip(graph.indices.tolist(), dst.tolist(), strict=True))
    wanted = {(pin, n1), (n1, a), (n1, b), (a, n2), (n2, b), (b, n3), (n3, out)}
    assert edges == wanted | {(u + 7, v + 7) for u, v in wanted}
    assert graph.splits["train"].tolist() == [n1, n2, n3]
    assert graph.splits["test"].tolist() == [n1 + 7, n2 + 7, n3 + 7]
    np.testing.assert_allclose(graph.node["y"][n1], [3.0, 1.0])
    np.testing.assert_allclose(graph.node["y"][n2], [2.0, 0.0])
    assert graph.node["circuit"].tolist() == [0] * 7 + [1] * 7
    assert graph.node["x"].shape[1] == 3 + 2 + 2 + 1


@pytest.mark.parametrize("library", ["{}_X1", "lib__{}_1", "{}x1_LIB"])
@pytest.mark.parametrize(("macro", "drives"), [("MUX2", False), ("FA", True), ("HA", True)])
def test_s_is_the_sum_of_an_adder_and_an_input_of_a_multiplexer(tmp_path, library, macro, drives):
    name = library.format(macro.lower() if "__" in library else macro)
    text = TEXT.replace("( b A1 )", "( b S )").replace("NAND2_X1", name).format(name="one")
    (tmp_path / "one.def").write_text(text)
    graph = routed(path=str(tmp_path), split={"train": ["one"]})
    b, n2 = 1, 5
    sources = graph.indices[graph.indptr[n2] : graph.indptr[n2 + 1]].tolist()
    assert (b in sources) == drives
    sinks = graph.indices[graph.indptr[b] : graph.indptr[b + 1]].tolist()
    assert (n2 in sinks) != drives


def test_placement_is_what_is_known_before_routing(folder):
    graph = routed(path=str(folder), features=["placement"])
    np.testing.assert_allclose(graph.node["x"][5], [np.log2(1 + 4.0), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(graph.node["x"][1], [0, 3000 / 5000, 1.0])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"path": "/nowhere"}, "holds no .def file"),
        ({"targets": ["delay"]}, "none named 'delay'"),
        ({"features": []}, "give a list"),
        ({"split": {"train": ["three"]}}, "no design 'three'; use one, two"),
        ({"split": {"learn": ["one"]}}, "'learn' is not one of train, val, test"),
    ],
)
def test_bad_arguments_are_named(folder, args, says):
    with pytest.raises(InputError, match=says):
        routed(**{"path": str(folder), **args})


def test_real_designs(shared_data):
    path = shared_data / "def" / "usb_phy_route.def"
    graph, design = routed(path=str(path), split={"train": ["usb_phy"]}), read_def(path)
    nets = graph.splits["train"]
    assert nets.size == len(design.nets)
    total = (2 ** graph.node["y"][nets].astype(np.float64) - 1).sum()
    assert total == pytest.approx(design.wire_length, rel=1e-4)


def test_every_net_of_the_real_designs_has_one_driver(shared_data):
    files = sorted((shared_data / "def").glob("*.def"))
    assert files
    for file in files:
        name = file.stem.removesuffix("_route")
        graph = routed(path=str(file), split={"train": [name]})
        into = np.diff(graph.indptr)[graph.splits["train"]]
        assert (into == 1).all(), name
