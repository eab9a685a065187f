"""Set operations on sorted, distinct int64 keys: linear merges, one pass over each operand."""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def _split(a, b, common, only_a):
    i = j = n = m = 0
    while i < a.size:
        while j < b.size and b[j] < a[i]:
            j += 1
        if j < b.size and b[j] == a[i]:
            common[n] = i
            n += 1
        else:
            only_a[m] = i
            m += 1
        i += 1
    return n, m


def split_positions(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in ``a`` (int64[n]) of the keys that ``b`` holds too, and of those it does not."""
    common = np.empty(a.size, np.int64)
    only_a = np.empty(a.size, np.int64)
    n, m = _split(a, b, common, only_a)
    return common[:n], only_a[:m]


def intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Keys in both, ascending: int64[...]."""
    return a[split_positions(a, b)[0]]


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Keys of ``a`` that are not in ``b``, ascending: int64[...]."""
    return a[split_positions(a, b)[1]]


@numba.njit(cache=True, nogil=True)
def _apply(keys, added, removed, out):
    i = j = k = n = 0
    while i < keys.size or j < added.size:
        if j == added.size or (i < keys.size and keys[i] < added[j]):
            while k < removed.size and removed[k] < keys[i]:
                k += 1
            if not (k < removed.size and removed[k] == keys[i]):
                out[n] = keys[i]
                n += 1
            i += 1
        else:
            out[n] = added[j]
            n += 1
            j += 1
    return n


def apply_delta(keys: np.ndarray, added: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """``(keys - removed) + added``: ``removed`` is a subset of ``keys``, ``added`` disjoint."""
    out = np.empty(keys.size + added.size - removed.size, np.int64)
    n = _apply(keys, added, removed, out)
    assert n == out.size, "a delta that does not belong to these keys"
    return out


def warmup() -> None:
    """Compile the kernels for the dtypes of a real run."""
    a = np.array([1, 2, 3], np.int64)
    split_positions(a, a[:1])
    apply_delta(a, np.array([7], np.int64), a[1:2])
