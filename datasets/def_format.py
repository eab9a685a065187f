"""DEF 5.8 of a routed design: cells, nets, and what the router made of each net.

Format: LEF/DEF 5.8 Language Reference. Read are UNITS, COMPONENTS, PINS and NETS; special nets
(power, ground) are no signals and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.errors import InputError

ORIENTATIONS = {"N", "S", "E", "W", "FN", "FS", "FE", "FW"}
_ROUTES = {"ROUTED", "FIXED", "COVER", "NOSHIELD"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A placed instance: ``macro`` of the library, lower left corner in database units (NaN where
    it is not placed)."""

    name: str
    macro: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Port:
    """A pin of the design itself. ``direction``: INPUT, OUTPUT, INOUT or FEEDTHRU."""

    name: str
    direction: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Net:
    """A signal net.

    Attributes:
        pins: (cell, pin) pairs; the cell is ``PIN`` for a port of the design.
        length: routed wire in database units, centre lines, all layers.
        vias: number of vias.
    """

    name: str
    pins: tuple[tuple[str, str], ...]
    length: int
    vias: int


@dataclass(frozen=True, slots=True)
class Design:
    """A routed design. ``units``: database units a micrometre."""

    name: str
    units: int
    cells: tuple[Cell, ...]
    ports: tuple[Port, ...]
    nets: tuple[Net, ...]

    @property
    def wire_length(self) -> float:
        """Total routed length of signal nets, in micrometres."""
        return sum(net.length for net in self.nets) / self.units

    @property
    def vias(self) -> int:
        """Total vias of signal nets."""
        return sum(net.vias for net in self.nets)

    def half_perimeters(self) -> np.ndarray:
        """float64[nets]: half perimeter of each net's cells and ports, in micrometres.

        Cells stand at their corner, pin offsets being in the library and not here.
        """
        where = {cell.name: (cell.x, cell.y) for cell in self.cells}
        ports = {port.name: (port.x, port.y) for port in self.ports}
        out = np.zeros(len(self.nets))
        for k, net in enumerate(self.nets):
            points = [
                ports.get(pin) if cell == "PIN" else where.get(cell) for cell, pin in net.pins
            ]
            placed = np.array([p for p in points if p is not None and p[0] == p[0]])
            if len(placed):
                out[k] = np.ptp(placed, axis=0).sum() / self.units
        return out


def read_def(path: Path) -> Design:
    """Read a DEF file. Raises ``InputError`` for one that is cut short or malformed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"def: cannot read {str(path)!r} ({error}); give a DEF text file"
        ) from error
    return parse_def(text, path.name)


def parse_def(text: str, name: str = "def") -> Design:
    """As ``read_def``, from text."""
    reader = _Reader(text, name)
    design, units = name, 0
    cells: list[Cell] = []
    ports: list[Port] = []
    nets: list[Net] = []
    for statement in reader.statements():
        head = statement[0]
        if head == "DESIGN" and len(statement) > 1:
            design = statement[1]
        elif head == "UNITS":
            units = reader.number(statement[-1], "UNITS")
        elif head == "COMPONENTS":
            cells = [_cell(reader, s) for s in reader.section(head, statement)]
        elif head == "PINS":
            ports = [_port(reader, s) for s in reader.section(head, statement)]
        elif head == "NETS":
            nets = [_net(reader, s) for s in reader.section(head, statement)]
        elif head == "SPECIALNETS":
            for _ in reader.section(head, statement):
                pass
    if not reader.ended:
        raise InputError(f"def {name}: ends without END DESIGN; the file is cut short")
    if units <= 0:
        raise InputError(f"def {name}: has no UNITS DISTANCE MICRONS; lengths have no scale")
    return Design(design, units, tuple(cells), tuple(ports), tuple(nets))


class _Reader:
    """Statements of a DEF file: tokens up to a semicolon."""

    def __init__(self, text: str, name: str) -> None:
        lines = (line.split("#", 1)[0] if "#" in line else line for line in text.splitlines())
        self._tokens = iter(" ".join(lines).split())
        self.name = name
        self.ended = False

    def statements(self) -> Iterator[list[str]]:
        """Statements outside of sections; ``END x`` and the like have no semicolon."""
        statement: list[str] = []
        for token in self._tokens:
            if not statement and token == "END":
                what = next(self._tokens, "")
                if what == "DESIGN":
                    self.ended = True
                    return
                continue
            if token == ";":
                if statement:
                    yield statement
                statement = []
            else:
                statement.append(token)

    def section(self, head: str, statement: list[str]) -> Iterator[list[str]]:
        """The entries (``- ... ;``) of a section up to its END."""
        expected = self.number(statement[1] if len(statement) > 1 else "", head)
        count = 0
        entry: list[str] = []
        for token in self._tokens:
            if not entry and token == "END":
                what = next(self._tokens, "")
                if what != head:
                    raise InputError(
                        f"def {self.name}: END {what} inside of {head}; correct the file"
                    )
                if count != expected:
                    raise InputError(
                        f"def {self.name}: {head} announces {expected} entries and has {count}; "
                        "correct the file"
                    )
                return
            if token == ";":
                if entry[:1] != ["-"]:
                    raise InputError(
                        f"def {self.name}: an entry of {head} begins with "
                        f"{' '.join(entry[:3])!r}, not with '-'; correct the file"
                    )
                count += 1
                yield entry[1:]
                entry = []
            else:
                entry.append(token)
        raise InputError(f"def {self.name}: {head} has no END; the file is cut short")

    def number(self, token: str, what: str) -> int:
        try:
            return int(float(token))
        except ValueError:
            raise InputError(
                f"def {self.name}: {what}: {token!r} is not a number; correct the file"
            ) from None


def _place(reader: _Reader, entry: list[str]) -> tuple[float, float]:
    for at, token in enumerate(entry):
        if token in ("PLACED", "FIXED", "COVER") and entry[at + 1 : at + 2] == ["("]:
            x, y = (reader.number(t, token) for t in entry[at + 2 : at + 4])
            return float(x), float(y)
    return float("nan"), float("nan")


def _cell(reader: _Reader, entry: list[str]) -> Cell:
    if len(entry) < 2:
        raise InputError(
            f"def {reader.name}: component {' '.join(entry)!r} names no macro; give - NAME MACRO"
        )
    return Cell(entry[0], entry[1], *_place(reader, entry))


def _port(reader: _Reader, entry: list[str]) -> Port:
    direction = "INOUT"
    if "DIRECTION" in entry[:-1]:
        direction = entry[entry.index("DIRECTION") + 1]
    return Port(entry[0], direction, *_place(reader, entry))


def _net(reader: _Reader, entry: list[str]) -> Net:
    name, at = entry[0], 1
    pins = []
    while at < len(entry) and entry[at] == "(":
        close = entry.index(")", at)
        pins.append((entry[at + 1], entry[at + 2]))
        at = close + 1
    length = vias = 0
    while at < len(entry):
        if entry[at] == "+" and entry[at + 1 : at + 2] and entry[at + 1] in _ROUTES:
            at, more, found = _wiring(reader, name, entry, at + 2)
            length += more
            vias += found
        else:
            at += 1
    return Net(name, tuple(pins), length, vias)


def _wiring(reader: _Reader, net: str, entry: list[str], at: int) -> tuple[int, int, int]:
    """Regular wiring from ``at`` (its first layer) on: (where it ends, length, vias)."""
    length = vias = 0
    here: tuple[int, int] | None = None
    skip = False  # a virtual connection has no wire
    at += 1  # the layer
    while at < len(entry) and entry[at] != "+":
        token = entry[at]
        if token == "NEW":
            here, at = None, at + 2
        elif token == "(":
            close = entry.index(")", at)
            point = entry[at + 1 : close]
            if len(point) < 2 or (here is None and "*" in point[:2]):
                raise InputError(
                    f"def {reader.name}: net {net!r}: the point ( {' '.join(point)} ) has no "
                    "coordinates to stand on; begin a path with two numbers"
                )
            old = here or (0, 0)
            x = old[0] if point[0] == "*" else reader.number(point[0], net)
            y = old[1] if point[1] == "*" else reader.number(point[1], net)
            if here is not None and not skip:
                length += abs(x - here[0]) + abs(y - here[1])
            here, skip, at = (x, y), False, close + 1
        elif token == "RECT":  # a patch of metal
            at = entry.index(")", at) + 1
        elif token in ("TAPERRULE", "STYLE", "MASK"):
            at += 2
        elif token == "VIRTUAL":
            skip, at = True, at + 1
        elif token == "TAPER" or token in ORIENTATIONS:
            at += 1
        else:
            vias += 1
            at += 1
    return at, length, vias
