"""Rows between layers: from the rank that computes a vertex to the ranks that read it.

An exchange runs on a thread of its own while this rank goes on with what it can do without the
others' rows: gathering its own and, where a layer comes in halves, computing the destinations whose
sources are all its own. Backwards, the gradients of received rows leave as soon as the other half
has gone back, and its own half goes back meanwhile.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from gnn_dist.batch import Block
from gnn_dist.cluster import Exchange
from gnn_dist.features import FeatureRows
from gnn_dist.strategies.split.sample import Halves, Route


class Shuffler:
    """Moves rows over ``exchange``, which nobody else uses, on a thread of its own."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._alone = exchange.size == 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shuffle")

    def start(
        self, like: Tensor, counts: list[int], receive: list[int], fill: Callable[[Tensor], object]
    ) -> "Future[list[Tensor]]":
        """``Exchange.all_to_all`` of rows alike to ``like``, ``counts`` of them to each rank, which
        ``fill`` writes where it is told; the result is what the rank waits for."""

        def run() -> list[Tensor]:
            rows = self.exchange.room(sum(counts), like)
            fill(rows)
            return self.exchange.all_to_all(rows.split(counts), receive=receive)

        return self._thread.submit(run)

    def whole(self, x: Tensor, route: Route) -> Tensor:
        """The input rows of a layer: this rank's own rows ``x``, then those of the other ranks.

        Differentiable: gradients of received rows go back to their owner and are summed there, in
        the order of ranks. Collective, forward and backward: every rank calls ``whole`` or
        ``halves`` for every layer, and back-propagates, with as many rows as it may have.
        """
        if self._alone and route.order is None:
            return x
        rows: Tensor = _Whole.apply(x, route, self)  # type: ignore[no-untyped-call]
        return rows

    def left(self, own: FeatureRows, route: Route) -> FeatureRows:
        """``whole`` for rows that stay in their tables and need no gradient: those that come, as
        they are stored, are further tables."""
        sent = FeatureRows(own.tables, own.index, own.stored, own.source)[route.send]
        like = own.tables[0][:0]
        came = self.start(like, route.send_counts, route.receive_counts, sent.copy_to).result()
        rows = own.followed_by(came)
        return rows if route.order is None else rows[route.order]

    def halves(
        self,
        x: Tensor,
        route: Route,
        halves: Halves,
        layer: Callable[[Tensor, Block], Tensor],
        here: Callable[[Block], Block],
    ) -> Tensor:
        """What ``layer`` gives for all destinations, one half of them while rows travel."""
        flight = _Flight(self, route.to(x.device), halves.to(x.device))
        inner, kept = _Depart.apply(x, flight)  # type: ignore[no-untyped-call]
        first = layer(inner, here(halves.inner.block))
        rows = _Arrive.apply(kept, flight)  # type: ignore[no-untyped-call]
        second = layer(rows, here(halves.outer.block))
        return torch.cat((first, second)).index_select(0, flight.halves.back)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, shuffler: Shuffler) -> Tensor:
        route = ctx.route = route.to(x.device)
        ctx.shuffler = shuffler
        flight = _send(x, route, shuffler)
        rows = x.new_empty((route.own + route.received, *x.shape[1:]))
        rows[: route.own] = x
        torch.cat((x[:0], *flight.result()), out=rows[route.own :])
        return rows if route.order is None else rows.index_select(0, route.order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        route: Route = ctx.route
        if route.order is not None:
            spread = grad.new_zeros((route.own + route.received, *grad.shape[1:]))
            grad = spread.index_copy_(0, route.order, grad)
        flight = _return(grad[route.own :], route, ctx.shuffler)
        own = grad[: route.own].clone()
        return _sum(own, route, flight.result()), None, None


class _Flight:
    """Rows on their way for a layer in halves."""

    def __init__(self, shuffler: Shuffler, route: Route, halves: Halves) -> None:
        self.shuffler, self.route, self.halves = shuffler, route, halves
        self.there: Future[list[Tensor]] | None = None
        self.back: Future[list[Tensor]] | None = None


class _Depart(torch.autograd.Function):
    """Own rows → those that each half reads; the rows for other ranks leave."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: _Flight) -> tuple[Tensor, Tensor]:
        ctx.flight = flight
        flight.there = _send(x, flight.route, flight.shuffler)
        halves = flight.halves
        return x.index_select(0, halves.inner.rows), x.index_select(0, halves.outer.rows)

    @staticmethod
    def backward(ctx: Any, inner: Tensor, kept: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        flight: _Flight = ctx.flight
        own = inner.new_zeros((flight.route.own, *inner.shape[1:]))
        own.index_add_(0, flight.halves.inner.rows, inner)
        own.index_add_(0, flight.halves.outer.rows, kept)
        assert flight.back is not None
        return _sum(own, flight.route, flight.back.result()), None


class _Arrive(torch.autograd.Function):
    """The rows that the outer half reads: ``kept`` of its own, and those that come."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, flight: _Flight) -> Tensor:
        ctx.flight, ctx.kept = flight, kept.shape[0]
        assert flight.there is not None
        return torch.cat((kept, *flight.there.result()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        flight: _Flight = ctx.flight
        flight.back = _return(grad[ctx.kept :], flight.route, flight.shuffler)
        return grad[: ctx.kept], None


def _send(x: Tensor, route: Route, shuffler: Shuffler) -> "Future[list[Tensor]]":
    rows = x.detach()

    def fill(out: Tensor) -> None:
        torch.index_select(rows, 0, route.send, out=out)

    return shuffler.start(rows, route.send_counts, route.receive_counts, fill)


def _return(grad: Tensor, route: Route, shuffler: Shuffler) -> "Future[list[Tensor]]":
    rows = grad.detach()
    return shuffler.start(
        rows, route.receive_counts, route.send_counts, lambda out: out.copy_(rows)
    )


def _sum(own: Tensor, route: Route, came: Sequence[Tensor]) -> Tensor:
    """``own`` with the gradients that came back added, in the order of ranks."""
    for rows, part in zip(route.send.split(route.send_counts), came, strict=True):
        own.index_add_(0, rows, part)  # each row once: the order of sums is that of ranks
    return own
