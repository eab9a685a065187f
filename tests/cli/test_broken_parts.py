"""A part of the user's own that does not do what it must is named, with what it must do.

An exception inside it is the user's own and arrives as it is.
"""

import threading

import pytest
import torch
from support.graphs import random_graph
from torch import nn

from gnn_dist import cli
from gnn_dist.graph import Graph
from gnn_dist.nn.models import SAGE
from gnn_dist.sampling import NeighborSampler

a_value = 3


def graph() -> Graph:
    return random_graph(40, 200)


def no_graph():
    return "graph"


def takes_nothing():
    return 1


def returns_none(*arguments, **named):
    return None


def two_numbers(output, target):
    return torch.zeros(2)


def mean_loss(output, target):
    return nn.functional.cross_entropy(output, target)


class OwnError(Exception):
    """Nothing of ours."""


def raises(*arguments, **named):
    raise OwnError("in the user's code")


class Net(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def answer(self, x, blocks):
        x = x if isinstance(x, torch.Tensor) else x.materialise()
        return self.linear(x)[: blocks[-1].num_dst]

    def forward(self, x, blocks):
        return self.answer(x, blocks)


class NoBlocks(Net):
    def forward(self, x):
        return x


class NoTensor(Net):
    def forward(self, x, blocks):
        return (self.answer(x, blocks),)


class Detached(Net):
    def forward(self, x, blocks):
        return self.answer(x, blocks).detach()


class NoParameters(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.requires_grad_(False)


class ShortInEvaluation(Net):
    def forward(self, x, blocks):
        return self.answer(x, blocks)[: None if self.training else -1]


class NoLayerOutput(SAGE):
    def forward_layer(self, i, x, block):
        return None


class RaisesInEvaluation(Net):
    def forward(self, x, blocks):
        return self.answer(x, blocks) if self.training else raises()


class Plain:
    """A sampler that has nothing but what the page asks for."""

    def sample(self, topology, seeds, *, seed, index, global_seeds):
        own = NeighborSampler([2, 2])
        return own.sample(topology, seeds, seed=seed, index=index, global_seeds=global_seeds)


class GivesNothing(NeighborSampler):
    def sample(self, *arguments, **named):
        return None


class Raises(NeighborSampler):
    def sample(self, *arguments, **named):
        raises()


class Empty:
    pass


HERE = __name__
CASES = {
    "data set, a value": ("dataset.name", "a_value", ["dataset", "is int", "function or a class"]),
    "data set, no graph": ("dataset.name", "no_graph", ["returned str", "gnn_dist.graph.Graph"]),
    "transform, none": ("dataset.transforms", "returns_none", ["transforms", "NoneType", "Graph"]),
    "partitioner, a value": ("partition.name", "a_value", ["partitioner", "is int"]),
    "partitioner, arguments": ("partition.name", "takes_nothing", ["(graph, num_parts", "docs/"]),
    "partitioner, none": ("partition.name", "returns_none", ["NoneType", "int32[N]"]),
    "sampler, empty": ("sampler.name", "Empty", ["'sample'", "docs/custom_parts.md"]),
    "sampler, none": ("sampler.name", "GivesNothing", ["GivesNothing.sample", "MiniBatch"]),
    "cache, empty": ("cache.name", "Empty", ["'moves'", "moves, start, keep"]),
    "strategy, empty": ("train.strategy", "Empty", ["'check'", "check, build"]),
    "model, arguments": ("model.name", "NoBlocks", ["(x, blocks)", "docs/custom_parts.md"]),
    "model, a tuple": ("model.name", "NoTensor", ["gives a tuple for 10 seeds", "(10, 3)"]),
    "model, detached": ("model.name", "Detached", ["no gradient", "detach()"]),
    "model, empty": ("model.name", "NoParameters", ["no parameters to train", "ModuleList"]),
    "model, evaluation": ("model.name", "ShortInEvaluation", ["(9, 3) for 10 nodes"]),
    "model, a layer": ("model.name", "NoLayerOutput", ["forward_layer(0, ...)", "NoneType"]),
    "metric, arguments": ("task.metrics", "takes_nothing", ["(output, target)", "docs/"]),
    "metric, none": ("task.metrics", "returns_none", ["metric", "NoneType", "return a float"]),
    "metric, two numbers": ("task.metrics", "two_numbers", ["two_numbers", "no single number"]),
    "loss, none": ("task.loss", "returns_none", ["task.loss", "NoneType", "(10,)"]),
    "loss, a mean": ("task.loss", "mean_loss", ["task.loss", "shape ()", "reduction='none'"]),
}  # fmt: skip


def train(key: str, part: str) -> int:
    values = {
        "dataset.name": f"{HERE}.graph",
        "output": "out",
        "sampler.fanouts": "3,3",
        "train.batch_size": "10",
        "train.epochs": "1",
        "train.baselines": "false",
        "partition.name": "range",
        "partition.parts": "2",
        "cache.fraction": "0.5",
        key: f"{HERE}.{part}",
    }
    return cli.main(["train", *(f"--{k}={v}" for k, v in values.items())])


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_a_part_that_does_not_do_what_it_must_is_named_with_the_remedy(case, capsys):
    key, part, words = CASES[case]
    assert train(key, part) == 2
    said = capsys.readouterr().err
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("dataset.name", "raises"),
        ("dataset.transforms", "raises"),
        ("partition.name", "raises"),
        ("sampler.name", "Raises"),
        ("model.name", "RaisesInEvaluation"),
        ("task.metrics", "raises"),
        ("task.loss", "raises"),
    ],
)
def test_an_exception_of_a_part_arrives_as_itself(key, part):
    with pytest.raises(OwnError, match="in the user's code") as error:
        train(key, part)
    assert error.traceback[-1].path.name == "test_broken_parts.py"


def test_a_sampler_needs_nothing_but_sample(capsys):
    assert train("sampler.name", "Plain") == 0


def test_a_run_that_fails_leaves_no_thread():
    before = set(threading.enumerate())
    with pytest.raises(OwnError):
        train("model.name", "RaisesInEvaluation")
    assert set(threading.enumerate()) <= before
