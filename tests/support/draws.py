"""Counter-based draws and samples of rows in plain Python integers, after the documents alone.

Nothing here calls the kernels: SplitMix64's finaliser, Floyd's algorithm, Efraimidis and Spirakis'
keys and inversion are written out again, one edge at a time.
"""

import math
from collections.abc import Sequence

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def word(key: int, node: int, counter: int) -> int:
    """64 random bits."""
    state = mix(key ^ mix((node + GOLDEN) & MASK))
    return mix((state + GOLDEN * (counter + 1)) & MASK)


def unit(bits: int) -> float:
    return (bits >> 11) * 2.0**-53


def row(key: int, node: int, length: int, fanout: int, replace: bool) -> list[int]:
    """Positions drawn of a row of ``length``, ascending."""
    if fanout < 0:
        return list(range(length))
    if length == 0:
        return []
    if replace:
        return sorted(int(unit(word(key, node, i)) * length) for i in range(fanout))
    if fanout >= length:
        return list(range(length))
    drawn: set[int] = set()
    for i in range(fanout):
        top = length - fanout + i
        if length <= 64:
            half = word(key, node, i // 2) >> 32 * (i % 2) & 0xFFFFFFFF
            t = half * (top + 1) >> 32
        else:
            t = int(unit(word(key, node, i)) * (top + 1))
        drawn.add(top if t in drawn else t)
    return sorted(drawn)


def weighted_row(
    key: int, node: int, weights: Sequence[float], fanout: int, replace: bool
) -> list[int]:
    """Positions drawn of a row with these weights, ascending."""
    if fanout < 0:
        return list(range(len(weights)))
    possible = [j for j, w in enumerate(weights) if w > 0]
    if not possible:
        return []
    if not replace:
        keys = {
            j: math.log(((word(key, node, j) >> 11) + 1) * 2.0**-53) / weights[j] for j in possible
        }
        return sorted(sorted(possible, key=keys.__getitem__, reverse=True)[:fanout])
    cumulated, total = [], 0.0
    for w in weights:
        total += w
        cumulated.append(total)
    drawn = []
    for i in range(fanout):
        u = unit(word(key, node, i)) * total
        drawn.append(next((j for j in possible if cumulated[j] > u), possible[-1]))
    return sorted(drawn)


def subset_probability(weights: Sequence[float], subset: Sequence[int]) -> float:
    """That drawing one by one, proportionally to what is left, ends with ``subset``."""

    def rest(chosen: frozenset[int]) -> float:
        if len(chosen) == len(subset):
            return 1.0
        left = sum(w for j, w in enumerate(weights) if j not in chosen)
        return sum(weights[j] / left * rest(chosen | {j}) for j in subset if j not in chosen)

    return rest(frozenset())
