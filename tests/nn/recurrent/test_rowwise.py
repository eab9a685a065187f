"""Functions of rows between aggregation and recurrence, against torch's own."""

import pytest
import torch

from gnn_dist.nn.recurrent.rowwise import project_carry, relu_standardise


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return list(torch.autograd.grad((out * torch.randn_like(out)).sum(), inputs))


@pytest.mark.parametrize("width", [1, 3, 8, 33])
@pytest.mark.parametrize("nodes", [2, 700])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rectified_columns_are_standardised_as_batch_norm_does(width, nodes, dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(nodes, 5, width, dtype=dtype, requires_grad=True)
    bias, scale, shift = (torch.randn(width, dtype=dtype, requires_grad=True) for _ in range(3))
    inputs = [x, bias, scale, shift]
    ours = relu_standardise(*inputs, 1e-5)
    theirs = torch.stack(
        [
            torch.nn.functional.batch_norm(
                torch.relu(x[:, s] + bias), None, None, scale, shift, True, 0.0, 1e-5
            )
            for s in range(5)
        ],
        dim=1,
    )
    # A column that is zero but for rounding has a deviation of rounding; none is here.
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


def test_sums_over_many_rows_are_as_good_as_those_in_double() -> None:
    torch.manual_seed(0)
    x = 100 + torch.rand(60_000, 1, 8)
    zero, one = torch.zeros(8), torch.ones(8)
    wide = relu_standardise(x.double(), zero.double(), one.double(), zero.double(), 1e-5)
    assert (relu_standardise(x, zero, one, zero, 1e-5) - wide).abs().max() < 2e-4


def test_standardising_does_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    x = torch.randn(3000, 7, 20, requires_grad=True)
    row = torch.randn(3, 20)
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            out = relu_standardise(x, *row, 1e-5)
            found.append((out, *gradients(out, [x])))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("extra", [0, 3])
def test_columns_are_carried_past_a_projection(extra: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, 5 + extra, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ours = project_carry(x, weight)
    theirs = torch.cat((x[..., :5] @ weight.t(), x[..., 5:]), dim=2)
    torch.testing.assert_close(ours, theirs)
    inputs = [x, weight]
    for a, b in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b)
