import itertools
import logging

import numpy as np
import pytest

from gnn_dist import datasets
from gnn_dist.datasets.circuits import dataset, labels
from gnn_dist.datasets.circuits.netlist import Kind
from gnn_dist.datasets.circuits.suite import available, expand, family, read_circuit
from gnn_dist.errors import InputError


def _load(**args):
    return datasets.load("circuits", args)


TWO = {"train": ["array_multiplier:4"], "test": ["ripple_adder:5"]}


def test_circuits_follow_one_another_and_keep_their_gates_labels_and_edges():
    names = ["c17", "array_multiplier:4", "ripple_adder:5"]
    graph = _load(circuits=names, split=TWO, targets=["probability", "slack"], seed=3)
    assert graph.info["circuits"] == names
    first = 0
    for k, name in enumerate(names):
        netlist = read_circuit(name)
        nodes = np.arange(first, first + netlist.num_nodes)
        assert (graph.node["circuit"][nodes] == k).all()
        for v in range(netlist.num_nodes):  # messages flow from fan-ins to gates, in order
            got = graph.indices[graph.indptr[first + v] : graph.indptr[first + v + 1]]
            want = netlist.fanin[netlist.indptr[v] : netlist.indptr[v + 1]] + first
            assert got.tolist() == want.tolist()
        level, reverse, depth = labels.depths(netlist)
        np.testing.assert_array_equal(graph.node["y"][nodes, 1], depth - level - reverse)
        first += netlist.num_nodes
    assert first == graph.num_nodes
    assert graph.info["targets"] == ["probability", "slack"]
    assert graph.edge_ids is None


def test_labels_do_not_depend_on_the_other_circuits():
    alone = _load(circuits=["array_multiplier:4"], split={"train": ["array_multiplier:4"]})
    among = _load(circuits=["ripple_adder:5", "array_multiplier:4"], split=TWO)
    np.testing.assert_array_equal(alone.node["y"], among.node["y"][among.node["circuit"] == 1])


def test_only_gates_of_the_named_circuits_are_in_the_splits():
    graph = _load(split=TWO)
    kinds = np.concatenate([read_circuit(n).kinds for n in graph.info["circuits"]])
    gates = kinds > Kind.CONST1
    for part, k in (("train", 0), ("test", 1)):
        np.testing.assert_array_equal(
            graph.splits[part], np.flatnonzero(gates & (graph.node["circuit"] == k))
        )
    everyone = _load(split=TWO, label="all")
    assert sum(len(s) for s in everyone.splits.values()) == graph.num_nodes


def test_directions_are_transposes_and_both_holds_each_edge_twice():
    forward = _load(split=TWO)
    backward = _load(split=TWO, direction="fan_out")
    both = _load(split=TWO, direction="both")

    def edges(graph, keep=slice(None)):
        ends = np.stack([graph.indices[keep], graph.destinations()[keep]])
        return sorted(map(tuple, ends.T.tolist()))

    assert edges(forward) == sorted((v, u) for u, v in edges(backward))
    reverse = both.edge_in_csc_order("reverse")
    assert edges(both, reverse == 0) == edges(forward)
    assert edges(both, reverse == 1) == edges(backward)


def test_features_are_what_their_names_say():
    graph = _load(split=TWO, features=["type", "fan_in", "fan_out", "output", "level"])
    columns = {name: graph.node["x"][:, k] for k, name in enumerate(graph.info["features"])}
    netlists = [read_circuit(n) for n in graph.info["circuits"]]
    kinds = np.concatenate([n.kinds for n in netlists])
    for kind in Kind:
        np.testing.assert_array_equal(columns[f"is_{kind.name.lower()}"], kinds == kind)
    np.testing.assert_allclose(columns["fan_in"], np.log2(1 + graph.in_degrees()), rtol=1e-6)
    np.testing.assert_allclose(columns["fan_out"], np.log2(1 + graph.out_degrees()), rtol=1e-6)
    assert columns["output"].sum() == sum(np.unique(n.outputs).size for n in netlists)
    level, _, depth = labels.depths(netlists[0])
    np.testing.assert_allclose(columns["level"][: level.size], level / depth, rtol=1e-6)
    assert len(columns) == graph.node["x"].shape[1]


def test_a_feature_that_gives_the_target_away_is_refused():
    with pytest.raises(InputError, match="'level' gives the target 'relative_slack' away"):
        _load(split=TWO, features=["type", "level"], targets=["relative_slack"])


def test_splits_by_fraction_keep_circuits_and_their_variants_whole():
    pytest.importorskip("circuitgraph")
    names = ["c17", "c17g", "c432", "c432g", "c499", "c499g", "c1355", "c880", "c880g", "c1908"]
    fractions = {"train": 0.5, "val": 0.25, "test": 0.25}
    members = [
        _load(circuits=names, split=fractions, seed=seed, patterns=64).info["split_circuits"]
        for seed in (0, 0, 1, 2, 3)
    ]
    assert members[0] == members[1]
    assert len({str(m) for m in members}) > 2, "the seed decides"
    for each in members:
        assert sorted(itertools.chain.from_iterable(each.values())) == sorted(names)
        assert all(each.values())
        owner = {family(name): part for part, chosen in each.items() for name in chosen}
        for part, chosen in each.items():
            assert all(owner[family(name)] == part for name in chosen)


def test_fractions_of_gates_are_met_where_circuits_are_small():
    names = [f"ripple_adder:{w}" for w in range(3, 60)]
    graph = _load(circuits=names, split={"train": 0.6, "val": 0.1, "test": 0.2}, patterns=64)
    total = (graph.in_degrees() > 0).sum()
    for part, share in (("train", 0.6), ("val", 0.1), ("test", 0.2)):
        assert abs(graph.splits[part].size / total - share) < 0.06


def test_variants_of_a_circuit_are_one_family():
    assert family("c432") == family("c432g") == family("folder/c432.bench")
    assert family("c499") == family("c1355g")  # the same function, with its XORs expanded
    assert family("b17_C") == family("b19_Cg")
    assert family("c432") != family("c880")
    assert family("s13207") != family("s38417")


def test_files_and_globs_are_circuits_too(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / f"{name}.bench").write_text("INPUT(a)\nOUTPUT(y)\ny = NOT(a)\n")
    (tmp_path / "three.aag").write_text("aag 1 1 0 1 0\n2\n3\n")
    monkeypatch.chdir(tmp_path)
    graph = _load(split={"train": ["*.bench"], "test": [str(tmp_path / "three.aag")]}, patterns=64)
    assert graph.info["circuits"] == ["one", "two", "three"]
    assert graph.splits["train"].size == 2
    assert expand(["*.bench", "one.bench"]) == ["one.bench", "two.bench"]


def test_the_default_data_set_is_real_split_by_family_and_loads_in_seconds(caplog):
    pytest.importorskip("circuitgraph")
    with caplog.at_level(logging.INFO, logger="gnn_dist.datasets.circuits.dataset"):
        graph = _load(patterns=1024)
    assert "read and labelled in" in caplog.text
    assert 50_000 < graph.num_nodes < 200_000
    families = {}
    for part, names in graph.info["split_circuits"].items():
        for name in names:
            assert families.setdefault(family(name), part) == part
    assert set(dataset.DEFAULT_SPLIT) == {"train", "val", "test"}
    y = graph.node["y"]
    assert y.dtype == np.float32
    assert y.min() >= 0
    assert y.max() <= 1
    assert y[graph.splits["test"]].std() > 0.1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"circuits": ["c9999"]}, "no circuit named 'c9999'; use a suite"),
        ({"circuits": ["nowhere.aig"], "split": {"train": 1.0}}, "cannot read nowhere.aig"),
        ({"circuits": ["nowhere*.aig"]}, "no file matches"),
        ({"circuits": [3]}, "3 is not a circuit"),
        ({"circuits": ["ripple_adder:4"], "split": {"train": 0.9, "test": 0.2}}, "add up to 1.1"),
        ({"circuits": ["ripple_adder:4"], "split": {"train": 0.5, "test": 0.5}}, "cannot be split"),
        ({"split": {"tarin": ["ripple_adder:4"]}}, "has 'tarin'; the splits are"),
        ({"split": {"train": ["ripple_adder:4"], "test": 0.5}}, "mixes lists and fractions"),
        (
            {"split": {"train": ["ripple_adder:4"], "test": ["ripple_adder:4"]}},
            "is both in 'train' and 'test'",
        ),
        (
            {"circuits": ["ripple_adder:4"], "split": {"train": ["ripple_adder:5"]}},
            "'ripple_adder:5' is not among the circuits",
        ),
        ({"split": {"train": 0.5, "test": 0.5}}, "none are named"),
        ({"split": TWO, "direction": "up"}, "direction: must be one of fan_in, fan_out, both"),
        ({"split": TWO, "targets": ["delay"]}, "none named 'delay'"),
        ({"split": TWO, "targets": []}, "must be a list of different names"),
        ({"split": TWO, "features": ["color"]}, "none named 'color'"),
        ({"split": TWO, "patterns": 1}, "patterns: must be a whole number, from 2"),
        ({"split": TWO, "patterns": 3.5}, "patterns: must be a whole number"),
        ({"split": TWO, "inverters": 2}, "inverters: must be one of 0, 1"),
        ({"split": TWO, "label": "none"}, "label: must be one of gates, all"),
        ({"split": TWO, "seed": -1}, "seed: must be a whole number, at least 0"),
        ({"circuits": 5}, "must be a list of names"),
        ({"split": 0.5}, "circuits.split: must give circuits or a fraction"),
        ({"split": {"train": 7, "test": ["c17"]}}, "mixes lists and fractions"),
        ({"split": {"train": {"c17": 1}}}, "must be a list of names"),
        ({"split": TWO, "targets": 5}, "must be a list of different names, not 5"),
        ({"splits": TWO}, "takes no argument 'splits'; it takes: circuits, split"),
    ],
)
def test_bad_arguments_are_refused_with_the_remedy(args, message):
    with pytest.raises(InputError, match=message):
        _load(**args)


def test_generated_circuits_are_split_by_width():
    graph = datasets.load(
        "generated_circuits",
        {
            "kinds": ["ripple_adder", "barrel_shifter"],
            "split": {"train": [4, 5], "test": [9]},
            "targets": ["relative_slack"],
        },
    )
    assert graph.info["split_circuits"] == {
        "train": ["ripple_adder:4", "barrel_shifter:4", "ripple_adder:5", "barrel_shifter:5"],
        "test": ["ripple_adder:9", "barrel_shifter:9"],
    }
    y = graph.node["y"]
    assert 0 <= y.min() < y.max() <= 1
    assert graph.info["name"] == "generated_circuits"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"kinds": ["divider"]}, "none named 'divider'"),
        ({"widths": [0]}, "widths: must hold widths of at least 1, not 0"),
        ({"widths": ["8"]}, "not '8'"),
        ({"split": {"train": [4], "test": [4]}}, "is both in"),
        ({"split": 3}, "must give circuits or a fraction"),
        ({"widths": 8}, "must be a list of widths, not 8"),
    ],
)
def test_bad_generated_circuits_are_refused(args, message):
    with pytest.raises(InputError, match=message):
        datasets.load("generated_circuits", args)


def test_missing_circuitgraph_is_explained(monkeypatch):
    from gnn_dist.datasets.circuits import suite

    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    suite._library.cache_clear()
    try:
        with pytest.raises(InputError, match=r"pip install 'gnn-dist\[circuits\]'"):
            read_circuit("c432")
        read_circuit("ripple_adder:4")
    finally:
        suite._library.cache_clear()


def test_every_circuit_of_every_suite_is_installed():
    pytest.importorskip("circuitgraph")
    from gnn_dist.datasets.circuits.suite import SUITES

    assert set().union(*SUITES.values()) <= set(available())
