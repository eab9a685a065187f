import numpy as np
import pytest

from gnn_dist import datasets
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph


def tiny(*, size: int = 3, must: int = 0) -> Graph:
    """A data set of somebody else."""
    return Graph.from_edges(np.arange(size), np.arange(size))


def no_graph():
    return [1, 2]


def needs(*, path):
    return tiny(size=len(path))


HERE = "support_for_test_load"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """This module under a name that a dotted path can use."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def test_a_data_set_is_any_callable_by_its_dotted_path():
    assert datasets.load(f"{HERE}.tiny", {"size": 5}).num_nodes == 5
    assert datasets.load(f"{HERE}.tiny").num_nodes == 3


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("cora", {}, "none named 'cora'; use one of bitcoin, chickenpox, circuits"),
        ("sbm", {"num_node": 5}, "'sbm' takes no argument 'num_node'; it takes: num_nodes"),
        ("planetoid", {}, "'planetoid' needs the argument 'path'; set dataset.args.path"),
        (f"{HERE}.needs", {}, "needs the argument 'path'"),
        (f"{HERE}.no_graph", {}, "returned list; it must return a gnn_dist.graph.Graph"),
        (f"{HERE}.nothing", {}, "no attribute 'nothing'"),
    ],
)
def test_mistakes_in_name_and_arguments_are_explained(name, args, message):
    with pytest.raises(InputError, match=message):
        datasets.load(name, args)


def test_every_built_in_data_set_describes_itself_and_its_arguments():
    listings = datasets.list_builtin()
    assert [each.name for each in listings] == sorted(datasets.BUILTIN)
    for each in listings:
        assert each.summary.endswith("."), each.name
        assert each.arguments, each.name
        assert all(argument.help for argument in each.arguments), each.name
    planetoid = next(each for each in listings if each.name == "planetoid")
    assert [(a.name, a.default) for a in planetoid.arguments] == [
        ("path", "required"),
        ("name", "'cora'"),
        ("normalize", "True"),
    ]
