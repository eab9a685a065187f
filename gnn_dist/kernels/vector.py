"""Short SIMD vectors inside numba kernels.

Numba leaves a loop over a feature row as scalar code, or vectorises it with the accumulator in
memory. Here a value of ``Vector(dtype, lanes)`` is one LLVM vector that lives in registers; LLVM
splits it into what the machine has (256 bytes are eight AVX registers). A kernel is written once
over such values and specialised on their width:

    acc = zeros256(out)                   # 64 float32 or 32 float64, as ``out`` is
    acc = add(acc, load(acc, x, offset))  # x[offset : offset + lanes]
    store(out, offset, acc)

Offsets count elements of the flat array. Nothing checks them.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

_LLVM = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int32: ir.IntType(32),
}
_BYTES = {types.float32: 4, types.float64: 8, types.int32: 4}
_INT = ir.IntType(32)


class Vector(types.Type):
    """``lanes`` values of ``dtype`` (float32, float64; int32 for positions) in one LLVM vector."""

    def __init__(self, dtype: types.Type, lanes: int) -> None:
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.VectorType(_LLVM[fe_type.dtype], fe_type.lanes))


def _address(context, builder, array_type, array, offset):
    """Pointer to element ``offset`` of a flat array, or of what a pointer points to."""
    data = array
    if isinstance(array_type, types.Array):
        data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset], inbounds=True)


@intrinsic
def pointer(typingctx, array):
    """Pointer to the first element of a C-contiguous array, which must outlive it.

    A helper that takes arrays pays atomic reference counts at every call; one that takes pointers
    does not. ``load``, ``store``, ``prefetch`` and ``item`` take either.
    """

    def codegen(context, builder, signature, args):
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def at(typingctx, like, address):
    """Pointer to numbers such as those of ``like``, which has a dtype, at an address in bytes."""
    kind = types.CPointer(like.dtype)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[1], context.get_value_type(kind))

    return kind(like, types.int64), codegen


@intrinsic
def address(typingctx, array):
    """Of the first element of an array, in bytes: the inverse of ``at``."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


def lanes32(array):
    """Lanes of ``zeros32(array)``."""
    raise TypeError("for numba kernels only")


@overload(lanes32, inline="always")
def _lanes32(array):
    lanes = 32 // _BYTES[array.dtype]
    return lambda array: lanes


@intrinsic
def item(typingctx, array, offset):
    """The number at ``offset``, as numba reads it, but never counted from the end."""

    def codegen(context, builder, signature, args):
        where = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.load(where, align=signature.return_type.bitwidth // 8)

    return array.dtype(array, types.intp), codegen


def _zeros(num_bytes):
    @intrinsic
    def zeros(typingctx, array):
        dtype = array.dtype
        if dtype not in _BYTES:
            return None
        vector = Vector(dtype, max(1, num_bytes // _BYTES[dtype]))

        def codegen(context, builder, signature, args):
            return ir.Constant(context.get_value_type(signature.return_type), None)

        return vector(array), codegen

    return zeros


zeros256 = _zeros(256)
zeros64 = _zeros(64)
zeros32 = _zeros(32)
zeros16 = _zeros(16)
zeros1 = _zeros(1)  # one lane


@intrinsic
def load(typingctx, like, array, offset):
    """``array[offset : offset + lanes]`` as a vector of the type of ``like``.

    Numba has no 16-bit floats on CPU: an int16 array is read as float16 and a uint16 array as
    bfloat16, and both are widened (see ``flat``).
    """

    def codegen(context, builder, signature, args):
        vector, array_type, _ = signature.args
        pointer = _address(context, builder, array_type, args[1], args[2])
        wide = context.get_value_type(vector)
        if array_type.dtype == vector.dtype:
            pointer = builder.bitcast(pointer, wide.as_pointer())
            return builder.load(pointer, align=_BYTES[vector.dtype])
        bits = ir.VectorType(ir.IntType(16), vector.lanes)
        short = builder.load(builder.bitcast(pointer, bits.as_pointer()), align=2)
        if array_type.dtype == types.uint16:
            words = ir.VectorType(ir.IntType(32), vector.lanes)
            shift = ir.Constant(words, [16] * vector.lanes)
            return builder.bitcast(builder.shl(builder.zext(short, words), shift), wide)
        half = builder.bitcast(short, ir.VectorType(ir.HalfType(), vector.lanes))
        return builder.fpext(half, wide)

    same = array.dtype == like.dtype
    widened = like.dtype == types.float32 and array.dtype in (types.int16, types.uint16)
    if not (same or widened):
        return None
    return like(like, array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """``array[offset : offset + lanes] = value``."""

    def codegen(context, builder, signature, args):
        array_type, _, vector = signature.args
        pointer = _address(context, builder, array_type, args[0], args[1])
        pointer = builder.bitcast(pointer, context.get_value_type(vector).as_pointer())
        builder.store(args[2], pointer, align=_BYTES[vector.dtype])
        return context.get_dummy_value()

    if array.dtype != value.dtype:
        return None
    return types.void(array, types.intp, value), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line of ``array[offset]``; does not wait and cannot fault."""

    def codegen(context, builder, signature, args):
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0",
        )
        hint = [ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)]
        builder.call(function, [builder.bitcast(pointer, byte), *hint])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


def _binary(operation):
    @intrinsic
    def binary(typingctx, a, b):
        if a != b or not isinstance(a, Vector):
            return None

        def codegen(context, builder, signature, args):
            return operation(builder, *args)

        return a(a, a), codegen

    return binary


add = _binary(lambda builder, a, b: builder.fadd(a, b))
divide = _binary(lambda builder, a, b: builder.fdiv(a, b))
multiply = _binary(lambda builder, a, b: builder.fmul(a, b))
maximum = _binary(lambda b, x, y: b.select(b.fcmp_ordered(">", y, x), y, x))


@intrinsic
def splat(typingctx, like, scalar):
    """A vector of the type of ``like`` with ``scalar`` in every lane."""

    def codegen(context, builder, signature, args):
        vector_type = context.get_value_type(signature.return_type)
        zero = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(vector_type, ir.Undefined), args[1], zero)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), signature.return_type.lanes), None)
        return builder.shuffle_vector(one, ir.Constant(vector_type, ir.Undefined), mask)

    return like(like, like.dtype), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c`` with one rounding."""
    if not (a == b == c and isinstance(a, Vector)):
        return None

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(a)
        name = f"llvm.fma.v{a.lanes}{'f32' if a.dtype == types.float32 else 'f64'}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind, kind, kind]), name
        )
        return builder.call(function, args)

    return a(a, a, a), codegen


@intrinsic
def relu(typingctx, value):
    """``max(value, 0)``, lane by lane; NaN stays NaN."""
    if not isinstance(value, Vector):
        return None

    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(signature.return_type), None)
        return builder.select(builder.fcmp_ordered("<=", args[0], zero), zero, args[0])

    return value(value), codegen


@intrinsic
def root(typingctx, value):
    """Square roots, lane by lane."""
    if not isinstance(value, Vector):
        return None

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(value)
        name = f"llvm.sqrt.v{value.lanes}{'f32' if value.dtype == types.float32 else 'f64'}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), name
        )
        return builder.call(function, args)

    return value(value), codegen


@intrinsic
def where_positive(typingctx, by, value):
    """``value`` in the lanes where ``by`` is positive or not a number, else 0."""
    if by != value or not isinstance(value, Vector):
        return None

    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(value), None)
        return builder.select(builder.fcmp_ordered("<=", args[0], zero), zero, args[1])

    return value(by, value), codegen


def _splat_int(builder, value, lanes):
    word = builder.trunc(value, _INT) if value.type.width > 32 else value
    kind = ir.VectorType(_INT, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), word, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(kind, None))


@intrinsic
def positions(typingctx, like, place):
    """An int32 vector with ``place`` in as many lanes as ``like`` has."""

    def codegen(context, builder, signature, args):
        return _splat_int(builder, args[1], signature.return_type.lanes)

    return Vector(types.int32, like.lanes)(like, types.intp), codegen


@intrinsic
def take_larger(typingctx, best, places, value, place):
    """``(best, places)`` with ``value`` and ``place`` in the lanes where ``value`` is larger.

    NaN is larger than every number, and the first of equals stays.
    """

    def codegen(context, builder, signature, args):
        best, places, value, place = args
        larger = builder.fcmp_unordered(">", value, best)
        larger = builder.and_(larger, builder.fcmp_ordered("ord", best, best))
        here = _splat_int(builder, place, signature.args[0].lanes)
        chosen = builder.select(larger, value, best), builder.select(larger, here, places)
        return context.make_tuple(builder, signature.return_type, chosen)

    return types.Tuple((best, places))(best, places, value, types.intp), codegen


@intrinsic
def where_place(typingctx, places, offset, place, value):
    """``value`` in the lanes whose entry of the int32 array ``places``, from ``offset`` on, is
    ``place``; else 0."""
    if places.dtype != types.int32:
        return None

    def codegen(context, builder, signature, args):
        lanes = signature.return_type.lanes
        where = _address(context, builder, signature.args[0], args[0], args[1])
        held = builder.bitcast(where, ir.VectorType(_INT, lanes).as_pointer())
        same = builder.icmp_signed(
            "==", builder.load(held, align=4), _splat_int(builder, args[2], lanes)
        )
        zero = ir.Constant(context.get_value_type(signature.return_type), None)
        return builder.select(same, args[3], zero)

    return value(places, types.intp, types.intp, value), codegen


@intrinsic
def store_positive(typingctx, array, offset, value):
    """Byte ``offset`` and on of a uint8 array: bit ``l`` is set where lane ``l`` of ``value`` is
    positive. Vectors of fewer than 8 lanes store nothing: give rows of whole 64-byte vectors."""
    if array.dtype != types.uint8:
        return None

    def codegen(context, builder, signature, args):
        lanes = signature.args[2].lanes
        if lanes % 8 == 0:
            zero = ir.Constant(context.get_value_type(signature.args[2]), None)
            word = ir.IntType(lanes)
            bits = builder.bitcast(builder.fcmp_ordered(">", args[2], zero), word)
            where = _address(context, builder, signature.args[0], args[0], args[1])
            builder.store(bits, builder.bitcast(where, word.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def where_active(typingctx, array, place, value):
    """``value`` in the lanes that are active, else 0.

    ``array`` holds one entry a lane, active where it is positive, and the first is entry
    ``place``; or it is uint8 and holds the bits of ``store_positive``, the first at byte
    ``place // 8``.
    """
    bits = array.dtype == types.uint8
    if not bits and array.dtype != value.dtype:
        return None

    def codegen(context, builder, signature, args):
        kind, lanes = context.get_value_type(signature.return_type), signature.return_type.lanes
        zero = ir.Constant(kind, None)
        if bits and lanes % 8:
            return args[2]
        offset = builder.sdiv(args[1], ir.Constant(args[1].type, 8)) if bits else args[1]
        where = _address(context, builder, signature.args[0], args[0], offset)
        if bits:
            word = ir.IntType(lanes)
            held = builder.load(builder.bitcast(where, word.as_pointer()), align=1)
            mask = builder.bitcast(held, ir.VectorType(ir.IntType(1), lanes))
        else:
            pointer = builder.bitcast(where, kind.as_pointer())
            entries = builder.load(pointer, align=_BYTES[value.dtype])
            mask = builder.fcmp_ordered(">", entries, zero)
        return builder.select(mask, args[2], zero)

    return value(array, types.intp, value), codegen


@intrinsic
def total(typingctx, value):
    """The sum of the lanes, halves onto halves: the same tree on every machine."""

    def codegen(context, builder, signature, args):
        vector, lanes = args[0], signature.args[0].lanes
        index = ir.IntType(32)
        while lanes > 1:
            lanes //= 2
            low = ir.Constant(ir.VectorType(index, lanes), list(range(lanes)))
            high = ir.Constant(ir.VectorType(index, lanes), list(range(lanes, 2 * lanes)))
            vector = builder.fadd(
                builder.shuffle_vector(vector, vector, low),
                builder.shuffle_vector(vector, vector, high),
            )
        return builder.extract_element(vector, ir.Constant(index, 0))

    return value.dtype(value), codegen


@njit(inline="always")
def over_columns(block, like, begin, end, args):
    """Call ``block(zero, c, args)`` for vectors at columns ``c`` that cover ``begin .. end - 1``.

    Vectors have 256, 64 and 16 bytes; an odd rest is covered by a vector that overlaps the one
    before, where there is one, so ``block`` must give the same values when it does a column again.
    """
    wide = 256 // like.itemsize
    width = end - begin
    c = begin
    while c + wide <= end:
        block(zeros256(like), c, args)
        c += wide
    if end - c > wide // 2 and width >= wide:
        block(zeros256(like), end - wide, args)
        c = end
    while c + wide // 4 <= end:
        block(zeros64(like), c, args)
        c += wide // 4
    if end - c > wide // 16 and width >= wide // 4:
        block(zeros64(like), end - wide // 4, args)
        c = end
    while c + wide // 16 <= end:
        block(zeros16(like), c, args)
        c += wide // 16
    if c < end and width >= wide // 16:
        block(zeros16(like), end - wide // 16, args)
        c = end
    while c < end:
        block(zeros1(like), c, args)
        c += 1


@njit(inline="always")
def over_columns_once(block, like, begin, end, args):
    """``over_columns`` for a ``block`` that may do a column only once: an update in place."""
    wide = 256 // like.itemsize
    c = begin
    while c + wide <= end:
        block(zeros256(like), c, args)
        c += wide
    while c + wide // 4 <= end:
        block(zeros64(like), c, args)
        c += wide // 4
    while c + wide // 16 <= end:
        block(zeros16(like), c, args)
        c += wide // 16
    while c < end:
        block(zeros1(like), c, args)
        c += 1


def flat(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array as one dimension; float16 becomes its bits as int16."""
    assert array.flags.c_contiguous
    line = array.reshape(-1)
    return line.view(np.int16) if line.dtype == np.float16 else line
