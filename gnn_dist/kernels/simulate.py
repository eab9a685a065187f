"""Kernels over netlists in topological order: logic simulation and longest paths.

A netlist is three arrays: ``kinds`` uint8[N], one of the codes below; ``indptr`` int64[N + 1] and
``fanin`` int32[E], the fan-ins of node ``v`` being ``fanin[indptr[v]:indptr[v + 1]]``, in order and
each smaller than ``v``. Simulation is bit-parallel: a machine word holds the values of a node under
64 input patterns, so that one machine instruction evaluates a gate 64 times.
"""

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from gnn_dist.rng import draw, node_state

INPUT, CONST0, CONST1, BUF, NOT, AND, NAND, OR, NOR, XOR, XNOR = range(11)
"""Kinds of node. An ``INPUT`` is a primary input or the output of a flip-flop."""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO, _ONE, _LAST = np.uint64(0), np.uint64(1), np.uint64(63)


@intrinsic
def _popcount(typing_context, word):
    """The number of bits set in a uint64, as one machine instruction."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@numba.njit(cache=True, nogil=True)
def evaluate(kinds, indptr, fanin, values):
    """Fill ``values`` (uint64[N, W]) for every node but the inputs, whose rows are given."""
    words = values.shape[1]
    for v in range(kinds.size):
        kind = kinds[v]
        if kind == INPUT:
            continue
        out = values[v]
        if kind in (CONST0, CONST1):
            out[:] = _ALL if kind == CONST1 else _ZERO
            continue
        lo, hi = indptr[v], indptr[v + 1]
        flip = _ZERO
        if kind in (NOT, NAND, NOR, XNOR):
            flip = _ALL
        a = values[fanin[lo]]
        if hi - lo == 1:
            for w in range(words):
                out[w] = a[w] ^ flip
            continue
        b = values[fanin[lo + 1]]
        early = flip if hi - lo == 2 else _ZERO
        if kind in (AND, NAND):
            for w in range(words):
                out[w] = (a[w] & b[w]) ^ early
        elif kind in (OR, NOR):
            for w in range(words):
                out[w] = (a[w] | b[w]) ^ early
        else:
            for w in range(words):
                out[w] = a[w] ^ b[w] ^ early
        for k in range(lo + 2, hi):
            c = values[fanin[k]]
            late = flip if k == hi - 1 else _ZERO
            if kind in (AND, NAND):
                for w in range(words):
                    out[w] = (out[w] & c[w]) ^ late
            elif kind in (OR, NOR):
                for w in range(words):
                    out[w] = (out[w] | c[w]) ^ late
            else:
                for w in range(words):
                    out[w] = out[w] ^ c[w] ^ late


@numba.njit(cache=True, nogil=True)
def fill_random(values, inputs, key, first_word):
    """Random patterns into the rows ``inputs`` (int64[I]) of ``values`` (uint64[N, W]).

    Word ``first_word + w`` of input number ``i`` (its place in ``inputs``) is one draw of the
    counter generator, so a pattern does not depend on how the words are cut into calls.
    """
    for i in range(inputs.size):
        state = node_state(key, i)
        row = values[inputs[i]]
        for w in range(row.size):
            row[w] = draw(state, first_word + w)


@numba.njit(cache=True, nogil=True)
def count(values, first_word, patterns, last_bit, ones, toggles):
    """Add up, for each node, patterns with value 1 and changes from one pattern to the next.

    ``values`` (uint64[N, W]) hold the patterns from ``64 * first_word`` on, of ``patterns`` in
    all; ``last_bit`` (uint64[N]) carries a node's last value from call to call; ``ones`` and
    ``toggles`` are int64[N].
    """
    words = values.shape[1]
    for v in range(values.shape[0]):
        row = values[v]
        before = last_bit[v]
        high = 0
        changes = 0
        for w in range(words):
            left = patterns - 64 * (first_word + w)
            if left <= 0:
                break
            valid = _ALL if left >= 64 else (_ONE << np.uint64(left)) - _ONE
            x = row[w]
            changed = (x ^ ((x << _ONE) | before)) & valid
            if first_word + w == 0:
                changed &= ~_ONE  # the first pattern has none before it
            before = x >> _LAST
            high += np.int64(_popcount(x & valid))
            changes += np.int64(_popcount(changed))
        last_bit[v] = before
        ones[v] += high
        toggles[v] += changes


def simulate_random(
    kinds: np.ndarray,
    indptr: np.ndarray,
    fanin: np.ndarray,
    *,
    patterns: int,
    key: int,
    budget: int = 1 << 24,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate ``patterns`` uniform random input patterns, a pure function of ``key``.

    Returns ``ones`` and ``toggles``, int64[N]: in how many patterns a node is 1, and between how
    many of the ``patterns - 1`` consecutive pairs it changes. ``budget`` bounds the bytes of node
    values held at a time; it does not change the result.
    """
    inputs = np.flatnonzero(kinds == INPUT)
    ones, toggles = np.zeros(kinds.size, np.int64), np.zeros(kinds.size, np.int64)
    last_bit = np.zeros(kinds.size, np.uint64)
    total = -(-patterns // 64)
    width = min(total, max(4, budget // (8 * kinds.size)))
    values = np.empty((kinds.size, width), np.uint64)
    for first in range(0, total, width):
        chunk = values if total - first >= width else values[:, : total - first].copy()
        fill_random(chunk, inputs, np.uint64(key), first)
        evaluate(kinds, indptr, fanin, chunk)
        count(chunk, first, patterns, last_bit, ones, toggles)
    return ones, toggles


@numba.njit(cache=True, nogil=True)
def longest_from_inputs(indptr, fanin, delay):
    """The longest path that ends in each node, its own delay included.

    ``delay`` int64[N]; returns int64[N].
    """
    out = np.zeros(delay.size, np.int64)
    for v in range(delay.size):
        best = 0
        for k in range(indptr[v], indptr[v + 1]):
            best = max(best, out[fanin[k]])
        out[v] = best + delay[v]
    return out


@numba.njit(cache=True, nogil=True)
def longest_to_ends(indptr, fanin, delay):
    """The longest path that begins behind each node, its own delay left out: int64[N]."""
    out = np.zeros(delay.size, np.int64)
    for v in range(delay.size - 1, -1, -1):
        through = out[v] + delay[v]
        for k in range(indptr[v], indptr[v + 1]):
            u = fanin[k]
            out[u] = max(out[u], through)
    return out


@numba.njit(cache=True, nogil=True)
def hop_levels(indptr, fanin):
    """The longest path, in edges, that ends in each node: int64[N]; fan-ins in any order.

    -1 for the nodes on or behind a combinational loop.
    """
    n = indptr.size - 1
    first = np.zeros(n + 1, np.int64)
    for k in range(fanin.size):
        first[fanin[k] + 1] += 1
    for v in range(n):
        first[v + 1] += first[v]
    fanout = np.empty(fanin.size, np.int64)
    place = first[:-1].copy()
    for v in range(n):
        for k in range(indptr[v], indptr[v + 1]):
            u = fanin[k]
            fanout[place[u]] = v
            place[u] += 1
    waiting = np.empty(n, np.int64)
    level = np.full(n, -1, np.int64)
    queue = np.empty(n, np.int64)
    head = tail = 0
    for v in range(n):
        waiting[v] = indptr[v + 1] - indptr[v]
        if waiting[v] == 0:
            level[v] = 0
            queue[tail] = v
            tail += 1
    while head < tail:
        u = queue[head]
        head += 1
        for k in range(first[u], first[u + 1]):
            v = fanout[k]
            waiting[v] -= 1
            if waiting[v] == 0:
                best = 0
                for j in range(indptr[v], indptr[v + 1]):
                    best = max(best, level[fanin[j]])
                level[v] = best + 1
                queue[tail] = v
                tail += 1
    return level


def warmup() -> None:
    """Compile and cache the kernels."""
    kinds = np.array([INPUT, NOT, AND], np.uint8)
    indptr = np.array([0, 0, 1, 3], np.int64)
    fanin = np.array([0, 0, 1], np.int32)
    simulate_random(kinds, indptr, fanin, patterns=64, key=0)
    delay = np.ones(3, np.int64)
    longest_from_inputs(indptr, fanin, delay)
    longest_to_ends(indptr, fanin, delay)
    hop_levels(indptr, fanin)
