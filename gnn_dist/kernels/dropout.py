"""Dropout whose mask is a function of a key and of what is dropped, not of where it is computed.

The mask of entry (row, column) is bits ``16 * (column % 4) .. + 15`` of draw ``column // 4`` of
the row's state (``rng.node_state(key, id of the row)``). An entry is kept where these 16 bits are
at least ``threshold``; so a probability is realised in steps of 2⁻¹⁶, and kept entries are scaled
by the inverse of the realised one.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from gnn_dist import rng
from gnn_dist.kernels import parallel
from gnn_dist.kernels.vector import (
    flat,
    load,
    multiply,
    over_columns_once,
    pointer,
    splat,
    store,
)
from gnn_dist.rng import node_state

_MASK = (1 << 64) - 1


def threshold(p: float) -> int:
    """``p`` in steps of 2⁻¹⁶, in [0, 65535]."""
    return min(round(p * 65536), 65535)


def keyed_dropout(
    x: np.ndarray, ids: np.ndarray, key: int, p: float, out: np.ndarray | None = None
) -> np.ndarray:
    """``x`` [n, F] (float32 or float64) with entries dropped with probability ``p`` in [0, 1)
    and the others divided by 1 - p; row ``i`` is drawn for ``ids[i]`` (int64). ``out`` may be
    ``x``. The gradient is the same function of the gradient."""
    if out is None:
        out = np.empty_like(x)
    drop = threshold(p)
    if out.size:
        line = flat(np.ascontiguousarray(x))
        args = (ids, np.uint64(key), np.uint64(drop), _scale(drop, x.dtype), flat(out))
        parallel.run(_dropout, x.shape[0], line, x.shape[1], *args, work=x.size // 16)
    return out


def drop_rows(lo: int, hi: int, x: np.ndarray, ids: np.ndarray, key: int, drop: int) -> None:
    """``keyed_dropout`` of rows ``lo .. hi - 1`` of ``x`` in place, on the calling thread; ``drop``
    is the ``threshold`` of the probability."""
    args = (np.uint64(key), np.uint64(drop), _scale(drop, x.dtype))
    _dropout(lo, hi, flat(x), x.shape[1], ids, *args, flat(x))


def _scale(drop: int, dtype: np.dtype) -> np.floating:
    return dtype.type(65536 / (65536 - drop))


@intrinsic
def _dropped(typingctx, value, state, column, drop):
    """``value`` in the lanes that are kept, else 0; its first lane is ``column``, a multiple of the
    number of lanes or of 4. ``rng.draw`` on vectors of 64-bit words, compared as 16-bit lanes."""

    def codegen(context, builder, signature, args):
        value, state, column, drop = args
        lanes = signature.args[0].lanes
        words = max(lanes // 4, 1)
        kind = ir.VectorType(ir.IntType(64), words)

        def constant(number):
            return ir.Constant(kind, [number & _MASK] * words)

        def spread(scalar, kind):
            place = ir.Constant(ir.IntType(32), 0)
            one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, place)
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
            return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

        first = builder.lshr(column, ir.Constant(column.type, 2))
        counter = builder.add(spread(first, kind), ir.Constant(kind, list(range(1, words + 1))))
        x = builder.add(spread(state, kind), builder.mul(counter, constant(rng._GOLDEN)))
        x = builder.xor(x, builder.lshr(x, constant(30)))
        x = builder.mul(x, constant(rng._MUL1))
        x = builder.xor(x, builder.lshr(x, constant(27)))
        x = builder.mul(x, constant(rng._MUL2))
        x = builder.xor(x, builder.lshr(x, constant(31)))
        limit = builder.trunc(drop, ir.IntType(16))
        halves = ir.VectorType(ir.IntType(16), lanes)
        if lanes >= 4:
            bits = builder.bitcast(x, halves)
        else:  # part of one word: column % 4 says which
            lane = builder.and_(column, ir.Constant(column.type, 3))
            word = builder.extract_element(x, ir.Constant(ir.IntType(32), 0))
            word = builder.lshr(word, builder.shl(lane, ir.Constant(column.type, 4)))
            bits = builder.bitcast(builder.trunc(word, ir.IntType(16 * lanes)), halves)
        keep = builder.icmp_unsigned(">=", bits, spread(limit, halves))
        zero = ir.Constant(context.get_value_type(signature.return_type), None)
        return builder.select(keep, value, zero)

    return value(value, types.uint64, types.intp, types.uint64), codegen


@njit(cache=True, forceinline=True)
def _block(zero, c, args):
    x, at, state, drop, scale, out = args
    value = multiply(load(zero, x, at + c), splat(zero, scale))
    store(out, at + c, _dropped(value, state, c, drop))


@njit(cache=True, nogil=True)
def _dropout(row_lo, row_hi, x, width, ids, key, drop, scale, out):
    px, po = pointer(x), pointer(out)
    for r in range(row_lo, row_hi):
        args = (px, r * width, node_state(key, ids[r]), drop, scale, po)
        over_columns_once(_block, x, 0, width, args)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    keyed_dropout(np.ones((1, 1), np.float32), np.zeros(1, np.int64), 0, 0.5)
