"""Block operators: kernels against torch operators and autograd, on drawn graphs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.nn import functional, torch_ops

WIDTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 11, 16, 19, 31, 33, 64, 100])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Empty rows, self-loops, parallel edges and single nodes included."""
    num_dst = draw(st.integers(1, 8))
    num_src = num_dst + draw(st.integers(0, 8))
    degrees = draw(st.lists(st.integers(0, 6), min_size=num_dst, max_size=num_dst))
    seed = draw(st.integers(0, 2**31))
    return make_block(degrees, num_src, seed)


def make_block(degrees: list[int], num_src: int, seed: int = 0) -> Block:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate(([0], np.cumsum(degrees))).astype(np.int64)
    indices = rng.integers(0, num_src, indptr[-1]).astype(np.int32)
    ids = torch.from_numpy(rng.permutation(10 * num_src)[:num_src].astype(np.int64))
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src, ids=ids, key=seed)


def features(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def assert_same_with_gradients(ours, oracle, *inputs: torch.Tensor) -> None:
    """Values and gradients of two functions agree to 1e-10 in float64."""
    results = []
    for function in (ours, oracle):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)
        grads = torch.autograd.grad((out * weights).sum(), leaves)
        results.append((out, *grads))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(blocks(), WIDTHS, st.sampled_from(["sum", "mean", "max"]))
def test_aggregate_equals_autograd(block: Block, width: int, reduce) -> None:
    assert_same_with_gradients(
        lambda x: functional.aggregate(x, block, reduce),
        lambda x: torch_ops.aggregate(x, block, reduce, None),
        features(block.num_src, width),
    )


@settings(max_examples=40, deadline=None)
@given(blocks(), st.sampled_from([1, 3, 4, 9]), st.integers(0, 3), st.booleans())
def test_weighted_aggregate_equals_autograd(
    block: Block, width: int, heads: int, mean: bool
) -> None:
    """``heads`` 0 is one weight an edge, given as [E]."""
    weight = features(block.num_edges, max(heads, 1), 1)
    weight = weight if heads else weight[:, 0]
    reduce = "mean" if mean else "sum"
    assert_same_with_gradients(
        lambda x, w: functional.aggregate(x, block, reduce, w),
        lambda x, w: torch_ops.aggregate(x, block, reduce, w),
        features(block.num_src, width * max(heads, 1)),
        weight,
    )


@settings(max_examples=40, deadline=None)
@given(blocks(), WIDTHS)
def test_self_mean_equals_autograd(block: Block, width: int) -> None:
    assert_same_with_gradients(
        lambda x: functional.self_mean(x, block),
        lambda x: torch_ops.self_mean(x, block),
        features(block.num_src, width),
    )


@settings(max_examples=30, deadline=None)
@given(blocks(), st.integers(1, 4))
def test_edge_softmax_and_edge_add_equal_autograd(block: Block, heads: int) -> None:
    assert_same_with_gradients(
        lambda s: functional.edge_softmax(s, block),
        lambda s: torch_ops.edge_softmax(s, block),
        features(block.num_edges, heads),
    )
    assert_same_with_gradients(
        lambda a, b: functional.edge_add(a, b, block),
        lambda a, b: torch_ops.edge_add(a, b, block),
        features(block.num_src, heads),
        features(block.num_dst, heads, 1),
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [1, 6, 47, 100])
@pytest.mark.parametrize("tables", [1, 2])
def test_rows_left_in_tables_are_aggregated_as_if_gathered(stored, width: int, tables) -> None:
    block = make_block([3, 0, 5, 1], 9)
    table = features(40, width).to(stored)
    index = torch.randint(0, 40, (9,))
    rows = FeatureRows((table,), index, torch.float32)
    if tables > 1:
        far = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 0])
        rows = FeatureRows((table, features(40, width).to(stored)), index, torch.float32, far)
    x = rows.materialise()
    torch.testing.assert_close(
        functional.self_mean(rows, block), torch_ops.self_mean(x, block), rtol=1e-5, atol=1e-6
    )
    for reduce in ("sum", "mean", "max"):
        torch.testing.assert_close(
            functional.aggregate(rows, block, reduce),
            torch_ops.aggregate(x, block, reduce, None),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_rows_are_summed_in_float32(dtype) -> None:
    block = make_block([400, 3], 50)
    x = features(50, 13).to(dtype)
    for reduce in ("sum", "mean", "max"):
        out = functional.aggregate(x, block, reduce)
        assert out.dtype == dtype
        exact = torch_ops.aggregate(x.double(), block, reduce, None)
        torch.testing.assert_close(out, exact.to(dtype), rtol=0.01, atol=0.01)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    block = make_block(list(rng.integers(0, 40, 3000)), 5000)
    weight = torch.rand(block.num_edges, 4)
    x = torch.randn(5000, 20)

    def everything() -> list[torch.Tensor]:
        block._transposed = None
        out = []
        for function in (
            lambda v: functional.aggregate(v, block, "mean"),
            lambda v: functional.aggregate(v, block, "max"),
            lambda v: functional.aggregate(v, block, "sum", weight),
            lambda v: functional.self_mean(v, block),
            lambda v: functional.edge_softmax(functional.edge_add(v, v[:3000], block), block),
            lambda v: functional.keyed_dropout(v, 0.3, block),
        ):
            leaf = x.clone().requires_grad_()
            value = function(leaf)
            out += [value, *torch.autograd.grad(value.square().sum(), leaf)]
        return out

    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results.append(everything())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_dropout_is_a_function_of_node_and_column_alone() -> None:
    block = make_block([1, 2, 3, 0, 2, 1], 6, seed=5)
    x = torch.ones(6, 23)
    whole = functional.keyed_dropout(x, 0.4, block)
    order = torch.tensor([4, 0, 2])
    part = Block(block.indptr[:4], block.indices, 6, ids=block.ids[order], key=block.key)
    assert torch.equal(functional.keyed_dropout(x[:3], 0.4, part), whole[order])
    assert torch.equal(functional.keyed_dropout(x[:, :9], 0.4, block), whole[:, :9])
    for other in (
        functional.keyed_dropout(x, 0.4, block, salt=1),
        functional.keyed_dropout(x, 0.4, Block(block.indptr, block.indices, 6, ids=block.ids)),
    ):
        assert not torch.equal(other, whole)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_independently(p: float) -> None:
    n, width = 2000, 102
    block = Block(torch.zeros(n + 1, dtype=torch.int64), torch.empty(0).int(), n, key=3)
    block.ids = torch.arange(n)
    kept = functional.keyed_dropout(torch.ones(n, width), p, block) > 0
    sigma = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - (1 - p)) < 4 * sigma
    out = functional.keyed_dropout(torch.ones(n, width, dtype=torch.float64), p, block)
    realised = round(p * 65536) / 65536
    torch.testing.assert_close(out.max(), torch.tensor(1 / (1 - realised)).double())
    centred = kept.double() - kept.double().mean()
    for a, b in (
        (centred[:, :-1], centred[:, 1:]),  # neighbouring columns, within and across draws
        (centred[:, :-4], centred[:, 4:]),
        (centred[:-1], centred[1:]),  # neighbouring ids
    ):
        assert abs((a * b).mean()) < 4 * p * (1 - p) / a.numel() ** 0.5


def test_dropout_gradient_is_its_mask() -> None:
    block = make_block([1, 1, 1], 3)
    x = features(3, 10).requires_grad_()
    out = functional.keyed_dropout(x, 0.5, block)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad * x, out)


@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize("width", [1, 4, 10])
def test_dropout_has_the_same_bits_in_torch(p: float, width: int) -> None:
    block = make_block([1] * 30, 30)
    x = torch.randn(30, width)
    ours = functional.keyed_dropout(x, p, block)
    from gnn_dist import rng

    key = rng.fold(block.key, rng.Stream.DROPOUT, 0)
    assert torch.equal(ours, torch_ops.keyed_dropout(x, block.ids, key, p))


def test_attention_dropout_depends_on_destination_and_rank_in_the_row() -> None:
    block = make_block([3, 2, 4], 5, seed=2)
    alpha = torch.ones(9, 3)
    whole = functional.attention_dropout(alpha, 0.5, block)
    tail = Block(torch.tensor([0, 4]), block.indices[5:], 5, ids=block.ids[2:], key=block.key)
    assert torch.equal(functional.attention_dropout(alpha[5:], 0.5, tail), whole[5:])


def test_mistakes_are_named() -> None:
    block = make_block([1, 2], 3)
    x = features(3, 4)
    with pytest.raises(InputError, match="2 rows for a block with 3 source nodes"):
        functional.aggregate(x[:2], block)
    with pytest.raises(InputError, match="use sum, mean or max"):
        functional.aggregate(x, block, "median")
    with pytest.raises(InputError, match="at least 0 and below 1"):
        functional.keyed_dropout(x, 1.0, block)
    block.ids = None
    with pytest.raises(InputError, match="original ids for 0 of 3 rows"):
        functional.keyed_dropout(x, 0.5, block)
