"""The fused GraphSAGE stack equals its operators one after the other."""

import itertools

import numpy as np
import pytest
import torch

from gnn_dist.batch import Block
from gnn_dist.features.rows import FeatureRows
from gnn_dist.nn import SAGE, build_model, fused


def blocks_of(seed: int, sizes: list[int]) -> list[Block]:
    """One block a step of ``sizes`` (nodes, input first), with rows of 0 to 5 edges."""
    rng = np.random.default_rng(seed)
    blocks = []
    for num_src, num_dst in itertools.pairwise(sizes):
        degrees = rng.integers(0, 6, num_dst)
        indptr = torch.from_numpy(np.concatenate(([0], np.cumsum(degrees))).astype(np.int64))
        indices = rng.integers(0, num_src, int(degrees.sum())).astype(np.int32)
        ids = torch.from_numpy(rng.permutation(10 * num_src)[:num_src].astype(np.int64))
        blocks.append(Block(indptr, torch.from_numpy(indices), num_src, ids=ids, key=num_dst))
    return blocks


def results(model: SAGE, x, blocks: list[Block], fused_path: bool) -> list[torch.Tensor]:
    model.fused = fused_path
    leaf = x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x
    out = model(leaf, blocks)
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)
    inputs = [*model.parameters(), *([leaf] if isinstance(x, torch.Tensor) else [])]
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small graph has several tiles and groups."""
    monkeypatch.setattr(fused, "FORWARD_ROWS", 16)
    monkeypatch.setattr(fused, "BACKWARD_ROWS", 8)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("sizes", [[900, 130, 40, 9], [90, 20], [300, 41, 1], [40, 7, 0]])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("hidden", [13, 16])  # entries kept for the gradient as such, and as bits
def test_fused_equals_operators(sizes: list[int], dropout: float, hidden: int) -> None:
    blocks = blocks_of(1, sizes)
    model = SAGE(7, 5, len(blocks), hidden, dropout=dropout).double()
    x = torch.randn(sizes[0], 7, dtype=torch.float64)
    for a, b in zip(results(model, x, blocks, True), results(model, x, blocks, False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    model.eval()
    with torch.no_grad():
        model.fused = True
        one_by_one = x
        for i, block in enumerate(blocks):
            one_by_one = model.forward_layer(i, one_by_one, block)
        torch.testing.assert_close(model(x, blocks), one_by_one, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
@pytest.mark.parametrize("tables", [1, 3])
def test_the_first_layer_reads_the_feature_tables(stored: torch.dtype, tables: int) -> None:
    blocks = blocks_of(2, [600, 70, 12])
    model = SAGE(33, 4, 2, 20)
    parts = tuple(torch.randn(1000, 33).to(stored) for _ in range(tables))
    source = None if tables == 1 else torch.randint(0, tables, (600,))
    rows = FeatureRows(parts, torch.randint(0, 1000, (600,)), torch.float32, source)
    ours = results(model, rows, blocks, True)
    exact = model.double()
    oracle = results(exact, rows.materialise().double(), blocks, False)
    for a, b in zip(ours, oracle[:-1], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_tiles")
def test_layers_used_alone_have_the_same_gradients() -> None:
    blocks = blocks_of(3, [200, 60, 20])
    model = SAGE(6, 3, 2, 11, dropout=0.3).double()
    x = torch.randn(200, 6, dtype=torch.float64, requires_grad=True)
    inputs = [x, *model.parameters()]
    whole = torch.autograd.grad(model(x, blocks).square().sum(), inputs)
    h = model.forward_layer(1, model.forward_layer(0, x, blocks[0]), blocks[1])
    for a, b in zip(torch.autograd.grad(h.square().sum(), inputs), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    blocks = blocks_of(4, [30000, 9000, 3000])
    model = build_model("sage", {"hidden": 24}, in_features=10, out_features=24, num_layers=2)
    x = torch.randn(30000, 10)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(model, x, blocks, True))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


def test_what_is_not_simple_takes_the_operators() -> None:
    blocks = blocks_of(5, [300, 20, 4])
    x = torch.randn(300, 6)

    def fusible(model: SAGE) -> list[bool]:
        layers = (model._fusible(i, x, b, first=i == 0) for i, b in enumerate(blocks))
        return [layer is not None for layer in layers]

    for args in ({"norm": "layer"}, {"residual": True}, {"activation": "gelu"},
                 {"normalize": True}):  # fmt: skip
        model = SAGE(6, 8, 2, 8, **args)
        assert fusible(model) == [False, True]
        model(x, blocks).sum().backward()
    assert fusible(SAGE(6, 8, 2, 8, aggregator="max")) == [False, False]
    model = SAGE(6, 8, 2, 8)
    assert fusible(model) == [True, True]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fusible(model) == [False, True]


def test_a_run_of_fused_layers_may_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is cheaper with its weights first is not fused; those around it are."""
    blocks = blocks_of(6, [400, 90, 30, 8])
    model = SAGE(6, 3, 3, 8).double()
    x = torch.randn(400, 6, dtype=torch.float64)
    expected = results(model, x, blocks, False)
    monkeypatch.setattr(
        "gnn_dist.nn.models.transform_first", lambda block, n, m: block.num_dst == 30
    )
    for a, b in zip(results(model, x, blocks, True), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
