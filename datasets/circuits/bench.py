"""Reader of ISCAS ``.bench`` netlists, as published and as ABC writes them."""

import re

from gnn_dist.datasets.circuits.netlist import Kind, Netlist, NetlistBuilder
from gnn_dist.errors import InputError

_GATE = {
    "AND": Kind.AND,
    "NAND": Kind.NAND,
    "OR": Kind.OR,
    "NOR": Kind.NOR,
    "XOR": Kind.XOR,
    "XNOR": Kind.XNOR,
    "NXOR": Kind.XNOR,
    "NOT": Kind.NOT,
    "INV": Kind.NOT,
    "BUF": Kind.BUF,
    "BUFF": Kind.BUF,
}
_NET = r"[^\s(),=#]+"
_PORT = re.compile(rf"(INPUT|OUTPUT)\s*\(\s*({_NET})\s*\)", re.IGNORECASE)
_ASSIGN = re.compile(rf"({_NET})\s*=\s*([A-Za-z]\w*)\s*\(([^()=]*)\)")
_CONSTANT = re.compile(rf"({_NET})\s*=\s*(vdd|gnd)(?:\s*\(\s*\))?", re.IGNORECASE)


def parse_bench(text: str, name: str) -> Netlist:
    """The netlist in ``text``; a ``DFF`` is cut into an input and an output.

    Raises ``InputError`` for a line that is not understood, an undefined gate and a loop.
    """
    builder = NetlistBuilder(name)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        if match := _ASSIGN.fullmatch(line):
            net, cell, arguments = match.groups()
            fanin = [a.strip() for a in arguments.split(",")] if arguments.strip() else []
            kind = _GATE.get(cell.upper())
            if not all(re.fullmatch(_NET, a) for a in fanin):
                raise InputError(_not_understood(name, number, raw))
            if kind is not None:
                builder.gate(net, kind, fanin)
                continue
            if cell.upper() == "DFF" and len(fanin) == 1:
                builder.flip_flop(net, fanin[0])
                continue
        elif match := _PORT.fullmatch(line):
            port, net = match.groups()
            (builder.input if port.upper() == "INPUT" else builder.output)(net)
            continue
        if match := _CONSTANT.fullmatch(line):
            net, value = match.groups()
            builder.gate(net, Kind.CONST1 if value.lower() == "vdd" else Kind.CONST0, [])
            continue
        raise InputError(_not_understood(name, number, raw))
    return builder.build()


def _not_understood(name: str, number: int, line: str) -> str:
    return (
        f"circuit {name}: line {number} of the .bench file is not understood: "
        f"{line.strip()[:80]!r}; lines are INPUT(a), OUTPUT(a) or a = GATE(b, c) with a gate of "
        f"{', '.join(_GATE)}, DFF"
    )
