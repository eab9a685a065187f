"""What a batch costs one rank, tried on the first ones: no weight changes, no row is sent."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from gnn_dist.cluster import LocalExchange
from gnn_dist.strategies.split.shuffle import Shuffler


@dataclass(frozen=True)
class Trial:
    """One rank's cost of a global batch.

    Attributes:
        edges: sampled, of all layers.
        rows: feature rows read, or received from their owner.
        load: seconds to sample and read, without waiting for other ranks.
        compute: seconds forward and backward, likewise.
        load_bytes: sent to other hosts, and back, while batches are prepared.
        near_bytes: sent to their owners or readers while batches are prepared.
        step_bytes: hidden rows and their gradients, sent while the model waits.
        load_rounds, near_rounds, step_rounds: exchanges that carry them.
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
    step_rounds: int = 0

    @property
    def bytes(self) -> int:
        return self.load_bytes + self.near_bytes + self.step_bytes


class Unsent(Shuffler):
    """Counts what would be sent; what would come is zeros."""

    def __init__(self) -> None:
        super().__init__(LocalExchange())
        self._alone = False
        self.bytes = self.rounds = 0

    def start(self, parts: Sequence[Tensor], receive: list[int]) -> "Future[list[Tensor]]":
        self.bytes += sum(part.nbytes for part in parts)
        self.rounds += 1
        came: Future[list[Tensor]] = Future()
        came.set_result([parts[0].new_zeros((n, *parts[0].shape[1:])) for n in receive])
        return came
