"""From edges by destination to edges by source, so that gradients are sums over rows too."""

import numpy as np
from numba import njit


def transpose(
    indptr: np.ndarray, indices: np.ndarray, num_src: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(indptr int64[num_src + 1], destinations int32[E], position int64[E])``, by source.

    The edges of a source keep their order; ``position`` is an edge's place in ``indices``. A
    counting sort: two passes over the edges.
    """
    out = np.zeros(num_src + 1, np.int64)
    destinations = np.empty(indices.size, np.int32)
    position = np.empty(indices.size, np.int64)
    _transpose(indptr, indices, out, destinations, position)
    return out, destinations, position


@njit(cache=True, nogil=True)
def _transpose(indptr, indices, out, destinations, position):
    for e in range(indices.size):
        out[indices[e]] += 1
    begin = 0
    for s in range(out.size):  # counts become first places
        count = out[s]
        out[s] = begin
        begin += count
    for r in range(indptr.size - 1):
        for e in range(indptr[r], indptr[r + 1]):
            s = indices[e]
            k = out[s]
            out[s] = k + 1
            destinations[k] = r
            position[k] = e
    for s in range(out.size - 1, 0, -1):  # each place has moved to the next source's first
        out[s] = out[s - 1]
    out[0] = 0


def warmup() -> None:
    """Compile for the dtypes of a run."""
    transpose(np.array([0, 1]), np.zeros(1, np.int32), 1)
    transpose(np.array([0, 1]), np.zeros(1, np.int64), 1)
