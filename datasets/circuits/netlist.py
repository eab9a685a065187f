"""``Netlist``: a combinational circuit as arrays in topological order.

Every reader and generator ends here. Flip-flops are cut: the output Q of one is an input of the
netlist and its data pin D an output. Inverters and constants are nodes like gates.
"""

import functools
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from gnn_dist.errors import InputError
from gnn_dist.kernels import simulate

_SHORT = reprlib.Repr()
_SHORT.maxstring = 60
"""Names come from files: a message must not carry a whole one."""


class Kind(IntEnum):
    """What a node is. The codes are those of ``gnn_dist.kernels.simulate``."""

    INPUT = simulate.INPUT
    CONST0 = simulate.CONST0
    CONST1 = simulate.CONST1
    BUF = simulate.BUF
    NOT = simulate.NOT
    AND = simulate.AND
    NAND = simulate.NAND
    OR = simulate.OR
    NOR = simulate.NOR
    XOR = simulate.XOR
    XNOR = simulate.XNOR


@dataclass(frozen=True, eq=False)
class Netlist:
    """A combinational netlist of N nodes, E fan-ins and O outputs.

    Use ``Netlist.from_gates`` for nodes in any order; the constructor takes them sorted.

    Attributes:
        name: of the circuit.
        kinds: uint8[N], a ``Kind`` each.
        indptr: int64[N + 1].
        fanin: int32[E]; the fan-ins of node ``v``, in the order of the file, are
            ``fanin[indptr[v]:indptr[v + 1]]``, all smaller than ``v``.
        outputs: int64[O], the node that drives each primary output, then each flip-flop's D.
        names: N names, or None.
        registers: int64[R], the nodes that stand for flip-flop outputs (Q), in the order of the
            last R ``outputs`` (D).
    """

    name: str
    kinds: np.ndarray
    indptr: np.ndarray
    fanin: np.ndarray
    outputs: np.ndarray
    names: tuple[str, ...] | None = None
    registers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        assert self.indptr.dtype == np.int64
        assert self.fanin.dtype == np.int32
        assert self.kinds.dtype == np.uint8
        assert self.indptr.size == self.kinds.size + 1
        assert self.indptr[0] == 0
        assert self.indptr[-1] == self.fanin.size
        assert bool((self.fanin < self.destinations()).all()), "fan-ins must come first"
        for array in (self.kinds, self.indptr, self.fanin, self.outputs, self.registers):
            array.flags.writeable = False

    @classmethod
    def from_gates(
        cls,
        name: str,
        kinds: np.ndarray,
        indptr: np.ndarray,
        fanin: np.ndarray,
        outputs: np.ndarray,
        names: Sequence[str] | None = None,
        registers: np.ndarray | None = None,
    ) -> "Netlist":
        """From nodes in any order (arrays as the attributes above).

        The nodes are put in topological order, inputs first, otherwise by level and then as
        given. Raises ``InputError`` for a circuit without nodes, a gate with a wrong number of
        fan-ins, and a combinational loop, naming a gate on it.
        """
        kinds = np.ascontiguousarray(kinds, np.uint8)
        indptr = np.ascontiguousarray(indptr, np.int64)
        fanin = np.ascontiguousarray(fanin, np.int32)
        if kinds.size == 0:
            raise InputError(f"circuit {name}: has no nodes; give one with inputs and gates")

        def label(v: int) -> str:
            return _SHORT.repr(names[v]) if names is not None else f"number {v}"

        _check_fanin_counts(name, kinds, indptr, label)
        levels = simulate.hop_levels(indptr, fanin)
        if (levels < 0).any():
            loop = _a_loop(levels, indptr, fanin)
            path = " -> ".join(label(v) for v in [*loop[:8], *([loop[0]] if len(loop) < 9 else [])])
            raise InputError(
                f"circuit {name}: a combinational loop goes through gate {label(loop[0])} "
                f"({len(loop)} gates: {path}{' ...' if len(loop) > 8 else ''}); "
                "cut it with a flip-flop or remove it"
            )
        order = np.argsort(np.where(kinds == Kind.INPUT, -1, levels), kind="stable")
        rank = np.empty(kinds.size, np.int64)
        rank[order] = np.arange(kinds.size)
        degree = np.diff(indptr)[order]
        new_indptr = np.zeros(kinds.size + 1, np.int64)
        np.cumsum(degree, out=new_indptr[1:])
        edges = np.repeat(indptr[:-1][order] - new_indptr[:-1], degree) + np.arange(fanin.size)
        return cls(
            name,
            kinds[order],
            new_indptr,
            rank[fanin[edges]].astype(np.int32),
            rank[np.asarray(outputs, np.int64)],
            None if names is None else tuple(names[v] for v in order),
            rank[np.asarray(registers if registers is not None else (), np.int64)],
        )

    @property
    def num_nodes(self) -> int:
        return self.kinds.size

    @functools.cached_property
    def inputs(self) -> np.ndarray:
        """Primary inputs and flip-flop outputs, ascending: int64[I]."""
        return np.flatnonzero(self.kinds == Kind.INPUT)

    @property
    def num_gates(self) -> int:
        """Nodes that are neither inputs nor constants."""
        return int((self.kinds > Kind.CONST1).sum())

    def fan_in_counts(self) -> np.ndarray:
        """int64[N]."""
        return np.diff(self.indptr)

    def fan_out_counts(self) -> np.ndarray:
        """int64[N]: fan-ins that a node drives; outputs are not counted."""
        return np.bincount(self.fanin, minlength=self.num_nodes)

    def destinations(self) -> np.ndarray:
        """The gate of each fan-in: int64[E]."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))

    def __repr__(self) -> str:
        return (
            f"Netlist({self.name}: {self.inputs.size:,} inputs, {self.num_gates:,} gates, "
            f"{self.outputs.size:,} outputs)"
        )


class NetlistBuilder:
    """Collects nets by name, as netlist languages give them, in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ids: dict[str, int] = {}
        self._kinds: list[int] = []
        self._fanins: list[list[str]] = []
        self._outputs: list[str] = []
        self._registers: list[tuple[str, str]] = []

    def _add(self, net: str, kind: Kind, fanin: list[str]) -> None:
        if net in self._ids:
            raise InputError(
                f"circuit {self.name}: the net {_SHORT.repr(net)} is driven twice; give it one "
                "driver"
            )
        self._ids[net] = len(self._kinds)
        self._kinds.append(kind)
        self._fanins.append(fanin)

    def input(self, net: str) -> None:
        self._add(net, Kind.INPUT, [])

    def gate(self, net: str, kind: Kind, fanin: list[str]) -> None:
        self._add(net, kind, fanin)

    def output(self, net: str) -> None:
        self._outputs.append(net)

    def flip_flop(self, q: str, d: str) -> None:
        self._add(q, Kind.INPUT, [])
        self._registers.append((q, d))

    def constant(self, value: int) -> str:
        """The name of the net that is always ``value``."""
        net = f"1'b{value}"
        if net not in self._ids:
            self._add(net, Kind.CONST1 if value else Kind.CONST0, [])
        return net

    def build(self) -> Netlist:
        """The netlist of what was collected.

        Raises ``InputError`` for a net that nothing drives, and for what ``from_gates`` refuses.
        """
        ids, names = self._ids, list(self._ids)
        counts = np.fromiter(map(len, self._fanins), np.int64, len(self._fanins))
        indptr = np.zeros(counts.size + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        try:
            flat = [ids[net] for fanin in self._fanins for net in fanin]
        except KeyError as error:
            [missing] = error.args
            reader = next(names[v] for v, nets in enumerate(self._fanins) if missing in nets)
            raise InputError(
                f"circuit {self.name}: the gate {_SHORT.repr(reader)} reads the net "
                f"{_SHORT.repr(missing)}, which is not defined; define it as an input or as "
                "the output of a gate"
            ) from None
        ends = [*self._outputs, *(d for _, d in self._registers)]
        for net in ends:
            if net not in ids:
                raise InputError(
                    f"circuit {self.name}: the output {_SHORT.repr(net)} is not defined; define it "
                    "as an input or as the output of a gate"
                )
        return Netlist.from_gates(
            self.name,
            np.array(self._kinds, np.uint8),
            indptr,
            np.array(flat, np.int32),
            np.array([ids[net] for net in ends], np.int64),
            names,
            np.array([ids[q] for q, _ in self._registers], np.int64),
        )


def _check_fanin_counts(name: str, kinds: np.ndarray, indptr: np.ndarray, label) -> None:
    degree = np.diff(indptr)
    least = np.where(kinds <= Kind.CONST1, 0, 1)
    most = np.where(kinds <= Kind.CONST1, 0, np.where(kinds <= Kind.NOT, 1, degree.max(initial=1)))
    bad = np.flatnonzero((degree < least) | (degree > most))
    if bad.size:
        v = int(bad[0])
        raise InputError(
            f"circuit {name}: the {Kind(int(kinds[v])).name} {label(v)} has {degree[v]} fan-ins; "
            f"give {'at least 1' if kinds[v] > Kind.NOT else least[v]}"
        )


def _a_loop(levels: np.ndarray, indptr: np.ndarray, fanin: np.ndarray) -> list[int]:
    """The nodes of one loop, in the direction of the signal, beginning with the smallest."""
    v = int(np.flatnonzero(levels < 0)[0])
    seen: dict[int, int] = {}
    path: list[int] = []
    while v not in seen:  # every node left over has a fan-in that is left over
        seen[v] = len(path)
        path.append(v)
        v = next(int(u) for u in fanin[indptr[v] : indptr[v + 1]] if levels[u] < 0)
    loop = path[seen[v] :][::-1]
    start = loop.index(min(loop))
    return loop[start:] + loop[:start]
