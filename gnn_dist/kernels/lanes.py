"""Compressed rows inside numba kernels: eight float32 lanes, a bit mask and what lies between.

A row kept as values and a bit mask is expanded into registers eight columns at a time. With AVX2
that is one table look-up and one permutation (``vpermps``); elsewhere it goes lane by lane. Both
give the same bits. The vectors are those of ``gnn_dist.kernels.vector``.
"""

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gnn_dist.kernels.vector import Vector

_WIDTH = 8
_VECTOR = ir.VectorType(ir.FloatType(), _WIDTH)
_INDICES = ir.VectorType(ir.IntType(32), _WIDTH)
LANES = Vector(types.float32, _WIDTH)


def _has(feature: str) -> bool:
    try:
        return bool(llvmlite.binding.get_host_cpu_features().get(feature, False))
    except RuntimeError:
        return False


HAS_PERMUTE = _has("avx2")


@intrinsic
def zeros128(typingctx, array):
    """128 bytes of zeros: 32 float32 or 16 float64, as ``array`` is."""
    vector = Vector(array.dtype, 128 * 8 // array.dtype.bitwidth)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return vector(array), codegen


def _pointer(context, builder, array_type, array, index, to):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


@intrinsic
def not_below8(typingctx, a, b):
    """Bit ``l`` of the answer (uint32, eight bits) is set where lane ``l`` has not a < b.

    So a lane that is not a number is marked.
    """

    def codegen(context, builder, signature, args):
        bits = builder.fcmp_unordered(">=", *args)
        return builder.zext(builder.bitcast(bits, ir.IntType(8)), ir.IntType(32))

    return types.uint32(LANES, LANES), codegen


@intrinsic
def popcount(typingctx, value):
    """Number of set bits of a uint32, as int64."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.ctpop(args[0]), ir.IntType(64))

    return types.int64(types.uint32), codegen


@intrinsic
def lowest_bit(typingctx, value):
    """Position of the lowest set bit of a uint32 that is not 0, as int64."""

    def codegen(context, builder, signature, args):
        count = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.zext(count, ir.IntType(64))

    return types.int64(types.uint32), codegen


def _expansions() -> np.ndarray:
    """int32[256 * 8]: in mask ``m`` lane ``l`` takes value number popcount(m & ((1 << l) - 1)).

    The sign is set where the lane is in the mask: a permutation reads the low three bits alone, a
    blend the sign alone.
    """
    table = np.zeros((256, _WIDTH), np.uint32)
    for mask in range(256):
        taken = 0
        for lane in range(_WIDTH):
            if mask >> lane & 1:
                table[mask, lane] = taken | 0x80000000
                taken += 1
    return table.view(np.int32).reshape(-1)


EXPANSIONS = _expansions()


@intrinsic
def _expand_permuted(typingctx, values, index, mask, table):
    def codegen(context, builder, signature, args):
        values, index, mask, table = args
        packed = builder.load(
            _pointer(context, builder, signature.args[0], values, index, _VECTOR), align=4
        )
        row = builder.shl(builder.zext(mask, ir.IntType(64)), ir.Constant(ir.IntType(64), 3))
        order = builder.load(
            _pointer(context, builder, signature.args[3], table, row, _INDICES), align=4
        )
        permute = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_VECTOR, [_VECTOR, _INDICES]),
            "llvm.x86.avx2.permps",
        )
        spread = builder.call(permute, [packed, order])
        blend = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_VECTOR, [_VECTOR] * 3),
            "llvm.x86.avx.blendv.ps.256",
        )
        kept = builder.bitcast(order, _VECTOR)
        return builder.call(blend, [ir.Constant(_VECTOR, [0.0] * _WIDTH), spread, kept])

    return LANES(values, types.intp, types.uint32, table), codegen


@intrinsic
def _expand_by_lane(typingctx, values, index, mask, table):
    def codegen(context, builder, signature, args):
        values, index, mask, _ = args
        out = ir.Constant(_VECTOR, [0.0] * _WIDTH)
        word = ir.IntType(32)
        for lane in range(_WIDTH):
            pointer = _pointer(context, builder, signature.args[0], values, index, ir.FloatType())
            bit = builder.and_(builder.lshr(mask, ir.Constant(word, lane)), ir.Constant(word, 1))
            value = builder.select(
                builder.trunc(bit, ir.IntType(1)),
                builder.load(pointer, align=4),
                ir.Constant(ir.FloatType(), 0.0),
            )
            out = builder.insert_element(out, value, ir.Constant(word, lane))
            index = builder.add(index, builder.zext(bit, ir.IntType(64)))
        return out

    return LANES(values, types.intp, types.uint32, table), codegen


_expand = _expand_permuted if HAS_PERMUTE else _expand_by_lane


@numba.njit(inline="always")
def expand8(values, index, mask, table):
    """Values from ``index`` on, dealt to the lanes whose bit is set in ``mask`` (eight bits);
    zero elsewhere. Reads eight values: keep eight spare at the end. ``table``: EXPANSIONS."""
    return _expand(values, index, mask, table)
