"""What was read from where: exact counts of rows and bytes."""

from dataclasses import dataclass, field

ORIGINS = ("owned", "shared", "cached", "remote", "filled", "replaced")


def _zeros() -> dict[str, int]:
    return dict.fromkeys(ORIGINS, 0)


@dataclass(slots=True)
class Counts:
    """Rows and bytes by origin, and messages.

    ``rows`` and ``bytes`` have, as the rows are stored and sent (float16 rows count as float16):

    - ``owned``: read from the parts that this rank serves; ``shared``: from other parts on this
      host. Every row asked for counts.
    - ``cached``: rows of other hosts that were here already; ``remote``: rows of other hosts that
      were sent for it. Distinct rows of one batch count once.
    - ``filled``: rows sent to fill a cache at the start; ``replaced``: rows sent into a cache that
      no batch had asked for.

    ``rounds`` are request rounds (two collectives each, the second left out where nobody asked
    for anything); ``requests`` are ids sent; ``sent_bytes`` and ``received_bytes`` are the payload
    that this rank sent to and received from other ranks, requests included.
    """

    rows: dict[str, int] = field(default_factory=_zeros)
    bytes: dict[str, int] = field(default_factory=_zeros)
    rounds: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, origin: str, rows: int, row_bytes: int) -> None:
        self.rows[origin] += rows
        self.bytes[origin] += rows * row_bytes

    @property
    def transferred(self) -> int:
        """Rows that came from other hosts, fills and replacements included."""
        return self.rows["remote"] + self.rows["filled"] + self.rows["replaced"]

    @property
    def needed(self) -> int:
        """Rows of other hosts that batches needed: what no cache at all would transfer."""
        return self.rows["cached"] + self.rows["remote"]

    @property
    def saved(self) -> float:
        """``1 - transferred / needed``; 0 where no row of another host was needed."""
        return 1.0 - self.transferred / self.needed if self.needed else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of needed rows of other hosts that were here already."""
        return self.rows["cached"] / self.needed if self.needed else 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return self._combine(other, 1)

    def __sub__(self, other: "Counts") -> "Counts":
        return self._combine(other, -1)

    def _combine(self, other: "Counts", sign: int) -> "Counts":
        return Counts(
            {k: v + sign * other.rows[k] for k, v in self.rows.items()},
            {k: v + sign * other.bytes[k] for k, v in self.bytes.items()},
            self.rounds + sign * other.rounds,
            self.requests + sign * other.requests,
            self.sent_bytes + sign * other.sent_bytes,
            self.received_bytes + sign * other.received_bytes,
        )

    def copy(self) -> "Counts":
        return self + Counts()

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """For ``metrics.json``."""
        return {
            "rows": dict(self.rows),
            "bytes": dict(self.bytes),
            "rounds": self.rounds,
            "requests": self.requests,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }
