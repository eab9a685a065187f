"""Rows between layers: from the rank that computes a vertex to the ranks that read it."""

from typing import Any

import torch
from torch import Tensor

from gnn_dist.cluster import Exchange
from gnn_dist.strategies.split.sample import Route


def shuffle(x: Tensor, route: Route, exchange: Exchange) -> Tensor:
    """The input rows of a layer: this rank's own rows ``x``, then those of the other ranks.

    Differentiable: gradients of received rows go back to their owner and are summed there, in the
    order of ranks. Collective, forward and backward: every rank calls it for every layer, and
    back-propagates through it, with as many rows as it may have.
    """
    rows: Tensor = _Shuffle.apply(x, route, exchange)  # type: ignore[no-untyped-call]
    return rows


class _Shuffle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, exchange: Exchange) -> Tensor:
        ctx.route, ctx.exchange = route.to(x.device), exchange
        route = ctx.route
        sent = x.index_select(0, route.send).split(route.send_counts)
        got = exchange.all_to_all(sent, receive=route.receive_counts)
        rows = torch.cat((x, *got))
        return rows if route.order is None else rows.index_select(0, route.order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        route: Route = ctx.route
        if route.order is not None:
            spread = grad.new_zeros((route.own + route.received, *grad.shape[1:]))
            grad = spread.index_copy_(0, route.order, grad)
        back = grad[route.own :].split(route.receive_counts)
        got = ctx.exchange.all_to_all(back, receive=route.send_counts)
        own = grad[: route.own].clone()
        for rows, part in zip(route.send.split(route.send_counts), got, strict=True):
            own.index_add_(0, rows, part)  # each row once: the order of sums is that of ranks
        return own, None, None
