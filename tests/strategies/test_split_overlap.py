"""What goes on while hidden rows travel: the half of a layer that needs none of them."""

import threading

import torch

from gnn_dist.batch import Block
from gnn_dist.cluster import LocalExchange
from gnn_dist.strategies.split.sample import Route, halve
from gnn_dist.strategies.split.shuffle import Shuffler

OWN = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
CAME = torch.tensor([[7.0, 8.0]])
BACK = torch.tensor([[10.0, 20.0]])  # the gradient that the other rank has for row 1


class Waiting(LocalExchange):
    """Two ranks, this one the first. Rows arrive only once the other half has been computed,
    gradients only once it has gone back."""

    def __init__(self):
        super().__init__()
        self.size = 2
        self.computed, self.gone_back = threading.Event(), threading.Event()
        self.sent = []

    def all_to_all(self, parts, *, receive=None):
        event, came = ((self.computed, CAME), (self.gone_back, BACK))[len(self.sent)]
        self.sent.append(parts[1].clone())
        if not event.wait(20):
            raise RuntimeError("nothing was computed while rows travelled")
        return [parts[0], came]


def total(x: torch.Tensor, block: Block) -> torch.Tensor:
    """Squares of the sources of each destination, summed."""
    rows = torch.repeat_interleave(torch.arange(block.num_dst), block.degrees())
    out = torch.zeros(block.num_dst, x.shape[1])
    return out.index_add(0, rows, x[block.indices.long()] ** 2)


def test_a_half_is_computed_and_goes_back_while_rows_travel():
    # destination 0 reads rows 0 and 1, destination 1 the row that comes, and row 2
    block = Block(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 3, 2], dtype=torch.int32), 4)
    halves = halve(block, own=3)
    assert halves is not None
    exchange = Waiting()
    shuffler = Shuffler(exchange)
    x = OWN.clone().requires_grad_()

    def layer(rows: torch.Tensor, half: Block) -> torch.Tensor:
        out = total(rows, half)
        if not exchange.computed.is_set():  # the first call: the half that needs own rows alone
            out.register_hook(lambda _: exchange.gone_back.set())
        exchange.computed.set()
        return out

    route = Route(torch.tensor([1]), [0, 1], [0, 1], own=3)
    out = shuffler.halves(x, route, halves, layer, lambda half: half)
    every = torch.cat((OWN, CAME)).requires_grad_()
    expected = total(every, block)
    assert torch.equal(out, expected)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    gradient = every.grad[:3].clone()
    gradient[1] += BACK[0]
    assert torch.equal(x.grad, gradient)
    assert torch.equal(exchange.sent[0], OWN[1:2])
    assert torch.equal(exchange.sent[1], every.grad[3:])
    shuffler.close()
