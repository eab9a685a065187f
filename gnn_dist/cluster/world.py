"""The ranks of a run and what they talk over."""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gnn_dist.cluster.exchange import CollectiveExchange, Exchange, LocalExchange
from gnn_dist.cluster.placement import Placement, PlacementMode
from gnn_dist.cluster.watch import Watch, connect_store
from gnn_dist.errors import InputError, WorkerError

TIMEOUT = 120.0
"""Seconds that a collective may take, unless the configuration says otherwise."""

_MEETING = 60.0
"""Seconds that processes of different age may need at least to find each other."""


@dataclass
class World:
    """The ranks of a run, their hosts, and one exchange for each purpose.

    The exchanges are independent of each other, so that sampling and fetching on their own threads
    overlap with the gradients on the main thread. ``control`` is for everything small and rare:
    metrics, barriers, counts.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    """Name of each rank's host."""
    device: torch.device
    timeout: float
    """Seconds a collective may take."""
    gradients: Exchange
    sampling: Exchange
    features: Exchange
    control: Exchange
    watch: Watch | None = None
    _groups: list[dist.ProcessGroup] = field(default_factory=list, repr=False)

    @classmethod
    def local(cls, device: torch.device | str = "cpu", timeout: float = TIMEOUT) -> "World":
        """One process alone."""
        return cls(
            rank=0,
            size=1,
            hosts=(host_name(),),
            device=torch.device(device),
            timeout=timeout,
            gradients=LocalExchange(),
            sampling=LocalExchange(),
            features=LocalExchange(),
            control=LocalExchange(),
        )

    @classmethod
    def connect(
        cls,
        *,
        address: str = "127.0.0.1",
        device: torch.device | str = "cpu",
        timeout: float = TIMEOUT,
    ) -> "World":
        """Join the ranks of the default process group of ``torch.distributed``.

        Every rank calls it. ``address`` is where the others reach this rank (that of rank 0 is
        used). Every group has the time limit ``timeout`` in seconds, and every failure names the
        rank that is missing.
        """
        if timeout <= 0:
            raise InputError(f"cluster.timeout: {timeout:g} s; give a positive number of seconds")
        assert dist.is_initialized(), "torch.distributed has no default process group"
        rank, size = dist.get_rank(), dist.get_world_size()
        device = torch.device(device)
        if size == 1:
            return cls.local(device, timeout)
        meeting = max(_MEETING, timeout)
        groups = [_new_group(range(size), device, timeout) for _ in range(4)]
        name = host_name()
        server = None
        if rank == 0:
            server = connect_store(address, 0, is_server=True, limit=meeting)
        met = CollectiveExchange(groups[0]).all_gather_object(
            (name, address, server.port if server is not None else 0)
        )
        store = server or connect_store(met[0][1], met[0][2], is_server=False, limit=meeting)
        watch = Watch(store, rank, size, name, timeout)
        control = CollectiveExchange(groups[0], name="control", watch=watch)
        control.barrier()
        watch.start()
        return cls(
            rank=rank,
            size=size,
            hosts=tuple(host for host, _, _ in met),
            device=device,
            timeout=timeout,
            gradients=CollectiveExchange(groups[1], name="gradients", watch=watch),
            sampling=CollectiveExchange(groups[2], name="sampling", watch=watch),
            features=CollectiveExchange(groups[3], name="features", watch=watch),
            control=control,
            watch=watch,
            _groups=groups,
        )

    def exchange(self, name: str) -> Exchange:
        """One more exchange among all ranks. Every rank calls it, in the same order."""
        return self.split(name, [range(self.size)])

    def split(self, name: str, members: Sequence[Sequence[int]]) -> Exchange:
        """An exchange among each of several disjoint sets of ranks, such as columns of a grid.

        Every rank calls it, in the same order, with the same ``members``; the answer is the
        exchange of the set that holds this rank. Its ``rank`` counts within that set.
        """
        every = sorted(r for ranks in members for r in ranks)
        if every != list(range(self.size)):
            raise InputError(
                f"{name}: the groups {[list(m) for m in members]} must hold each of the "
                f"{self.size} ranks once"
            )
        if self.size == 1:
            return LocalExchange()
        mine: Exchange | None = None
        for ranks in members:
            made = _new_group(ranks, self.device, self.timeout)
            if self.rank in ranks:
                self._groups.append(made)
                mine = CollectiveExchange(made, name=name, watch=self.watch)
        assert mine is not None
        return mine

    def placement(self, num_parts: int, mode: PlacementMode = "auto") -> Placement:
        """How ``num_parts`` partitions lie on the hosts of this world."""
        return Placement.build(rank=self.rank, hosts=self.hosts, num_parts=num_parts, mode=mode)

    def once_per_host(self, key: str, work: Callable[[], str], placement: Placement) -> str:
        """Let one rank of each host do ``work`` (staging partitions, say); its answer on all.

        The other ranks wait as long as the working rank lives, whatever the time limit of
        collectives, and all leave together. When ``work`` raises, the error is raised on the
        working rank, and a ``WorkerError`` that names it on all others. ``key`` must be new at
        each call.
        """
        if self.watch is None:
            return work()
        leaders = [placement.ranks_of_host(h)[0] for h in range(placement.num_hosts)]
        if self.rank in leaders:
            self.watch.announce(key, work())
        answers = [self.watch.wait_for(key, leader) for leader in leaders]
        return answers[placement.host]

    def close(self, error: BaseException | None = None) -> None:
        """Leave: say so to the others (with the ``error`` that ended this rank), free the groups.

        Without an error, ranks leave together. The default process group is left to whoever made
        it.
        """
        if self.watch is None:
            return
        groups, self._groups = self._groups, []
        if not groups:
            return
        if error is not None:
            self.watch.tell_failure(error)
        else:
            with contextlib.suppress(WorkerError):  # this rank has done its work in any case
                self.control.barrier()
        for group in reversed(groups):
            dist.destroy_process_group(group)
        self.watch.close()


def _new_group(ranks: Sequence[int], device: torch.device, timeout: float) -> dist.ProcessGroup:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    return dist.new_group(sorted(ranks), timeout=timedelta(seconds=timeout), backend=backend)


def host_name() -> str:
    """This host's name; containers and machines that happen to share a name are told apart."""
    name = os.uname().nodename or socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return name
    return f"{name}/{boot[:8]}"
