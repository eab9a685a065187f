"""A model by name."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gnn_dist import plugins
from gnn_dist.errors import InputError

BUILTIN = {
    "sage": "gnn_dist.nn.models.SAGE",
    "gcn": "gnn_dist.nn.models.GCN",
    "gat": "gnn_dist.nn.models.GAT",
    "gin": "gnn_dist.nn.models.GIN",
    "deep": "gnn_dist.nn.deep.DeepGNN",
}
"""Short names of models."""


def build_model(
    name: str,
    args: Mapping[str, Any],
    *,
    in_features: int,
    out_features: int,
    num_layers: int,
    seed: int = 0,
) -> nn.Module:
    """The model ``name``: one of ``BUILTIN``, an entry point of ``gnn_dist.models``, or the dotted
    path of an ``nn.Module`` class (or of a function that returns one) that takes ``(x, blocks)``.

    ``in_features``, ``out_features`` and ``num_layers`` are passed where its signature has them
    and ``args`` does not set them. Parameters are drawn from ``seed`` alone; torch's own generator
    is left as it was. Raises ``InputError`` for unknown names and arguments.
    """
    part = plugins.resolve("model", name, BUILTIN)
    plugins.check_arguments("model", name, part, args)
    parameters = inspect.signature(part).parameters
    known = {"in_features": in_features, "out_features": out_features, "num_layers": num_layers}
    passed = {k: v for k, v in known.items() if k in parameters} | dict(args)
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if p.name not in passed
    ]
    if missing:
        raise InputError(f"model.args: {name!r} needs {', '.join(missing)}; add them to model.args")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = part(**passed)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model.name: {name!r} gave a {type(model).__name__}; it must give an nn.Module that "
            "takes (x, blocks)"
        )
    plugins.check_call("model", name, model.forward, ("x", "blocks"))
    layers = getattr(model, "layers", None)
    if layers is not None and len(layers) != num_layers:
        raise InputError(
            f"model: {name!r} has {len(layers)} layers, but sampler.fanouts lists {num_layers}; "
            "make them equal"
        )
    return model
