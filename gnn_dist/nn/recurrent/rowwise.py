"""What stands between a model's aggregations and its recurrence, with few passes over memory."""

from typing import Any

import torch
from torch import Tensor

from gnn_dist.kernels import parallel, standardise


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, epsilon: float
    ) -> Tensor:
        nodes, snapshots, width = x.shape
        x = x.contiguous()
        columns = [t.detach().repeat(snapshots) for t in (bias, scale, shift)]
        out = torch.empty_like(x)
        mean, inverse = x.new_empty(snapshots * width), x.new_empty(snapshots * width)
        flat = (nodes, snapshots * width)
        parallel.run(
            standardise.forward, snapshots, width, x.detach().numpy().reshape(flat),
            *(c.numpy() for c in columns), x.numpy().dtype.type(epsilon),
            out.numpy().reshape(flat), mean.numpy(), inverse.numpy(), work=x.numel(),
        )  # fmt: skip
        ctx.save_for_backward(x, *columns[:2], mean, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, scale, mean, inverse = ctx.saved_tensors
        nodes, snapshots, width = x.shape
        flat = (nodes, snapshots * width)
        grad, d_x = gradients[0].contiguous(), torch.empty_like(x)
        sums = x.new_empty(3, snapshots * width)  # of bias, scale and shift
        parallel.run(
            standardise.backward, snapshots, width, x.numpy().reshape(flat), bias.numpy(),
            scale.numpy(), mean.numpy(), inverse.numpy(), grad.numpy().reshape(flat),
            d_x.numpy().reshape(flat), *sums.numpy(), work=x.numel(),
        )  # fmt: skip
        return d_x, *sums.view(3, snapshots, width).sum(1), None


def relu_standardise(
    x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, epsilon: float
) -> Tensor:
    """Columns of ``relu(x + bias)`` less their mean over the nodes, over their deviation; times
    ``scale``, plus ``shift``. On a CPU.

    Args:
        x: float[N, S, F], N > 0; a column is one of a snapshot.
        bias, scale, shift: float[F].
        epsilon: added to the variance.
    """
    return _Standardise.apply(x, bias, scale, shift, epsilon)


class _ProjectCarry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        outputs, inputs = weight.shape
        out = rows.new_empty((rows.shape[0], outputs + rows.shape[1] - inputs))
        torch.mm(rows[:, :inputs], weight.t(), out=out[:, :outputs])
        out[:, outputs:] = rows[:, inputs:]
        ctx.save_for_backward(x, weight)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows = x.reshape(-1, x.shape[-1])
        outputs, inputs = weight.shape
        grad = gradients[0].reshape(rows.shape[0], -1)
        own, d_x = grad[:, :outputs], torch.empty_like(rows)
        torch.mm(own, weight, out=d_x[:, :inputs])
        d_x[:, inputs:] = grad[:, outputs:]
        return d_x.view(x.shape), own.t() @ rows[:, :inputs]


def project_carry(x: Tensor, weight: Tensor) -> Tensor:
    """``[x₁ weightᵀ | x₂]`` of rows ``[x₁ | x₂]``: float[..., D] to float[..., G + D - F].

    Products are of whole columns, in place: rows that a few columns make longer are not copied, and
    the few columns take part in no product, whose sizes they would make odd.

    Args:
        weight: float[G, F], F at most D.
    """
    return _ProjectCarry.apply(x, weight)
