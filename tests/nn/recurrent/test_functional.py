"""The fused recurrences against torch operators step by step, values and every gradient."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gnn_dist.kernels.pointwise import lambert
from gnn_dist.nn.recurrent import functional


def gru_oracle(p: Tensor, h: Tensor, w_zr: Tensor, w_c: Tensor, bias: Tensor, slots) -> Tensor:
    hidden, out = w_c.shape[0], []
    for row in slots:
        now = p[:, torch.from_numpy(row)] + bias
        z, r = torch.sigmoid(now[..., : 2 * hidden] + h @ w_zr).split(hidden, -1)
        h = z * h + (1 - z) * torch.tanh(now[..., 2 * hidden :] + (r * h) @ w_c)
        out.append(h)
    return torch.stack(out)


def lstm_oracle(p: Tensor, start: Tensor, w1: Tensor, w2: Tensor, bias: Tensor, slots) -> Tensor:
    """torch.lstm_cell, with an identity as the first input projection."""
    hidden, out = w1.shape[0], []
    eye, zero = torch.eye(4 * hidden, dtype=p.dtype), torch.zeros_like(bias[0])
    h1, h2, c1, c2 = (s.reshape(-1, hidden) for s in start)
    for row in slots:
        now = p[:, torch.from_numpy(row)].reshape(-1, 4 * hidden)
        h1, c1 = torch.lstm_cell(now, (h1, c1), eye, w1.t(), bias[0], zero)
        h2, c2 = torch.lstm_cell(h1, (h2, c2), w2[:hidden].t(), w2[hidden:].t(), bias[1], zero)
        out.append(torch.cat((h1, h2), -1).view(*start.shape[1:3], -1))
    return torch.stack(out)


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.autograd.grad((out * torch.randn_like(out)).sum(), inputs))


SLOTS = {
    "side by side": np.arange(5)[:, None] + np.arange(3)[None, :],
    "one window": np.arange(4)[:, None],
    "apart": np.array([[0, 4], [1, 5], [2, 6]]),
}


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
@pytest.mark.parametrize("hidden", [5, 16])
@pytest.mark.parametrize("nodes", [1, 37])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_gru_equals_torch(slots, hidden, nodes, dtype, every, checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(functional, "ROWS", 8)
    torch.manual_seed(0)
    windows = slots.shape[1]
    inputs = [
        torch.randn(nodes, 8, 3 * hidden, dtype=dtype),
        torch.randn(nodes, windows, hidden, dtype=dtype),
        0.4 * torch.randn(hidden, 2 * hidden, dtype=dtype),
        0.4 * torch.randn(hidden, hidden, dtype=dtype),
        torch.randn(3 * hidden, dtype=dtype),
    ]
    inputs = [t.requires_grad_() for t in inputs]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    for begin in (inputs[1], None):
        used = inputs if begin is not None else [inputs[0], *inputs[2:]]
        ours = functional.gru(
            inputs[0], begin, *inputs[2:], slots, every=every, checkpoint=checkpoint
        )
        zero = torch.zeros_like(inputs[1]) if begin is None else begin
        theirs = gru_oracle(inputs[0], zero, *inputs[2:], slots)
        theirs = theirs if every else theirs[-1:]
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        for a, b in zip(gradients(ours, used), gradients(theirs, used), strict=True):
            torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
@pytest.mark.parametrize("hidden", [3, 8])
@pytest.mark.parametrize("nodes", [1, 21])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_lstm_equals_torch(slots, hidden, nodes, dtype, every, checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(functional, "ROWS", 8)
    torch.manual_seed(0)
    windows = slots.shape[1]
    inputs = [
        torch.randn(nodes, 8, 4 * hidden, dtype=dtype),
        torch.randn(4, nodes, windows, hidden, dtype=dtype),
        0.4 * torch.randn(hidden, 4 * hidden, dtype=dtype),
        0.4 * torch.randn(2 * hidden, 4 * hidden, dtype=dtype),
        torch.randn(2, 4 * hidden, dtype=dtype),
    ]
    inputs = [t.requires_grad_() for t in inputs]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    for begin in (inputs[1], None):
        used = inputs if begin is not None else [inputs[0], *inputs[2:]]
        ours, _ = functional.lstm2(
            inputs[0], begin, *inputs[2:], slots, every=every, checkpoint=checkpoint
        )
        zero = torch.zeros_like(inputs[1]) if begin is None else begin
        theirs = lstm_oracle(inputs[0], zero, *inputs[2:], slots)
        theirs = theirs if every else theirs[-1:]
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        for a, b in zip(gradients(ours, used), gradients(theirs, used), strict=True):
            torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    slots = SLOTS["side by side"]
    p = torch.randn(600, 8, 48, requires_grad=True)
    w_zr = torch.randn(16, 32, requires_grad=True)
    w_c = torch.randn(16, 16, requires_grad=True)
    bias = torch.randn(48, requires_grad=True)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = functional.gru(p, None, w_zr, w_c, bias, slots)
            found.append([out, *gradients(out, [p, w_zr, w_c, bias])])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_state_carried_over_gives_the_states_of_one_long_window() -> None:
    torch.manual_seed(0)
    p = torch.randn(9, 8, 24, dtype=torch.float64)
    weights = [torch.randn(s, dtype=torch.float64) for s in ((6, 24), (12, 24), (2, 24))]
    whole, _ = functional.lstm2(p, None, *weights, np.arange(8)[:, None], every=True)
    first, cells = functional.lstm2(p, None, *weights, np.arange(5)[:, None], every=True)
    state = torch.cat((first[-1][None, ..., :6], first[-1][None, ..., 6:], cells))
    second, _ = functional.lstm2(p, state, *weights, np.arange(5, 8)[:, None], every=True)
    torch.testing.assert_close(torch.cat((first, second)), whole)


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_what_a_gpu_runs_equals_the_kernels(begin: bool, every: bool) -> None:
    torch.manual_seed(0)
    slots = SLOTS["side by side"]
    p = torch.randn(4, 8, 12, dtype=torch.float64)
    gates = [torch.randn(s, dtype=torch.float64) for s in ((4, 8), (4, 4), (12,))]
    h = torch.randn(4, 3, 4, dtype=torch.float64) if begin else None
    torch.testing.assert_close(
        functional.gru_torch(p, h, *gates, slots, every=every),
        functional.gru(p, h, *gates, slots, every=every),
    )
    weights = [torch.randn(s, dtype=torch.float64) for s in ((3, 12), (6, 12), (2, 12))]
    state = torch.randn(4, 4, 3, 3, dtype=torch.float64) if begin else None
    for a, b in zip(
        functional.lstm2_torch(p, state, *weights, slots, every=every),
        functional.lstm2(p, state, *weights, slots, every=every),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_the_continued_fraction_is_tanh() -> None:
    p, q = lambert(13)
    x = np.linspace(-9, 9, 1001)
    value = x * np.polyval(p[::-1], x * x) / np.polyval(q[::-1], x * x)
    np.testing.assert_allclose(value, np.tanh(x), atol=3e-7)
    assert all(c > 0 for c in p + q)
