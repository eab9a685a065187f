"""Models by layers, ``layers`` and ``forward_layer(i, x, block)``, tried on small batches."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.storage import PartitionedGraph

_SEEDS, _MORE, _DEGREE = 3, 2, 2  # destinations of the last block, sources beyond them, in-edges


def has_layers(model: nn.Module) -> bool:
    return hasattr(model, "layers") and hasattr(model, "forward_layer")


def check_model(
    name: str, model: nn.Module, width: int, graph: PartitionedGraph, sampler: Any, depth: int
) -> None:
    """``InputError`` where the rows that a model gives depend on how many there are, or ``forward``
    is something else than its layers one after another: evaluation goes by layers, and so does the
    strategy ``split``.

    In evaluation mode, on ``depth`` small random blocks. What cannot be computed on these shows in
    training.
    """
    small, empty = (_small_batch(width, graph, sampler, depth, seeds) for seeds in (_SEEDS, 0))
    with _evaluating(model), torch.no_grad():
        some, none = _tried(model, *small), _tried(model, *empty)
        layers = _tried(functools.partial(_by_layers, model), *small) if has_layers(model) else None
    if some is None:
        return
    if none is not None and none.shape != (0, *some.shape[1:]):
        raise InputError(
            f"config model.name: {name!r} gives {list(none.shape)} for no nodes and "
            f"{list(some.shape)} for {_SEEDS}; a worker may have none, and its rows are put "
            "together with those of others: give as wide rows in any case"
        )
    if layers is not None and not (
        some.shape == layers.shape and torch.allclose(some, layers, 1e-3, 1e-5)
    ):
        raise InputError(
            f"config model.name: {name!r} gives something else by forward than by its layers, "
            "forward_layer(i, x, block) one after another, which evaluation and the strategy split "
            "compute; put all that forward does into the layers, or name forward_layer otherwise"
        )


def check_empty_layers(
    name: str, model: nn.Module, width: int, graph: PartitionedGraph, sampler: Any, depth: int
) -> None:
    """``InputError`` where a layer passes a gradient on for some rows and none for no rows: a rank
    may own nothing of a layer, and takes part in going back all the same."""
    small, empty = (_small_batch(width, graph, sampler, depth, seeds) for seeds in (_SEEDS, 0))
    with _evaluating(model):
        some, none = _passed_on(model, *small), _passed_on(model, *empty)
    for layer, (with_rows, without) in enumerate(zip(some, none, strict=False)):
        if with_rows and not without:
            raise InputError(
                f"config model.name: layer {layer} of {name!r} passes no gradient on to its input "
                "rows where there are no destinations, and under the strategy split other ranks "
                "wait for this one to go back; compute its output from its input rows in any "
                "case, or use the strategy data"
            )


def _passed_on(model: Any, x: Tensor, blocks: list[Block]) -> list[bool]:
    """Whether the output of each layer, as far as they can be tried, has a gradient with respect to
    the rows that it is given; of the first layer, which is given features, any."""
    found = []
    h = x
    for i, block in enumerate(blocks):
        h = h.detach().requires_grad_(i > 0)
        output = _tried(functools.partial(_by_layers, model, first=i), h, [block])
        if output is None:
            break
        passed = output.requires_grad
        if passed and i > 0:
            (gradient,) = torch.autograd.grad(output.sum(), h, allow_unused=True)
            passed = gradient is not None
        found.append(passed)
        h = output
    return found


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _tried(
    model: Callable[[Tensor, list[Block]], object], x: Tensor, blocks: list[Block]
) -> Tensor | None:
    """What is given; None for nothing of use. Chance is the same in every call."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            output = model(x, blocks)
    except Exception:
        return None
    return output if isinstance(output, Tensor) and output.ndim else None


def _by_layers(model: Any, x: Tensor, blocks: list[Block], first: int = 0) -> Tensor:
    h = x
    for i, block in enumerate(blocks, first):
        h = model.forward_layer(i, h, block)
    return h


def _small_batch(
    width: int, graph: PartitionedGraph, sampler: Any, depth: int, seeds: int
) -> tuple[Tensor, list[Block]]:
    """Random rows and blocks as the sampler's, with random edge tensors; no rows for no seeds."""
    draw = torch.Generator().manual_seed(0)
    edge = getattr(sampler, "edge", ())
    blocks: list[Block] = []
    destinations = seeds
    for _ in range(depth):
        sources = destinations + (_MORE if seeds else 0)
        edges = destinations * _DEGREE
        tensors: Mapping[str, Tensor] = {
            n: torch.rand(edges, *graph.schema.edge[n].shape, generator=draw) for n in edge
        }
        blocks.insert(
            0,
            Block(
                torch.arange(destinations + 1) * _DEGREE,
                torch.randint(max(sources, 1), (edges,), generator=draw).int(),
                sources,
                torch.arange(edges) if getattr(sampler, "edge_ids", False) else None,
                edge=tensors,
                ids=torch.arange(sources),
            ),
        )
        destinations = sources
    return torch.randn(destinations, width, generator=draw), blocks
