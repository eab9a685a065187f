"""What is taken for granted of a model is tried before a run: its layers, and rows for no nodes."""

import pytest
import torch
from support.models import BlocksOnly, Layers
from support.split_jobs import MODELS, cut, job

from gnn_dist import strategies
from gnn_dist.errors import InputError
from gnn_dist.strategies import auto


class Head(Layers):
    """Has more in ``forward`` than in its layers."""

    def __init__(self, in_features, out_features, num_layers):
        super().__init__(in_features, 6, num_layers)
        self.head = torch.nn.Linear(6, out_features)

    def forward(self, x, blocks):
        return self.head(super().forward(x, blocks))


class Scaled(Layers):
    """Gives as wide rows by its layers, but not the same."""

    def forward(self, x, blocks):
        return super().forward(2 * x, blocks)


class Chance(Layers):
    """Draws in evaluation too, and the same by layers."""

    def forward_layer(self, i, x, block):
        return super().forward_layer(i, x, block) * torch.rand(())


class Short(BlocksOnly):
    """Gives other rows where there are none."""

    def forward(self, x, blocks):
        return super().forward(x, blocks) if blocks[-1].num_dst else torch.zeros(0, 1)


class Loose(Layers):
    """Its output for no rows has no gradient."""

    def forward_layer(self, i, x, block):
        out = super().forward_layer(i, x, block)
        return out if block.num_dst else out.detach()


class Apart(Layers):
    """Its output for no rows has a gradient, but none with respect to the rows."""

    def forward_layer(self, i, x, block):
        out = super().forward_layer(i, x, block)
        weight = next(self.parameters())
        return out if block.num_dst or i == 0 else torch.zeros(0, out.shape[1]) + 0 * weight.sum()


class Demanding(Layers):
    """Takes no batch as small as those it is tried on."""

    def forward_layer(self, i, x, block):
        if len(x) < 10:
            raise ValueError("too few rows")
        return super().forward_layer(i, x, block)


def own(strategy: str, model: type, **more):
    return job(strategy, **{"model.name": f"{__name__}.{model.__name__}", "model.args": {}, **more})


@pytest.mark.parametrize("strategy", ["data", "split", "auto"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Head, "Head' gives something else by forward than by its layers"),
        (Scaled, "Scaled' gives something else by forward"),
    ],
)
def test_forward_must_be_the_layers_one_after_another(strategy, model, words):
    with pytest.raises(InputError, match=words):
        strategies.check(own(strategy, model), cut(2))


def test_rows_for_no_nodes_are_as_wide_as_others():
    with pytest.raises(InputError, match=r"Short' gives \[0, 1\] for no nodes and \[3, 3\] for 3"):
        strategies.check(own("data", Short), cut(2))


@pytest.mark.parametrize("model", [*MODELS, Chance, Demanding])
def test_other_models_pass(model):
    one = job("split", model) if isinstance(model, str) else own("split", model)
    strategies.check(one, cut(2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model.name": f"{__name__}.Loose", "model.args": {}},
            "Loose' passes no gradient on",
        ),
        (
            {"model.name": f"{__name__}.Apart", "model.args": {}},
            "Apart' passes no gradient on",
        ),
        ({"model.args": {"hidden": 8, "norm": "batch"}}, "batch norm takes its statistics"),
    ],
)
def test_what_only_data_can_train_is_refused_by_split_and_is_data_by_auto(changes, words):
    with pytest.raises(InputError, match=words):
        strategies.check(job("split", **changes), cut(2))
    strategies.check(job("data", **changes), cut(2))
    one = job("auto", **{"cluster.workers": 2, **changes})
    strategies.check(one, cut(2))
    assert words in auto._impossible(one, cut(2), 2)
