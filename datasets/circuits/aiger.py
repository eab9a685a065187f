"""Reader of AIGER files, binary (``aig``) and ASCII (``aag``), format 1.0 with reset values.

The file is decoded here rather than by ``aigverse``: its parser does not come back from a
truncated file, takes gigabytes for a header of a few bytes that states them, and rebuilds the
circuit with structural hashing, so that the gates of the file may be merged. The tests use it as
the oracle for what a circuit computes.

Format: Biere, "The AIGER And-Inverter Graph (AIG) Format", 2007.
"""

import numba
import numpy as np

from gnn_dist.datasets.circuits.netlist import Kind, Netlist
from gnn_dist.errors import InputError

MAX_INPUTS = 1 << 20
"""Inputs take no bytes in a binary file, so their number needs a bound of its own."""


def parse_aiger(data: bytes, name: str) -> Netlist:
    """The netlist in ``data``: AND gates, and one inverter for each variable used inverted.

    Latches are cut. Raises ``InputError`` for a file that is truncated, whose header does not
    hold, or that has a loop.
    """
    kind, (top, num_inputs, num_latches, num_outputs, num_ands), at = _header(data, name)
    lines = _Lines(data, at, name)
    if kind == "aig":
        inputs = np.arange(1, num_inputs + 1, dtype=np.int64)
        latches = np.arange(num_inputs + 1, num_inputs + num_latches + 1, dtype=np.int64)
        next_state = lines.latches(num_latches, top, latches)
        outputs = lines.literals(num_outputs, 1, top, "outputs")[:, 0]
        body = np.frombuffer(data, np.uint8, offset=lines.at)
        first = num_inputs + num_latches + 1
        ands, used = _decode_ands(body, first, num_ands)
        if used < 0:
            raise InputError(
                f"circuit {name}: the AIGER file is truncated or damaged at AND gate "
                f"{-used} of {num_ands}; fetch it again"
            )
        lhs = np.arange(first, top + 1, dtype=np.int64)
        lines.at += used
    else:
        inputs = _variables(lines.literals(num_inputs, 1, top, "inputs")[:, 0], name)
        rows = lines.latch_rows(num_latches, top)
        latches, next_state = _variables(rows[:, 0], name), rows[:, 1]
        outputs = lines.literals(num_outputs, 1, top, "outputs")[:, 0]
        gates = lines.literals(num_ands, 3, top, "AND gates")
        lhs, ands = _variables(gates[:, 0], name), gates[:, 1:]
    return _assemble(name, inputs, latches, lhs, ands, next_state, outputs)


def _header(data: bytes, name: str) -> tuple[str, tuple[int, int, int, int, int], int]:
    line, newline, _ = data[:256].partition(b"\n")
    words = line.split()
    if not newline or len(words) < 6 or words[0] not in (b"aig", b"aag"):
        raise InputError(
            f"circuit {name}: is not an AIGER file: it begins with {line[:40]!r}; the first line "
            "must be 'aig M I L O A' or 'aag M I L O A'"
        )
    if not all(w.isdigit() and len(w) <= 10 for w in words[1:]):
        raise InputError(f"circuit {name}: the AIGER header {line[:80]!r} must hold counts")
    if any(int(w) for w in words[6:]):
        raise InputError(
            f"circuit {name}: the AIGER header {line[:80]!r} has properties (B C J F); only "
            "inputs, latches, outputs and AND gates are supported"
        )
    kind = words[0].decode()
    top, num_inputs, num_latches, num_outputs, num_ands = (int(w) for w in words[1:6])
    total = num_inputs + num_latches + num_ands
    if top < total or (kind == "aig" and top != total):
        raise InputError(
            f"circuit {name}: the AIGER header {line[:80]!r} does not add up: M is {top} for "
            f"I + L + A = {total}; fetch the file again"
        )
    at = len(line) + 1
    left = len(data) - at
    # The least that the body can take: two bytes for a line or a binary AND gate.
    need = 2 * (num_latches + num_outputs + num_ands) + (2 * num_inputs if kind == "aag" else 0)
    if need > left:
        raise InputError(
            f"circuit {name}: the AIGER file is truncated: its header {line[:80]!r} needs at "
            f"least {need} bytes more and {left} are there; fetch it again"
        )
    if num_inputs > MAX_INPUTS:
        raise InputError(
            f"circuit {name}: the AIGER header asks for {num_inputs} inputs; at most {MAX_INPUTS} "
            "are supported"
        )
    return kind, (top, num_inputs, num_latches, num_outputs, num_ands), at


class _Lines:
    """Lines of decimal literals, read from ``at`` on."""

    def __init__(self, data: bytes, at: int, name: str) -> None:
        self.data, self.at, self.name = data, at, name

    def _line(self, what: str) -> list[int]:
        end = self.data.find(b"\n", self.at, self.at + 128)
        words = self.data[self.at : end].split() if end >= 0 else []
        if not words or not all(w.isdigit() and len(w) <= 10 for w in words):
            raise InputError(
                f"circuit {self.name}: the AIGER file is truncated or damaged in its {what}: "
                f"{self.data[self.at : self.at + 20]!r}; fetch it again"
            )
        self.at = end + 1
        return [int(w) for w in words]

    def _check(self, rows: np.ndarray, top: int, what: str) -> np.ndarray:
        if rows.size and rows.max() > 2 * top + 1:
            raise InputError(
                f"circuit {self.name}: the literal {rows.max()} in its {what} names a variable "
                f"above the header's {top}; the file is damaged: write or fetch it again"
            )
        return rows

    def literals(self, rows: int, width: int, top: int, what: str) -> np.ndarray:
        out = np.empty((rows, width), np.int64)
        for i in range(rows):
            words = self._line(what)
            if len(words) != width:
                raise InputError(
                    f"circuit {self.name}: line {i + 1} of the AIGER file's {what} has "
                    f"{len(words)} literals; it must have {width}"
                )
            out[i] = words
        return self._check(out, top, what)

    def latch_rows(self, rows: int, top: int) -> np.ndarray:
        """Rows ``current next [reset]`` of an ASCII file: int64[rows, 2]."""
        out = np.empty((rows, 2), np.int64)
        for i in range(rows):
            words = self._line("latches")
            if len(words) not in (2, 3):
                raise InputError(
                    f"circuit {self.name}: latch {i + 1} of the AIGER file has {len(words)} "
                    "literals; it must have 2 or 3"
                )
            out[i] = words[:2]
        return self._check(out, top, "latches")

    def latches(self, rows: int, top: int, current: np.ndarray) -> np.ndarray:
        """Rows ``next [reset]`` of a binary file: int64[rows]."""
        out = np.empty(rows, np.int64)
        for i in range(rows):
            words = self._line("latches")
            if len(words) not in (1, 2):
                raise InputError(
                    f"circuit {self.name}: latch {i + 1} of the AIGER file has {len(words)} "
                    "literals; it must have 1 or 2"
                )
            out[i] = words[0]
        return self._check(out, top, "latches")


def _variables(literals: np.ndarray, name: str) -> np.ndarray:
    if literals.size and ((literals & 1).any() or literals.min() < 2):
        bad = int(literals[(literals & 1 == 1) | (literals < 2)][0])
        raise InputError(
            f"circuit {name}: the AIGER file defines the literal {bad}; it must be even and not 0"
        )
    return literals >> 1


@numba.njit(cache=True)
def _decode_ands(body, first, count):
    """Literals int64[count, 2] and the bytes used; minus the number of a gate that is damaged.

    Gate ``i`` is stored as lhs - rhs0 and rhs0 - rhs1, seven bits a byte, lowest first.
    """
    out = np.empty((count, 2), np.int64)
    at = 0
    for i in range(count):
        literal = 2 * (first + i)
        for side in range(2):
            delta = np.int64(0)
            shift = 0
            while True:
                if at >= body.size or shift > 35:
                    return out, -(i + 1)
                byte = np.int64(body[at])
                at += 1
                delta |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if delta > literal or (side == 0 and delta == 0):
                return out, -(i + 1)
            literal -= delta
            out[i, side] = literal
    return out, at


def _assemble(
    name: str,
    inputs: np.ndarray,
    latches: np.ndarray,
    lhs: np.ndarray,
    ands: np.ndarray,
    next_state: np.ndarray,
    outputs: np.ndarray,
) -> Netlist:
    """Nodes: the constants that are used, inputs, latches, AND gates, then inverters."""
    # Dense numbers for variables: an ASCII file may use few of a large range.
    defined = np.concatenate([np.zeros(1, np.int64), inputs, latches, lhs])
    order = np.argsort(defined, kind="stable")
    ascending = defined[order]
    if (ascending[1:] == ascending[:-1]).any():
        twice = int(ascending[1:][ascending[1:] == ascending[:-1]][0])
        raise InputError(
            f"circuit {name}: the AIGER variable {twice} is defined twice; define it once"
        )
    read = np.concatenate([ands.reshape(-1), next_state, outputs])
    place = np.searchsorted(ascending, read >> 1)
    place[place == ascending.size] = 0
    missing = ascending[place] != read >> 1
    if missing.any():
        raise InputError(
            f"circuit {name}: the AIGER variable {int(read[missing][0]) >> 1} is read and not "
            "defined; define it as an input, a latch or an AND gate"
        )
    node, inverted = order[place], read & 1 == 1
    base = defined.size  # node 0 is the constant 0, whose inverter is the constant 1
    targets = np.unique(node[inverted])
    node = np.where(inverted, base + np.searchsorted(targets, node), node)
    kinds = np.concatenate(
        [
            [Kind.CONST0],
            np.full(inputs.size + latches.size, Kind.INPUT),
            np.full(lhs.size, Kind.AND),
            np.where(targets == 0, Kind.CONST1, Kind.NOT),
        ]
    )
    counts = np.select([kinds == Kind.AND, kinds == Kind.NOT], [2, 1], 0)
    gate_fanin = node[: ands.size]
    fanin = np.concatenate([gate_fanin, targets[targets != 0]])
    ends = node[ands.size :]
    ends = np.concatenate([ends[latches.size :], ends[: latches.size]])
    registers = np.arange(latches.size) + 1 + inputs.size
    if not (node == 0).any():  # no one reads the constant 0: leave it out
        kinds, counts = kinds[1:], counts[1:]
        fanin, ends, registers = fanin - 1, ends - 1, registers - 1
    indptr = np.zeros(kinds.size + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return Netlist.from_gates(name, kinds, indptr, fanin, ends, None, registers)
