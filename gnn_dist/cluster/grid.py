"""``Grid``: hosts laid out in rows and columns, so that a graph may be held more than once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnn_dist.cluster.placement import Placement
from gnn_dist.errors import InputError


@dataclass(frozen=True)
class Grid:
    """``H`` hosts as ``H / c`` rows times ``c`` columns.

    The hosts of a column hold the whole graph together, those of a row the same partitions:
    topology and features exist ``c`` times. Requests stay inside a column. With ``c = H`` every
    host holds everything and none is asked; with ``c = 1`` there is one column. Tripathy, Yelick,
    Buluç (MLSys 2024) lay out their process grid so.

    Attributes:
        rows: the placement of all ranks with a row in the place of a host: which ranks are near to
            a partition.
        column: the placement within this rank's column.
        members: the ranks of each column, ascending.
    """

    rows: Placement
    column: Placement
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, placement: Placement, replication: int) -> "Grid":
        """The grid with ``replication`` columns. ``InputError`` where it does not divide the
        number of hosts."""
        hosts, parts = placement.num_hosts, placement.num_parts
        if hosts % replication:
            raise InputError(
                f"cluster.replication: {replication} copies on {hosts} hosts; give a number that "
                f"divides {hosts} (with cluster.placement: per-rank, each rank counts as a host)"
            )
        rows = hosts // replication
        row_of_part = tuple(part * rows // parts for part in range(parts))
        host = np.asarray(placement.host_of_rank)
        members = tuple(
            tuple(np.flatnonzero(host % replication == column).tolist())
            for column in range(replication)
        )
        mine = members[placement.host % replication]
        return cls(
            Placement(
                placement.rank,
                placement.size,
                _numbered(host // replication),
                _by(row_of_part, host // replication),
            ),
            Placement(
                mine.index(placement.rank),
                len(mine),
                _numbered(host[list(mine)] // replication),
                _by(row_of_part, host[list(mine)] // replication),
            ),
            members,
        )


def _order(values: Sequence[int] | np.ndarray) -> dict[int, int]:
    number: dict[int, int] = {}
    for value in values:
        number.setdefault(int(value), len(number))
    return number


def _numbered(values: np.ndarray) -> tuple[int, ...]:
    """Values replaced by numbers in order of first appearance."""
    number = _order(values)
    return tuple(number[int(value)] for value in values)


def _by(values: Sequence[int], order: np.ndarray) -> tuple[int, ...]:
    number = _order(order)
    return tuple(number[value] for value in values)
