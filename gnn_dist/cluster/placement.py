"""Which host owns which partition, and which rank answers for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gnn_dist.errors import InputError

PlacementMode = Literal["auto", "per-rank"]


@dataclass(frozen=True)
class Placement:
    """Ranks on hosts and partitions on hosts, seen from one rank.

    Partitions belong to hosts, not to ranks: every rank of a host reads all partitions of that
    host through memory maps, and only rows of other hosts cross an ``Exchange``. Hosts are
    numbered by first appearance over the ranks; a host may own no partition.
    """

    rank: int
    size: int
    host_of_rank: tuple[int, ...]
    host_of_part: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise InputError(f"rank: {self.rank} is not one of the {self.size} ranks")
        if len(self.host_of_rank) != self.size:
            raise InputError(
                f"host_of_rank: names {len(self.host_of_rank)} hosts for {self.size} ranks; "
                "give one for each rank"
            )
        hosts = set(self.host_of_rank)
        if hosts != set(range(len(hosts))):
            raise InputError(
                f"host_of_rank: hosts must be numbered 0 to {len(hosts) - 1}, got {sorted(hosts)}"
            )
        if not self.host_of_part:
            raise InputError("host_of_part: there are no partitions; at least one is needed")
        for part, host in enumerate(self.host_of_part):
            if host not in hosts:
                raise InputError(
                    f"host_of_part: part {part} lies on host {host}, which has no rank "
                    f"(hosts: 0 to {len(hosts) - 1}); give it a rank, or the part another host"
                )

    @classmethod
    def build(
        cls,
        *,
        rank: int,
        hosts: Sequence[str],
        num_parts: int,
        mode: PlacementMode = "auto",
    ) -> "Placement":
        """Deal ``num_parts`` partitions to hosts in contiguous, even runs.

        ``hosts[r]`` is the name of rank ``r``'s host. With ``auto``, ranks of one name share a
        host; with ``per-rank``, each rank is treated as a host of its own (to test and measure
        communication on one machine). Fewer partitions than hosts leave some hosts without one.
        """
        if mode not in ("auto", "per-rank"):
            raise InputError(f"placement: there is no {mode!r}; use auto or per-rank")
        if num_parts < 1:
            raise InputError(f"num_parts: {num_parts} is below 1; ask for at least 1")
        if mode == "per-rank":
            host_of_rank = tuple(range(len(hosts)))
        else:
            number: dict[str, int] = {}
            host_of_rank = tuple(number.setdefault(name, len(number)) for name in hosts)
        num_hosts = len(set(host_of_rank))
        return cls(
            rank=rank,
            size=len(hosts),
            host_of_rank=host_of_rank,
            host_of_part=tuple(part * num_hosts // num_parts for part in range(num_parts)),
        )

    @classmethod
    def single(cls, num_parts: int = 1) -> "Placement":
        """One process that owns every partition."""
        return cls.build(rank=0, hosts=["local"], num_parts=num_parts)

    @property
    def host(self) -> int:
        """The host of this rank."""
        return self.host_of_rank[self.rank]

    @property
    def num_hosts(self) -> int:
        return len(set(self.host_of_rank))

    @property
    def num_parts(self) -> int:
        return len(self.host_of_part)

    @property
    def local_parts(self) -> tuple[int, ...]:
        """The partitions that this rank's host owns, ascending; may be empty."""
        return self.parts_of_host(self.host)

    @property
    def all_local(self) -> bool:
        """True where no rank ever needs another host's rows, so no rank needs a collective.

        A statement about all ranks, not about this one: they agree on it, and so agree on whether
        the collectives are entered.
        """
        return self.num_hosts == 1

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this rank's host, ascending, this one included."""
        return self.ranks_of_host(self.host)

    @property
    def is_leader(self) -> bool:
        """Whether this is the lowest rank of its host."""
        return self.local_ranks[0] == self.rank

    def parts_of_host(self, host: int) -> tuple[int, ...]:
        return tuple(p for p, h in enumerate(self.host_of_part) if h == host)

    def ranks_of_host(self, host: int) -> tuple[int, ...]:
        return tuple(r for r, h in enumerate(self.host_of_rank) if h == host)

    def is_local(self, part: int) -> bool:
        return self.host_of_part[part] == self.host

    def server_of(self, part: int) -> int:
        """The rank that answers this rank's requests for rows of ``part``.

        This rank itself for a partition of its own host; else one of the ranks of the host that
        owns it. The asking ranks of a host, and the partitions asked for, are spread over the
        owner's ranks in turn, so that no rank serves all.
        """
        owner = self.host_of_part[part]
        if owner == self.host:
            return self.rank
        servers = self.ranks_of_host(owner)
        return servers[(self.rank + part) % len(servers)]

    def servers(self) -> tuple[int, ...]:
        """``server_of`` of every partition: a table to index by the owner of each id."""
        return tuple(self.server_of(part) for part in range(self.num_parts))
