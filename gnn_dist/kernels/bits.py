"""Bit scans, which numba does not offer by itself."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64 (64 for zero): int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return (types.int64(types.uint64), codegen) if word == types.uint64 else None
