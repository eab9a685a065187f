"""Reading arrays out of pickles, of untrusted files too.

A pickle is a program. This reader runs only those that name NumPy's arrays, SciPy's compressed
sparse rows, lists and dictionaries; anything else is refused before it is imported. Even these
names mean stand-ins here, which check what they are given before an array is made of it: NumPy's
own restoring code believes the sizes and types that a pickle states. Memory stays within a small
multiple of the file.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from gnn_dist.errors import InputError

_OPCODES = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
        *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
        *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    )
)


class _Name:
    """A name that is only ever an argument in an honest pickle."""


class _NDArray(_Name):
    pass


class _Object(_Name):
    pass


class _List(_Name):
    pass


class _DType:
    def __init__(self, code: object, *_: object) -> None:
        self.code = code
        self.state: Any = (3, "|", None, None, None)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.dtype:
        if not isinstance(self.code, str) or np.dtype(self.code).kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of {self.code!r}, not of numbers")
        version, order, *parts = self.state
        if version not in (3, 4) or any(part is not None for part in parts[:3]):
            raise pickle.UnpicklingError("an array that is not of plain numbers")
        return np.dtype(self.code).newbyteorder(order)


class _Array:
    """Keeps what it is given: only the few arrays of the result are built."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        _, shape, kind, fortran, raw = self.state
        if isinstance(raw, str):
            raw = raw.encode("latin1")  # bytes of Python 2
        if not (isinstance(kind, _DType) and isinstance(raw, bytes) and isinstance(shape, tuple)):
            raise pickle.UnpicklingError("an array that is not of plain numbers")
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise pickle.UnpicklingError(f"an array of shape {shape}")
        dtype = kind.build()
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise pickle.UnpicklingError(f"{len(raw)} bytes for an array of shape {shape}")
        return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


class _Sparse:
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> csr_matrix:
        parts = [self.state[name] for name in ("data", "indices", "indptr")]
        if not all(isinstance(part, _Array) for part in parts):
            raise pickle.UnpicklingError("a sparse matrix without its arrays")
        shape = self.state.get("_shape", self.state.get("shape"))
        matrix = csr_matrix(tuple(part.build() for part in parts), shape=shape)
        matrix.check_format(full_check=True)  # compiled code trusts indices and indptr
        return matrix


def _begin_array(kind: object, shape: object, code: object) -> _Array:
    if kind is not _NDArray:
        raise pickle.UnpicklingError("an array of another class")
    return _Array()


def _new_sparse(cls: object, *_: object) -> _Sparse:
    """Python 2's ``copy_reg._reconstructor``."""
    if cls is not _Sparse:
        raise pickle.UnpicklingError("an object that is not a sparse matrix")
    return _Sparse()


def _default_dict(factory: object) -> dict[Any, Any]:
    if factory is not _List:
        raise pickle.UnpicklingError("a defaultdict of something else than lists")
    return {}


_MEANING: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _begin_array,
    ("numpy._core.multiarray", "_reconstruct"): _begin_array,
    ("numpy", "ndarray"): _NDArray,
    ("numpy", "dtype"): _DType,
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    ("scipy.sparse._csr", "csr_matrix"): _Sparse,
    ("copy_reg", "_reconstructor"): _new_sparse,
    ("copyreg", "_reconstructor"): _new_sparse,
    ("__builtin__", "object"): _Object,
    ("builtins", "object"): _Object,
    ("__builtin__", "list"): _List,
    ("builtins", "list"): _List,
    ("collections", "defaultdict"): _default_dict,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _MEANING:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _MEANING[module, name]


def load_arrays(data: bytes, what: str) -> Any:
    """The value pickled in ``data``: an array, a sparse matrix, or lists and dictionaries.

    ``what`` names the file in messages. Raises ``InputError`` for a pickle that asks for anything
    else, and for one that is damaged.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise pickle.UnpicklingError(f"it uses the opcode {opcode.name}")
            # The unpickler allocates its memo up to the largest index that is stated.
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data):
                raise pickle.UnpicklingError("a memo index that is out of range")
        value = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        if isinstance(value, _Array | _Sparse):
            return value.build()
        if not isinstance(value, dict | list):
            raise pickle.UnpicklingError("it holds something else")
        return value
    # A damaged pickle can raise nearly anything out of the unpickler.
    except Exception as error:
        raise InputError(
            f"{what}: is not a pickle of plain arrays ({error}); only NumPy and SciPy arrays, "
            "lists and dictionaries are read. Fetch the file again from its source"
        ) from None
