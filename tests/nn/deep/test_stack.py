"""The stack against the same equations in torch, the three modes against each other."""

import pytest
import torch
from support.deep import reference_stack, square_block

from gnn_dist.errors import InputError
from gnn_dist.kernels import parallel, topk
from gnn_dist.nn.deep import DeepConfig, GridRangeError, ReversibleStack


def _state(config, n, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(config.groups, n, config.group_width, generator=generator, dtype=dtype)
    return torch.round(x * 2**16) / 2**16


def _stack(config, dtype=torch.float64, seed=3):
    stack = ReversibleStack(config, seed=seed).to(dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # away from the ones and zeros of the start
        for p in (stack.gain, stack.shift, stack.bias):
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(dtype))
    return stack


def _gradients(run, stack, state, initial):
    inputs = [state.clone().requires_grad_()]
    if initial is not None:
        inputs.append(initial.clone().requires_grad_())
    out = run(*inputs, *([None] if initial is None else []))
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    parameters = [p for p in stack.parameters() if p.numel()]
    grads = torch.autograd.grad((out * weights).sum(), [*inputs, *parameters])
    return [out.detach(), *grads]


VARIANTS = [
    {},
    {"conv": "gcn", "direction": "fan_out"},
    {"conv": "gin", "direction": "both", "gin_eps": 0.3},
    {"conv": "attention", "direction": "both"},
    {"conv": "attention", "norm": "rms", "packed": True},
    {"direction": "both", "initial_residual": 0.2, "packed": True},
    {"conv": "gcn", "groups": 3, "width": 33, "packed": True},
    {"conv": "gin", "norm": "none", "groups": 4, "initial_residual": 0.1},
    {"keep": 12, "norm": "rms"},
]


@pytest.mark.parametrize("mode", ["plain", "checkpoint", "reversible"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients_are_those_of_the_equations(variant, mode):
    options = {"width": 24, "layers": 3, "grid": None, **variant}
    config = DeepConfig(mode=mode, **options)
    block = square_block(23, 60)
    stack = _stack(config)
    state = _state(config, 23)
    initial = _state(config, 23, seed=2) if config.initial_residual else None
    topology = stack.topology(block)
    ours = _gradients(lambda s, h: stack(s, topology, h), stack, state, initial)
    theirs = _gradients(
        lambda s, h: reference_stack(config, block, s, h, stack.tensors()), stack, state, initial
    )
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    if mode == "reversible":
        torch.testing.assert_close(stack.last_inner.reconstructed, state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("conv", ["mean", "attention"])
def test_float32_kernels_agree_with_float64(conv):
    config = DeepConfig(width=128, layers=2, conv=conv, grid=None, keep=16)
    block = square_block(200, 700)
    stack = _stack(config)
    state = _state(config, 200)
    wide = _gradients(lambda s, h: stack(s, stack.topology(block)), stack, state, None)
    narrow = stack.to(torch.float32)
    for packed in (False, True):
        narrow.config = DeepConfig(
            width=128, layers=2, conv=conv, grid=None, keep=16, packed=packed
        )
        got = _gradients(
            lambda s, h: narrow(s, narrow.topology(block)), narrow, state.float(), None
        )
        for a, b in zip(got, wide, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    "variant", [{}, {"dropout": 0.3}, {"conv": "gin", "packed": True}], ids=str
)
def test_448_blocks_are_undone_exactly(variant):
    block = square_block(120, 300, key=11)
    grads = {}
    for mode in ("reversible", "plain"):
        config = DeepConfig(width=64, layers=448, mode=mode, **variant)
        stack = ReversibleStack(config, seed=3)
        state = _state(config, 120, torch.float32)
        topology = stack.topology(block)
        grads[mode] = _gradients(lambda s, h: stack(s, topology), stack, state, None)  # noqa: B023
        if mode == "reversible":
            assert torch.equal(stack.last_inner.reconstructed, state)
    for a, b in zip(grads["reversible"], grads["plain"], strict=True):
        error = (a - b).norm() / b.norm().clamp(min=1e-30)
        assert error <= 1e-6


def test_without_a_grid_the_inverse_drifts_and_saved_indices_hold_the_choice():
    block = square_block(120, 300)
    state = _state(DeepConfig(width=64), 120, torch.float32)

    def run(**options):
        config = DeepConfig(width=64, layers=448, grid=None, **options)
        stack = ReversibleStack(config, seed=3)
        with torch.no_grad():
            stack.weight.mul_(10)  # what is lost grows with the weights
        topology = stack.topology(block)
        got = _gradients(lambda s, h: stack(s, topology), stack, state, None)
        return got, stack.last_inner.reconstructed

    plain, _ = run(mode="plain")
    _, drifted = run()
    saved, kept = run(saved_indices=True)
    assert (kept - state).abs().max() < 1e-3 < (drifted - state).abs().max()
    for a, b in zip(saved, plain, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm().clamp(min=1e-30)


def test_the_state_that_was_given_is_left_alone():
    config = DeepConfig(width=32, layers=4)
    block = square_block(20, 50)
    stack = ReversibleStack(config)
    state = _state(config, 20, torch.float32).requires_grad_()
    before = state.detach().clone()
    out = stack(state, stack.topology(block))
    after = out.detach().clone()
    out.sum().backward(retain_graph=True)
    first = state.grad.clone()
    out.sum().backward()
    assert torch.equal(state.detach(), before)
    assert torch.equal(out.detach(), after)
    assert torch.equal(state.grad, 2 * first)


def test_leaving_the_range_of_the_grid_is_an_error_that_says_so():
    config = DeepConfig(width=32, layers=8)
    block = square_block(20, 50)
    stack = ReversibleStack(config)
    with torch.no_grad():
        stack.bias.fill_(40.0)
    with pytest.raises(GridRangeError, match=r"block 6, group 0.*256"):
        stack(_state(config, 20, torch.float32), stack.topology(block))


def test_not_a_number_cannot_pass_unseen():
    config = DeepConfig(width=32, layers=2)
    block = square_block(20, 50)
    stack = ReversibleStack(config)
    with torch.no_grad():
        stack.gain[1, 1, 3] = torch.nan
    with pytest.raises(GridRangeError, match="block 1, group 1"):
        stack(_state(config, 20, torch.float32), stack.topology(block))


def test_dropout_follows_node_and_key_and_not_position():
    config = DeepConfig(width=32, layers=2, dropout=0.5, conv="gin")
    stack = ReversibleStack(config)
    state = _state(config, 30, torch.float32)

    def out(key, ids):
        block = square_block(30, 0, key=key)
        block.ids = ids
        return stack(state[:, torch.argsort(ids)], stack.topology(block)).detach()

    ids = torch.arange(30)
    turned = torch.arange(29, -1, -1)
    a = out(5, ids)
    b = out(5, turned)
    torch.testing.assert_close(a, b.flip(1))
    assert not torch.equal(a, out(6, ids))
    stack.eval()
    assert torch.equal(out(5, ids), out(6, ids))


@pytest.mark.parametrize("mode", ["plain", "checkpoint"])
@pytest.mark.parametrize(("kind", "bound"), [("bf16", 0.02), ("int8", 0.03)])
def test_compressed_tensors_leave_the_output_and_bend_gradients_little(mode, kind, bound):
    block = square_block(300, 700)
    results = []
    for compression in (None, kind):
        config = DeepConfig(width=64, layers=6, mode=mode, compression=compression, keep=32)
        stack = _stack(config, torch.float32)
        state = _state(config, 300, torch.float32)
        topology = stack.topology(block)
        results.append(_gradients(lambda s, h: stack(s, topology), stack, state, None))  # noqa: B023
    exact, approximate = results
    assert torch.equal(exact[0], approximate[0])
    errors = [
        float((a - b).norm() / a.norm()) for a, b in zip(exact[1:], approximate[1:], strict=True)
    ]
    assert max(errors) < bound
    assert max(errors) > 0


@pytest.mark.parametrize("mode", ["plain", "checkpoint"])
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_gradients_pass_through_weights_as_they_are(mode, kind):
    # blocks without norm and selection are linear: the input's gradient is made of weights alone
    config = DeepConfig(
        width=128, layers=2, keep=64, norm="none", mode=mode, compression=kind, grid=None
    )
    block = square_block(200, 500)
    stack = _stack(config, torch.float32)
    state = _state(config, 200, torch.float32)
    topology = stack.topology(block)
    ours = _gradients(lambda s, h: stack(s, topology), stack, state, None)
    theirs = _gradients(
        lambda s, h: reference_stack(config, block, s, h, stack.tensors()), stack, state, None
    )
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)
    assert (ours[4] - theirs[4]).norm() > 1e-4 * theirs[4].norm()  # but states are kept coarsely


@pytest.mark.parametrize("compression", [None, "int8"])
@pytest.mark.parametrize("mode", ["plain", "checkpoint"])
def test_weights_do_not_count_as_kept(mode, compression):
    config = DeepConfig(width=128, layers=6, keep=16, mode=mode, compression=compression)
    stack = _stack(config, torch.float32)
    stack(_state(config, 4, torch.float32).requires_grad_(), stack.topology(square_block(4, 6)))
    assert sum(stack.last_inner.saved.values()) < stack.weight.numel()


@pytest.mark.parametrize(("mode", "times"), [("plain", 1), ("checkpoint", 2), ("reversible", 2)])
def test_how_often_a_step_evaluates_f(monkeypatch, mode, times):
    selections = []
    run = parallel.run

    def counting(kernel, *args, **options):
        selections.append(kernel is topk.select)
        return run(kernel, *args, **options)

    monkeypatch.setattr(parallel, "run", counting)
    config = DeepConfig(width=24, layers=5, groups=3, mode=mode)
    stack = _stack(config, torch.float32)
    topology = stack.topology(square_block(20, 50))
    _gradients(lambda s, h: stack(s, topology), stack, _state(config, 20, torch.float32), None)
    assert sum(selections) == times * config.layers * config.groups


@pytest.mark.parametrize("compression", [None, "int8"])
def test_checkpoint_keeps_one_state_a_block_and_one(compression):
    n, layers = 500, 6
    config = DeepConfig(width=64, layers=layers, mode="checkpoint", compression=compression)
    stack = _stack(config, torch.float32)
    state = _state(config, n, torch.float32).requires_grad_()
    stack(state, stack.topology(square_block(n, 900)))
    row = 4 * 64 if compression is None else 64 + 4 * config.groups  # codes, and a scale a group
    assert sum(stack.last_inner.saved.values()) == (layers + 1) * n * row


@pytest.mark.parametrize("mode", ["plain", "checkpoint", "reversible"])
def test_the_workspace_grows_neither_with_depth_nor_with_batches(mode):
    sizes = set()
    for layers in (2, 9):
        config = DeepConfig(width=24, layers=layers, groups=3, conv="attention", mode=mode)
        stack = _stack(config, torch.float32)
        for n in (40, 17, 40, 40):
            topology = stack.topology(square_block(n, 2 * n))
            state = _state(config, n, torch.float32)
            _gradients(lambda s, h: stack(s, topology), stack, state, None)  # noqa: B023
            sizes.add(stack.workspace_bytes)
    assert len(sizes) == 1
    assert sizes.pop() > 0


def test_batch_norm_is_refused():
    with pytest.raises(InputError, match=r"batch norm is refused.*use layer or rms"):
        DeepConfig(norm="batch")


def test_int8_is_within_its_bound():
    from gnn_dist.nn.deep.compression import dequantise, quantise

    x = torch.randn(50, 64) * torch.logspace(-6, 6, 50)[:, None]
    x[7] = 0
    error = (dequantise(*quantise(x)) - x).abs()
    assert (error <= x.abs().amax(1, keepdim=True) / 254 * (1 + 1e-5)).all()


def test_result_does_not_depend_on_threads():
    config = DeepConfig(width=64, layers=3, conv="attention", direction="both")
    block = square_block(5000, 12000)
    stack = _stack(config, torch.float32)
    state = _state(config, 5000, torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 3):
            torch.set_num_threads(n)
            topology = stack.topology(block)
            results.append(_gradients(lambda s, h: stack(s, topology), stack, state, None))  # noqa: B023
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
