"""Arithmetic circuits of any width: adders, multipliers, a barrel shifter.

Gates are emitted by compiled loops into plain arrays (a few nanoseconds a gate), in topological
order, so that circuits of millions of gates take a second. Numbers are unsigned, least
significant bit first.
"""

from collections.abc import Callable

import numba
import numpy as np

from gnn_dist.datasets.circuits.netlist import Netlist
from gnn_dist.errors import InputError
from gnn_dist.kernels.simulate import AND, CONST0, INPUT, NOT, OR, XOR

_PINS = 4  # the widest gate of the look-ahead blocks
_LARGEST = 1 << 28  # nodes


@numba.njit(cache=True)
def _emit4(kinds, pins, count, kind, a, b, c, d):
    """Append a gate to ``kinds``, ``pins`` (int32[M, 4], -1 for none); its number."""
    v = count[0]
    count[0] = v + 1
    kinds[v] = kind
    pins[v, 0], pins[v, 1], pins[v, 2], pins[v, 3] = a, b, c, d
    return v


@numba.njit(cache=True)
def _emit(kinds, pins, count, kind, a, b):
    return _emit4(kinds, pins, count, kind, a, b, -1, -1)


@numba.njit(cache=True)
def _inputs(kinds, pins, count, width):
    out = np.empty(width, np.int64)
    for i in range(width):
        out[i] = _emit(kinds, pins, count, INPUT, -1, -1)
    return out


@numba.njit(cache=True)
def _half_adder(kinds, pins, count, a, b):
    return _emit(kinds, pins, count, XOR, a, b), _emit(kinds, pins, count, AND, a, b)


@numba.njit(cache=True)
def _full_adder(kinds, pins, count, a, b, c):
    half = _emit(kinds, pins, count, XOR, a, b)
    total = _emit(kinds, pins, count, XOR, half, c)
    both = _emit(kinds, pins, count, AND, a, b)
    through = _emit(kinds, pins, count, AND, half, c)
    return total, _emit(kinds, pins, count, OR, both, through)


@numba.njit(cache=True)
def _ripple(kinds, pins, count, a, b, carry):
    """a + b + carry (a node, or -1 for none): the bits of the sum, the carry last."""
    width = a.size
    out = np.empty(width + 1, np.int64)
    for i in range(width):
        if carry < 0:
            out[i], carry = _half_adder(kinds, pins, count, a[i], b[i])
        else:
            out[i], carry = _full_adder(kinds, pins, count, a[i], b[i], carry)
    out[width] = carry
    return out


@numba.njit(cache=True)
def _lookahead_carries(kinds, pins, count, g, p, carry):
    """Carries into each place from generate ``g``, propagate ``p`` and a carry-in: int64[n + 1].

    Four places a block, blocks of blocks until one is left (Weinberger and Smith, 1958). The
    levels stand one behind the other in ``gs`` and ``ps``. -1 stands for a signal that is always
    0, among ``g``, for the carry-in and in the result.
    """
    n = g.size
    total = n
    levels = 1
    size = n
    while size > 1:
        size = (size + 3) // 4
        total += size
        levels += 1
    gs, ps, cs = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    start = np.zeros(levels + 1, np.int64)
    for i in range(n):
        gs[i], ps[i] = g[i], p[i]
    start[1] = n
    terms = np.empty(4, np.int64)
    for level in range(1, levels):
        below, here = start[level - 1], start[level]
        blocks = (here - below + 3) // 4
        start[level + 1] = here + blocks
        for block in range(blocks):
            first, last = below + 4 * block, min(below + 4 * block + 4, here)
            gs[here + block] = _carry(kinds, pins, count, gs, ps, first, last, -1, terms)
            ps[here + block] = _product(kinds, pins, count, ps, first + 1, last, ps[first])
    cs[total - 1] = carry
    for level in range(levels - 1, 0, -1):
        below, here = start[level - 1], start[level]
        for block in range(start[level + 1] - here):
            first, last = below + 4 * block, min(below + 4 * block + 4, here)
            into = cs[here + block]
            cs[first] = into
            for i in range(first + 1, last):
                cs[i] = _carry(kinds, pins, count, gs, ps, first, i, into, terms)
    out = np.empty(n + 1, np.int64)
    for i in range(n):
        out[i] = cs[i]
    top = gs[total - 1]
    if carry >= 0:
        passed = _emit(kinds, pins, count, AND, ps[total - 1], carry)
        top = passed if top < 0 else _emit(kinds, pins, count, OR, top, passed)
    out[n] = top
    return out


@numba.njit(cache=True)
def _carry(kinds, pins, count, gs, ps, first, last, into, terms):
    """The carry out of ``first..last - 1``: each generate, and ``into``, passed on by all above.

    At most four terms, in ``terms`` (scratch); -1 where there is none.
    """
    _clear(terms)
    found = 0
    for j in range(last - 1, first - 1, -1):
        if gs[j] >= 0:
            terms[found] = _product(kinds, pins, count, ps, j + 1, last, gs[j])
            found += 1
    if into >= 0:
        terms[found] = _product(kinds, pins, count, ps, first, last, into)
    return _sum(kinds, pins, count, terms)


@numba.njit(cache=True)
def _clear(terms):
    for i in range(4):
        terms[i] = -1


@numba.njit(cache=True)
def _product(kinds, pins, count, ps, first, last, node):
    """``node`` AND ``ps[first:last]`` (at most three)."""
    n = last - first
    if n == 0:
        return node
    second = ps[first + 1] if n > 1 else -1
    third = ps[first + 2] if n > 2 else -1
    return _emit4(kinds, pins, count, AND, node, ps[first], second, third)


@numba.njit(cache=True)
def _sum(kinds, pins, count, terms):
    """OR of the leading ``terms`` that are nodes."""
    if terms[1] < 0:
        return terms[0]
    return _emit4(kinds, pins, count, OR, terms[0], terms[1], terms[2], terms[3])


@numba.njit(cache=True)
def _lookahead(kinds, pins, count, a, b, carry):
    """As ``_ripple``, with the carries looked ahead; ``b`` may hold -1 for bits that are 0."""
    width = a.size
    g, p = np.empty(width, np.int64), np.empty(width, np.int64)
    for i in range(width):
        if b[i] < 0:
            p[i], g[i] = a[i], -1
        else:
            p[i], g[i] = _half_adder(kinds, pins, count, a[i], b[i])
    carries = _lookahead_carries(kinds, pins, count, g, p, carry)
    out = np.empty(width + 1, np.int64)
    for i in range(width):
        if carries[i] < 0:
            out[i] = p[i]
        else:
            out[i] = _emit(kinds, pins, count, XOR, p[i], carries[i])
    out[width] = carries[width]
    return out


@numba.njit(cache=True)
def _ripple_adder(kinds, pins, count, width):
    a, b = _inputs(kinds, pins, count, width), _inputs(kinds, pins, count, width)
    carry = _inputs(kinds, pins, count, 1)[0]
    return _ripple(kinds, pins, count, a, b, carry)


@numba.njit(cache=True)
def _lookahead_adder(kinds, pins, count, width):
    a, b = _inputs(kinds, pins, count, width), _inputs(kinds, pins, count, width)
    carry = _inputs(kinds, pins, count, 1)[0]
    return _lookahead(kinds, pins, count, a, b, carry)


@numba.njit(cache=True)
def _array_multiplier(kinds, pins, count, width):
    """Row by row: each row of partial products is added to the sum with a ripple of carries."""
    a, b = _inputs(kinds, pins, count, width), _inputs(kinds, pins, count, width)
    out = np.empty(2 * width, np.int64)
    row = np.empty(width, np.int64)
    for i in range(width):
        row[i] = _emit(kinds, pins, count, AND, a[i], b[0])
    out[0] = row[0]
    carry = -1  # the top bit of the running sum
    for j in range(1, width):
        out_carry = -1
        for i in range(width):
            product = _emit(kinds, pins, count, AND, a[i], b[j])
            above = row[i + 1] if i + 1 < width else carry
            if above < 0 and out_carry < 0:
                row[i] = product
            elif above < 0:
                row[i], out_carry = _half_adder(kinds, pins, count, product, out_carry)
            elif out_carry < 0:
                row[i], out_carry = _half_adder(kinds, pins, count, product, above)
            else:
                row[i], out_carry = _full_adder(kinds, pins, count, product, above, out_carry)
        carry = out_carry
        out[j] = row[0]
    for i in range(1, width):
        out[width + i - 1] = row[i]
    # One bit times one bit has no carry: its product's upper bit is 0.
    out[2 * width - 1] = carry if carry >= 0 else _emit(kinds, pins, count, CONST0, -1, -1)
    return out


@numba.njit(cache=True)
def _wallace_multiplier(kinds, pins, count, width):
    """Rows of partial products, three to two by carry-save adders until two rows are left.

    Wallace, "A Suggestion for a Fast Multiplier", 1964; the last two are added with look-ahead.
    """
    a, b = _inputs(kinds, pins, count, width), _inputs(kinds, pins, count, width)
    columns = 2 * width
    rows = np.empty((width + 1, columns), np.int64)  # -1 for a place without a bit
    for j in range(width):
        for c in range(columns):
            rows[j, c] = -1
        for i in range(width):
            rows[j, i + j] = _emit(kinds, pins, count, AND, a[i], b[j])
    for c in range(columns):
        rows[width, c] = -1
    left = width
    while left > 2:
        kept = 0
        for r in range(0, left - 2, 3):
            _save_carries(kinds, pins, count, rows, r, kept)
            kept += 2
        for r in range(left - left % 3, left):
            for c in range(columns):
                rows[kept, c] = rows[r, c]
            kept += 1
        left = kept
    second = rows[1] if width > 1 else rows[width]
    return _add_rows(kinds, pins, count, rows[0], second)


@numba.njit(cache=True)
def _save_carries(kinds, pins, count, rows, r, to):
    """Rows ``r``, ``r + 1``, ``r + 2`` become ``to`` (sums) and ``to + 1`` (carries); to <= r."""
    columns = rows.shape[1]
    carry = -1
    for c in range(columns):
        x, y, z = rows[r, c], rows[r + 1, c], rows[r + 2, c]
        if x < 0:  # the bits that are there come first
            x, y, z = y, z, x
        if x < 0:
            x, y = y, x
        if y < 0:
            y, z = z, y
        before = carry
        carry = -1
        if z >= 0:
            x, carry = _full_adder(kinds, pins, count, x, y, z)
        elif y >= 0:
            x, carry = _half_adder(kinds, pins, count, x, y)
        rows[to, c], rows[to + 1, c] = x, before


@numba.njit(cache=True)
def _add_rows(kinds, pins, count, x, y):
    """The sum of two rows (-1 for a place without a bit), without the carry out."""
    columns = x.size
    out = np.empty(columns, np.int64)
    for c in range(columns):
        if x[c] < 0:
            x[c], y[c] = y[c], x[c]
    start = 0  # places of one bit from the lowest on need no adder
    while start < columns and y[start] < 0 and x[start] >= 0:
        out[start] = x[start]
        start += 1
    # The top place may be empty: then its bit is the carry out of the others.
    end = columns if x[columns - 1] >= 0 else columns - 1
    if end > start:
        summed = _lookahead(kinds, pins, count, x[start:end], y[start:end], -1)
        for c in range(start, columns):
            out[c] = summed[c - start]
    elif end < columns:
        out[end] = _emit(kinds, pins, count, CONST0, -1, -1)
    return out


@numba.njit(cache=True)
def _barrel_shifter(kinds, pins, count, width):
    """``x << s`` within ``width`` bits, one stage of multiplexers a bit of ``s``."""
    bits = _inputs(kinds, pins, count, width)
    stages = 0
    while (1 << stages) < width:
        stages += 1
    select = _inputs(kinds, pins, count, stages)
    for stage in range(stages):
        shift = 1 << stage
        keep = _emit(kinds, pins, count, NOT, select[stage], -1)
        moved = np.empty(width, np.int64)
        for i in range(width):
            stay = _emit(kinds, pins, count, AND, bits[i], keep)
            if i < shift:
                moved[i] = stay
            else:
                come = _emit(kinds, pins, count, AND, bits[i - shift], select[stage])
                moved[i] = _emit(kinds, pins, count, OR, stay, come)
        bits = moved
    return bits


def _stages(width: int) -> int:
    return (width - 1).bit_length()


# kind -> (emitter, bound on the number of nodes, description)
KINDS: dict[str, tuple[Callable[..., np.ndarray], Callable[[int], int], str]] = {
    "ripple_adder": (_ripple_adder, lambda n: 7 * n + 1, "a + b + carry, rippling"),
    "lookahead_adder": (_lookahead_adder, lambda n: 20 * n + 32, "a + b + carry, looked ahead"),
    "array_multiplier": (_array_multiplier, lambda n: 6 * n * n + 2 * n + 1, "a · b, row by row"),
    "wallace_multiplier": (
        _wallace_multiplier,
        lambda n: 6 * n * n + 96 * n + 64,
        "a · b, by a tree of carry-save adders",
    ),
    "barrel_shifter": (
        _barrel_shifter,
        lambda n: (3 * n + 2) * _stages(n) + n,
        "x << s, in stages of multiplexers",
    ),
}


def generate(kind: str, width: int) -> Netlist:
    """The circuit ``kind`` for operands of ``width`` bits, named ``kind:width``.

    Inputs and outputs, bit 0 first: adders take a, b and a carry and give width + 1 bits;
    multipliers take a and b and give 2 · width bits; the shifter takes x and as many bits of s as
    can shift within the width, and gives width bits. Raises ``InputError`` for an unknown kind and
    for a width below 1 or too large.
    """
    if kind not in KINDS:
        raise InputError(f"circuits: cannot generate {kind!r}; use one of {', '.join(KINDS)}")
    emitter, bound, _ = KINDS[kind]
    if width < 1 or bound(width) > _LARGEST:
        raise InputError(
            f"circuits: the width of {kind} must be at least 1 and give at most {_LARGEST} nodes, "
            f"not {width}"
        )
    room = bound(width)
    kinds, pins = np.empty(room, np.uint8), np.empty((room, _PINS), np.int32)
    count = np.zeros(1, np.int64)
    outputs = emitter(kinds, pins, count, width)
    n = int(count[0])
    assert n <= room, "the bound of a generator must hold"
    used = pins[:n] >= 0
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=indptr[1:])
    return Netlist(f"{kind}:{width}", kinds[:n].copy(), indptr, pins[:n][used], outputs)
