"""Instructions that numba does not offer by itself: cache prefetch and bit scans."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]`` (one-dimensional); never faults, returns None."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        values = context.make_array(array_type)(context, builder, args[0])
        position = context.cast(builder, args[1], signature.args[1], types.intp)
        pointer = cgutils.get_item_pointer(
            context, builder, array_type, values, [position], wraparound=False, boundscheck=False
        )
        byte, word = ir.IntType(8), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word]),
            "llvm.prefetch.p0",
        )
        read, keep, data = ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)
        builder.call(function, [builder.bitcast(pointer, byte.as_pointer()), read, keep, data])
        return context.get_dummy_value()

    if isinstance(array, types.Array) and array.ndim == 1 and isinstance(index, types.Integer):
        return types.none(array, index), codegen
    return None


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64 (64 for zero): int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return (types.int64(types.uint64), codegen) if word == types.uint64 else None
