"""Counter-based random numbers: every draw is a pure function of a key and a counter.

A key is folded from integers that say *what* is drawn (``seed, stream, epoch, batch, hop``) and a
draw adds *for whom* (an original node id) and *which one* (a counter). No generator has a state,
so a draw is the same in whichever process, thread or order it is made.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; constants of
Stafford's variant 13), a bijection on 64 bits. ``mix64``, ``node_state``, ``draw``, ``unit`` and
``below`` run inside numba kernels; the functions ending in ``_torch`` compute the same bits on
tensors of any device.
"""

from enum import IntEnum

import numba
import numpy as np
import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
_UNIT = 2.0**-53

GOLDEN_U64 = np.uint64(_GOLDEN)
_MUL1_U64 = np.uint64(_MUL1)
_MUL2_U64 = np.uint64(_MUL2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


class Stream(IntEnum):
    """What a key is for; keeps draws for different purposes apart."""

    NEIGHBOURS = 1
    SHUFFLE = 2
    DROPOUT = 3
    NEGATIVES = 4
    PARTITION = 5
    DATASET = 6
    LAYER = 7  # layer-dependent samplers (LADIES, FastGCN)
    MODEL = 8  # torch's own generator, for models that draw from it


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MUL1) & _MASK
    x = ((x ^ (x >> 27)) * _MUL2) & _MASK
    return x ^ (x >> 31)


def fold(*words: int) -> int:
    """Fold integers (their low 64 bits) into one 64-bit key; order matters."""
    key = 0
    for position, word in enumerate(words, 1):
        key = _mix(key ^ _mix((word + _GOLDEN * position) & _MASK))
    return key


@numba.njit(inline="always")
def mix64(x):
    """uint64 → uint64, the SplitMix64 finaliser."""
    x = (x ^ (x >> _S30)) * _MUL1_U64
    x = (x ^ (x >> _S27)) * _MUL2_U64
    return x ^ (x >> _S31)


@numba.njit(inline="always")
def node_state(key, node):
    """The state for one node: ``key`` uint64, ``node`` its original id."""
    return mix64(key ^ mix64(np.uint64(node) + GOLDEN_U64))


@numba.njit(inline="always")
def draw(state, counter):
    """Draw number ``counter`` (from 0) of a state: 64 random bits."""
    return mix64(state + GOLDEN_U64 * (np.uint64(counter) + np.uint64(1)))


@numba.njit(inline="always")
def unit(bits):
    """64 bits → float64 uniform in [0, 1), a multiple of 2⁻⁵³."""
    return np.float64(np.int64(bits >> _S11)) * _UNIT


@numba.njit(inline="always")
def below(bits, n):
    """64 bits → int64 uniform in [0, n); off uniform by at most n·2⁻⁵³."""
    return np.int64(unit(bits) * np.float64(n))


@numba.njit(cache=True, nogil=True)
def _node_draws(key, nodes, counter):
    out = np.empty(nodes.size, np.uint64)
    for i in range(nodes.size):
        out[i] = draw(node_state(key, nodes[i]), counter)
    return out


def node_draws(key: int, nodes: np.ndarray, counter: int = 0) -> np.ndarray:
    """Draw ``counter`` for each of ``nodes`` (int[n], original ids): uint64[n]."""
    return _node_draws(np.uint64(key), nodes, counter)


def permutation(key: int, ids: np.ndarray) -> np.ndarray:
    """Positions that put ``ids`` (int[n], original ids, distinct) in random order: int64[n].

    The order of the ids depends on the set of ids and the key alone, not on how they are stored.
    """
    draws = node_draws(key, ids)
    return np.lexsort((ids, draws)).astype(np.int64, copy=False)


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # a logical shift on int64


def mix64_torch(x: torch.Tensor) -> torch.Tensor:
    """``mix64`` on int64 tensors read as 64 bits."""
    x = (x ^ _shift(x, 30)) * _signed(_MUL1)
    x = (x ^ _shift(x, 27)) * _signed(_MUL2)
    return x ^ _shift(x, 31)


def node_state_torch(key: int, nodes: torch.Tensor) -> torch.Tensor:
    """``node_state`` for int64[n] original ids: int64[n] read as 64 bits."""
    return mix64_torch(mix64_torch(nodes + _signed(_GOLDEN)) ^ _signed(key))


def draw_torch(state: torch.Tensor, counter: torch.Tensor | int) -> torch.Tensor:
    """``draw`` for states and counters that broadcast: int64 read as 64 bits."""
    if isinstance(counter, int):
        return mix64_torch(state + _signed(_GOLDEN * (counter + 1)))
    return mix64_torch(state + (counter + 1) * _signed(_GOLDEN))


def unit_torch(bits: torch.Tensor) -> torch.Tensor:
    """``unit`` on tensors: float64 in [0, 1)."""
    return _shift(bits, 11).to(torch.float64) * _UNIT
