"""The torch operators of other devices, run on CPU tensors: the same as the kernels."""

import pytest
import torch
from support.deep import reference_stack, square_block

from gnn_dist.nn.deep import DeepConfig, DeepGNN, GridRangeError, ReversibleStack, model
from gnn_dist.nn.deep.torch_stack import TorchInner


@pytest.fixture
def torch_path(monkeypatch):
    def use(there: bool) -> None:
        monkeypatch.setattr(model, "uses_kernels", lambda state: not there)

    use(True)
    return use


def _run(config, block, dtype=torch.float64, seed=3):
    stack = ReversibleStack(config, seed=seed).to(dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in (stack.gain, stack.shift, stack.bias):
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(dtype))
    shape = (config.groups, block.num_dst, config.group_width)
    x = torch.round(torch.randn(shape, generator=generator) * 2**16).to(dtype) / 2**16
    x.requires_grad_()
    h = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    initial = h if config.initial_residual else None
    out = stack(x, stack.topology(block), initial)
    weights = torch.randn(out.shape, generator=generator).to(dtype)
    inputs = [t for t in (x, initial, *stack.parameters()) if t is not None and t.numel()]
    grads = torch.autograd.grad((out * weights).sum(), inputs)
    return stack, x, initial, [out.detach(), *grads]


VARIANTS = [
    {"direction": "both", "dropout": 0.3},
    {"conv": "gcn", "direction": "fan_out", "groups": 3, "width": 33},
    {"conv": "gin", "norm": "none", "groups": 4, "initial_residual": 0.1},
    {"conv": "attention", "norm": "rms", "direction": "both"},
]


@pytest.mark.parametrize("mode", ["plain", "checkpoint", "reversible"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_outputs_and_gradients_are_those_of_the_kernels(torch_path, variant, mode):
    config = DeepConfig(mode=mode, **{"width": 24, "layers": 3, "grid": None, **variant})
    block = square_block(23, 60, key=9)
    stack, x, initial, there = _run(config, block)
    assert isinstance(stack.last_inner, TorchInner)
    if not config.dropout:
        wanted = reference_stack(config, block, x, initial, stack.tensors())
        torch.testing.assert_close(there[0], wanted.detach(), rtol=1e-9, atol=1e-10)
    torch_path(False)
    _, _, _, here = _run(config, block)
    assert len(here) == len(there)
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("conv", ["mean", "attention"])
def test_many_blocks_are_undone_exactly(torch_path, conv):
    config = DeepConfig(width=32, layers=112, conv=conv)
    block = square_block(60, 150, key=11)
    stack, x, _, reversible = _run(config, block, torch.float32)
    assert torch.equal(stack.last_inner.reconstructed, x.detach())
    plain = _run(DeepConfig(width=32, layers=112, conv=conv, mode="plain"), block, torch.float32)[3]
    assert torch.equal(reversible[0], plain[0])
    for a, b in zip(reversible, plain, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm().clamp(min=1e-30)


def test_saved_indices_and_compression_work_there(torch_path):
    block = square_block(300, 700)
    options = {"width": 64, "layers": 4, "keep": 32, "grid": None}
    exact = _run(DeepConfig(mode="plain", **options), block, torch.float32)[3]
    saved = _run(DeepConfig(saved_indices=True, **options), block, torch.float32)[3]
    coarse = _run(DeepConfig(mode="plain", compression="int8", **options), block, torch.float32)[3]
    assert torch.equal(coarse[0], exact[0])
    for a, b, c in zip(exact, saved, coarse, strict=True):
        assert (a - b).norm() <= 1e-4 * a.norm()
        assert (a - c).norm() <= 0.05 * a.norm()


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_gradients_pass_through_weights_as_they_are(torch_path, kind):
    options = {"width": 128, "layers": 2, "keep": 64, "norm": "none", "grid": None, "mode": "plain"}
    block = square_block(50, 0)  # linear: the input's gradient is made of weights alone
    exact = _run(DeepConfig(**options), block, torch.float32)[3]
    coarse = _run(DeepConfig(compression=kind, **options), block, torch.float32)[3]
    torch.testing.assert_close(coarse[1], exact[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mode", "times"), [("plain", 1), ("checkpoint", 2), ("reversible", 2)])
def test_how_often_a_step_evaluates_f(torch_path, monkeypatch, mode, times):
    evaluated = []
    columns = TorchInner.columns

    def counting(*args, **options):
        evaluated.append(args)
        return columns(*args, **options)

    monkeypatch.setattr(TorchInner, "columns", counting)
    config = DeepConfig(width=24, layers=5, groups=3, mode=mode)
    _run(config, square_block(20, 50), torch.float32)
    assert len(evaluated) == times * config.layers * config.groups


def test_leaving_the_grid_is_said(torch_path):
    stack = ReversibleStack(DeepConfig(width=32, layers=8))
    with torch.no_grad():
        stack.bias.fill_(40.0)
    block = square_block(20, 50)
    with pytest.raises(GridRangeError, match=r"block 6, group 0.*256"):
        stack(torch.zeros(2, 20, 16), stack.topology(block))


def test_the_whole_model_runs_and_an_edgeless_graph_does(torch_path):
    deep = DeepGNN(5, 2, width=16, layers=4, direction="both")
    for edges in (0, 40):
        block = square_block(12, edges)
        x = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
        there = deep(x, [block])
        there.sum().backward()
        torch_path(False)
        torch.testing.assert_close(deep(x, [block]), there, rtol=1e-3, atol=1e-3)
        torch_path(True)
