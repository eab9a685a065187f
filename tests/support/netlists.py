"""An evaluator of netlists that shares nothing with the kernels: Python's integers as bit sets."""

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_, xor

import numpy as np

from gnn_dist.datasets.circuits.netlist import Kind, Netlist


def all_patterns(num_inputs: int) -> list[int]:
    """For each input, its values under all 2^n patterns, pattern k in bit k."""
    size = 1 << num_inputs
    columns = []
    for i in range(num_inputs):
        block = ((1 << (1 << i)) - 1) << (1 << i)
        columns.append(sum(block << at for at in range(0, size, 2 << i)))
    return columns


def evaluate(netlist: Netlist, inputs: Sequence[int], num_patterns: int) -> list[int]:
    """The values of every node, pattern k in bit k."""
    everything = (1 << num_patterns) - 1
    given = dict(zip(netlist.inputs.tolist(), inputs, strict=True))
    values: list[int] = []
    for v, kind in enumerate(netlist.kinds.tolist()):
        fanin = [values[u] for u in netlist.fanin[netlist.indptr[v] : netlist.indptr[v + 1]]]
        match Kind(kind):
            case Kind.INPUT:
                value = given[v]
            case Kind.CONST0:
                value = 0
            case Kind.CONST1:
                value = everything
            case Kind.BUF:
                value = fanin[0]
            case Kind.NOT:
                value = ~fanin[0]
            case Kind.AND:
                value = reduce(and_, fanin)
            case Kind.NAND:
                value = ~reduce(and_, fanin)
            case Kind.OR:
                value = reduce(or_, fanin)
            case Kind.NOR:
                value = ~reduce(or_, fanin)
            case Kind.XOR:
                value = reduce(xor, fanin)
            case Kind.XNOR:
                value = ~reduce(xor, fanin)
        values.append(value & everything)
    return values


def to_words(values: Sequence[int], num_patterns: int) -> np.ndarray:
    """uint64[len(values), ceil(num_patterns / 64)], pattern k in bit k % 64 of word k // 64."""
    words = -(-num_patterns // 64)
    rows = [np.frombuffer(v.to_bytes(8 * words, "little"), "<u8") for v in values]
    return np.array(rows, np.uint64).reshape(len(values), words)


def from_words(words: np.ndarray) -> list[int]:
    """The inverse of ``to_words``."""
    return [int.from_bytes(np.ascontiguousarray(row).tobytes(), "little") for row in words]


def random_netlist(
    num_inputs: int, num_gates: int, seed: int, *, widest: int = 4, constants: bool = True
) -> Netlist:
    """Gates of every kind over random earlier nodes; the last ones are outputs."""
    rng = np.random.default_rng(seed)
    kinds = [int(Kind.INPUT)] * num_inputs
    kinds += [int(Kind.CONST0), int(Kind.CONST1)] if constants else []
    fanins: list[list[int]] = [[] for _ in kinds]
    for _ in range(num_gates):
        kind = Kind(int(rng.integers(Kind.BUF, Kind.XNOR + 1)))
        pins = 1 if kind <= Kind.NOT else int(rng.integers(1, widest + 1))
        fanins.append(rng.integers(0, len(kinds), pins).tolist())
        kinds.append(int(kind))
    indptr = np.concatenate([[0], np.cumsum([len(f) for f in fanins])])
    return Netlist.from_gates(
        f"random{seed}",
        np.array(kinds, np.uint8),
        indptr,
        np.array([u for f in fanins for u in f], np.int32),
        np.arange(max(len(kinds) - 3, 0), len(kinds)),
    )
