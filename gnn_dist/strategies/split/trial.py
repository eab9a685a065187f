"""What a batch costs one rank, tried on the first ones: no weight changes, no row is sent."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from gnn_dist.cluster import LocalExchange
from gnn_dist.strategies.split.shuffle import Shuffler

TRIES = 3  # of the model on a batch; the fastest counts


@dataclass(frozen=True)
class Trial:
    """One rank's cost of a global batch.

    Attributes:
        edges: sampled, of all layers.
        rows: feature rows read, or received from their owner.
        load: seconds to sample and read, without waiting for other ranks.
        compute: seconds forward and backward, likewise, in the fastest of ``TRIES``.
        load_bytes: sent to other hosts, and back, while batches are prepared.
        near_bytes: sent to their owners or readers while batches are prepared.
        step_bytes: hidden rows and their gradients, sent while the model waits.
        load_rounds, near_rounds: exchanges that carry those of preparation.
        shuffles: of each exchange while the model waits, in order, the bytes sent or those
            received, whichever are more.
        gradient_bytes: sent to sum the model's gradients.
    """

    edges: int
    rows: int
    load: float
    compute: float
    load_bytes: int = 0
    near_bytes: int = 0
    step_bytes: int = 0
    load_rounds: int = 0
    near_rounds: int = 0
    shuffles: tuple[int, ...] = ()
    gradient_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All that is sent for the batch; gradients are not, which are the same however it is
        computed."""
        return self.load_bytes + self.near_bytes + self.step_bytes


class Unsent(Shuffler):
    """Counts what would be sent; what would come is zeros."""

    def __init__(self) -> None:
        super().__init__(LocalExchange())
        self._alone = False
        self.bytes = 0
        self.larger: list[int] = []

    def start(
        self, like: Tensor, counts: list[int], receive: list[int], fill: Callable[[Tensor], object]
    ) -> "Future[list[Tensor]]":
        sent = self.exchange.room(sum(counts), like)
        fill(sent)
        zeros = [like.new_zeros((n, *like.shape[1:])) for n in receive]
        came = sum(tensor.nbytes for tensor in zeros)
        self.bytes += sent.nbytes
        self.larger.append(max(sent.nbytes, came))
        answer: Future[list[Tensor]] = Future()
        answer.set_result(zeros)
        return answer
