"""Reader of gate-level Verilog: primitive gates, ``assign`` expressions, flip-flop instances.

A reader of our own because circuitgraph's takes twenty times as long (and its fast one refuses
escaped identifiers and expressions); the tests compare the two.
"""

import re

from gnn_dist.datasets.circuits.netlist import Kind, Netlist, NetlistBuilder
from gnn_dist.errors import InputError

_PRIMITIVE = {
    "and": Kind.AND,
    "nand": Kind.NAND,
    "or": Kind.OR,
    "nor": Kind.NOR,
    "xor": Kind.XOR,
    "xnor": Kind.XNOR,
    "not": Kind.NOT,
    "buf": Kind.BUF,
}
_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\(\*.*?(?:\*\)|\Z)|`[^\n]*", re.DOTALL)
# An escaped identifier runs to the next blank; a bit select belongs to its identifier.
_TOKEN = re.compile(
    r"\\\S+|[A-Za-z_][\w$]*(?:\s*\[\s*\d+\s*\])?|\d*'[bBhHdDoO]\w+|\d+|~\^|\^~|[^\s]"
)
_MODULE = re.compile(r"\bmodule\s+(\\\S+|[A-Za-z_][\w$]*)")
_NAME = re.compile(r"\\\S+|[A-Za-z_][\w$]*(?:\s*\[\s*\d+\s*\])?")
_ID = r"(?:[A-Za-z_][\w$]*(?:\[\d+\])?|\\[\w.\[\]]+\s)"
# A gate over plain nets, as nearly all statements are: read without being cut into tokens.
_PLAIN = re.compile(
    rf"\s*({'|'.join(_PRIMITIVE)})\s+{_ID}?\s*\(((?:\s*{_ID}\s*,)+\s*{_ID})\s*\)\s*;"
)
_CLOCKS = {"ck", "clk", "clock", "cp", "c"}
_DEEPEST = 64  # nested brackets; keeps the recursion far from Python's limit
_WIDEST = 1 << 16  # bits of one bus


def parse_verilog(text: str, name: str) -> Netlist:
    """The netlist of the module ``name``, or of the first module where none has that name.

    An instance of another cell with pins ``D`` and ``Q`` (or ``QN``) is a flip-flop and is cut;
    the modules that define such cells are not read. Raises ``InputError`` for anything else than
    a gate-level description, an undefined net and a loop.
    """
    modules: dict[str, str] = {}
    for piece in re.split(r"endmodule\b", _NOISE.sub(" ", text))[:-1]:
        if match := _MODULE.search(piece):
            modules.setdefault(match[1].removeprefix("\\"), piece[match.end() :])
    if not modules:
        raise InputError(
            f"circuit {name}: the Verilog file has no 'module ... endmodule'; "
            "give a netlist of gates"
        )
    body = modules[name] if name in modules else next(iter(modules.values()))
    return _Module(body, name).netlist()


class _Module:
    def __init__(self, body: str, name: str) -> None:
        self._name = name
        self._body = body
        self._builder = NetlistBuilder(name)
        self._fresh = 0

    def netlist(self) -> Netlist:
        header, at = self._next_statement(0)
        if any(token in ("input", "output", "#") for token in header):
            raise self._error("declares its ports in the module's header", header)
        gate = self._builder.gate
        while at < len(self._body):
            if match := _PLAIN.match(self._body, at):
                kind = _PRIMITIVE[match[1]]
                nets = [net.strip().removeprefix("\\") for net in match[2].split(",")]
                last = len(nets) - 1 if kind in (Kind.BUF, Kind.NOT) else 1
                for net in nets[:last]:
                    gate(net, kind, nets[last:])
                at = match.end()
                continue
            tokens, at = self._next_statement(at)
            if tokens:
                self._statement(tokens)
        return self._builder.build()

    def _next_statement(self, at: int) -> tuple[list[str], int]:
        """The tokens up to the next semicolon, and the place behind it."""
        tokens: list[str] = []
        for match in _TOKEN.finditer(self._body, at):
            if match[0] == ";":
                return tokens, match.end()
            tokens.append(match[0])
        return tokens, len(self._body)

    def _statement(self, tokens: list[str]) -> None:
        head = tokens[0]
        kind = _PRIMITIVE.get(head)
        if kind is not None:
            self._gates(kind, tokens)
        elif head == "assign":
            for start, end in _split(tokens, 1, len(tokens)):
                if end - start < 3 or tokens[start + 1] != "=":
                    raise self._error("has an assignment that is not understood", tokens)
                net = self._net(tokens[start], tokens)
                self._define(net, _Expression(self, tokens, start + 2, end))
        elif head in ("input", "output", "wire"):
            self._declaration(head, tokens)
        elif _NAME.fullmatch(head) and "." in tokens:
            self._instance(tokens)
        else:
            raise self._error("has a statement that is not gate-level Verilog", tokens)

    def _declaration(self, head: str, tokens: list[str]) -> None:
        start, bits = 1, None
        if len(tokens) > 5 and tokens[1] == "[":
            if tokens[3] != ":" or tokens[5] != "]" or not (tokens[2] + tokens[4]).isdigit():
                raise self._error("has a range that is not understood", tokens)
            left, right = int(tokens[2]), int(tokens[4])
            if abs(left - right) >= _WIDEST:
                raise self._error(f"has a bus wider than {_WIDEST} bits", tokens)
            bits = range(left, right - 1, -1) if left >= right else range(left, right + 1)
            start = 6
        if head == "wire":
            return
        declare = self._builder.input if head == "input" else self._builder.output
        for first, end in _split(tokens, start, len(tokens)):
            if end - first != 1:
                raise self._error("has a declaration that is not understood", tokens)
            net = self._net(tokens[first], tokens)
            for each in [net] if bits is None else [f"{net}[{bit}]" for bit in bits]:
                declare(each)

    def _gates(self, kind: Kind, tokens: list[str]) -> None:
        at = 1
        while at < len(tokens):  # instances of one statement
            if tokens[at] != "(":
                at += 1  # its name
            if at >= len(tokens) or tokens[at] != "(":
                raise self._error("has a gate that is not understood", tokens)
            end = _closing(tokens, at)
            if end < 0 or (end + 1 < len(tokens) and tokens[end + 1] != ","):
                raise self._error("has a gate that is not understood", tokens)
            pins = _split(tokens, at + 1, end)
            at = end + 2
            if len(pins) < 2 or any(last <= first for first, last in pins):
                raise self._error("has a gate with too few pins", tokens)
            outputs = pins[:-1] if kind in (Kind.BUF, Kind.NOT) else pins[:1]
            fanin = [self._value(tokens, *pin) for pin in pins[len(outputs) :]]
            for first, last in outputs:
                if last - first != 1:
                    raise self._error("has a gate whose output is not a net", tokens)
                self._builder.gate(self._net(tokens[first], tokens), kind, fanin)

    def _instance(self, tokens: list[str]) -> None:
        pins: dict[str, tuple[int, int]] = {}
        at = tokens.index("(") if "(" in tokens else len(tokens)
        end = _closing(tokens, at) if at < len(tokens) else -1
        if end != len(tokens) - 1 or at > 2:
            raise self._error("has an instance that is not understood", tokens)
        for first, last in _split(tokens, at + 1, end):
            if last - first < 4 or tokens[first] != "." or tokens[first + 2] != "(":
                raise self._error("has an instance whose pins are not named", tokens)
            pins[tokens[first + 1].upper()] = (first + 3, last - 1)
        if (
            "D" not in pins
            or not pins.keys() & {"Q", "QN"}
            or any(pin.lower() not in _CLOCKS for pin in pins.keys() - {"D", "Q", "QN"})
        ):
            raise self._error(
                "has an instance that is neither a primitive gate nor a flip-flop with the pins "
                "D, Q, QN and a clock; flatten it to gates",
                tokens,
            )
        d = self._value(tokens, *pins["D"])
        nets = {}
        for pin in ("Q", "QN"):
            if pin in pins and pins[pin][0] < pins[pin][1]:
                first, last = pins[pin]
                if last - first != 1:
                    raise self._error(f"has a flip-flop whose {pin} is not a net", tokens)
                nets[pin] = self._net(tokens[first], tokens)
        if not nets:
            return
        q = nets.get("Q") or self._new_net(nets["QN"])
        self._builder.flip_flop(q, d)
        if "QN" in nets:
            self._builder.gate(nets["QN"], Kind.NOT, [q])

    def _value(self, tokens: list[str], first: int, last: int) -> str:
        """The net that carries the expression ``tokens[first:last]``."""
        if last - first == 1 and _NAME.fullmatch(tokens[first]):
            return self._net(tokens[first], tokens)
        expression = _Expression(self, tokens, first, last)
        if expression.kind is None:
            return expression.fanin[0]
        net = self._new_net("")
        self._builder.gate(net, expression.kind, expression.fanin)
        return net

    def _define(self, net: str, expression: "_Expression") -> None:
        kind = expression.kind
        self._builder.gate(net, Kind.BUF if kind is None else kind, expression.fanin)

    def _new_net(self, hint: str) -> str:
        self._fresh += 1
        return f"{hint}~{self._fresh}"  # '~' cannot be in a Verilog name

    def _net(self, token: str, tokens: list[str]) -> str:
        if not _NAME.fullmatch(token):
            raise self._error(f"uses {token[:60]!r} where a net is expected", tokens)
        return token[1:] if token[0] == "\\" else re.sub(r"\s+", "", token)

    def _error(self, what: str, tokens: list[str]) -> InputError:
        place = f", near {' '.join(tokens[:12])[:100]!r}" if tokens else ""
        return InputError(
            f"circuit {self._name}: the Verilog module {what}{place}; give a netlist of gates, "
            "assignments of single nets and flip-flops"
        )


class _Expression:
    """A parsed expression: the gate ``kind`` over the nets ``fanin``, or one net and None.

    Gates below the topmost are added to the module as nets without a name.
    """

    _BINARY = (  # from the loosest to the tightest
        {"|": Kind.OR},
        {"^": Kind.XOR, "~^": Kind.XNOR, "^~": Kind.XNOR},
        {"&": Kind.AND},
    )

    def __init__(self, module: _Module, tokens: list[str], first: int, last: int) -> None:
        self._module, self._tokens, self._at, self._last = module, tokens, first, last
        self._depth = 0
        self.kind, self.fanin = self._ternary()
        if self._at != last:
            raise self._unexpected()

    def _unexpected(self) -> InputError:
        token = self._peek() or "the end"
        return self._module._error(
            f"has an expression that is not understood at {token[:60]!r}", self._tokens
        )

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < self._last else ""

    def _net_of(self, value: tuple[Kind | None, list[str]]) -> str:
        kind, fanin = value
        if kind is None:
            return fanin[0]
        net = self._module._new_net("")
        self._module._builder.gate(net, kind, fanin)
        return net

    def _ternary(self) -> tuple[Kind | None, list[str]]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._module._error(
                f"has an expression nested deeper than {_DEEPEST}", self._tokens
            )
        value = self._binary(0)
        if self._peek() == "?":
            self._at += 1
            condition = self._net_of(value)
            yes = self._net_of(self._ternary())
            if self._peek() != ":":
                raise self._unexpected()
            self._at += 1
            no = self._net_of(self._ternary())
            inverted = self._net_of((Kind.NOT, [condition]))
            taken = self._net_of((Kind.AND, [condition, yes]))
            other = self._net_of((Kind.AND, [inverted, no]))
            value = (Kind.OR, [taken, other])
        self._depth -= 1
        return value

    def _binary(self, tier: int) -> tuple[Kind | None, list[str]]:
        if tier == len(self._BINARY):
            return self._unary()
        value = self._binary(tier + 1)
        joined = False  # `a & b & c` is one gate
        while (kind := self._BINARY[tier].get(self._peek())) is not None:
            self._at += 1
            right = self._net_of(self._binary(tier + 1))
            if joined and value[0] == kind != Kind.XNOR:
                value[1].append(right)
            else:
                value = (kind, [self._net_of(value), right])
            joined = True
        return value

    def _unary(self) -> tuple[Kind | None, list[str]]:
        invert = False
        while self._peek() in ("~", "!"):
            invert = not invert
            self._at += 1
        token = self._peek()
        if token == "(":
            self._at += 1
            value = self._ternary()
            if self._peek() != ")":
                raise self._unexpected()
        elif constant := re.fullmatch(r"1?'[bBhHdDoO]([01])|([01])", token):
            bit = int(constant.group(1) or constant.group(2))
            value = (None, [self._module._builder.constant(bit)])
        elif _NAME.fullmatch(token):
            value = (None, [self._module._net(token, self._tokens)])
        else:
            raise self._unexpected()
        self._at += 1
        return (Kind.NOT, [self._net_of(value)]) if invert else value


def _closing(tokens: list[str], opening: int) -> int:
    """The place of the bracket that closes the one at ``opening``, or -1."""
    depth = 0
    for at in range(opening, len(tokens)):
        if tokens[at] == "(":
            depth += 1
        elif tokens[at] == ")":
            depth -= 1
            if depth == 0:
                return at
    return -1


def _split(tokens: list[str], start: int, end: int) -> list[tuple[int, int]]:
    """The ranges between the commas of ``tokens[start:end]`` that stand outside brackets."""
    parts = []
    depth = 0
    first = start
    for at in range(start, end):
        token = tokens[at]
        if token == "," and depth == 0:
            parts.append((first, at))
            first = at + 1
        elif token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
    parts.append((first, end))
    return parts
