"""Dropout whose mask is a function of a key and of what is dropped, not of where it is computed.

The mask of entry (row, column) is bits ``16 * (column % 4) .. + 15`` of draw ``column // 4`` of
the row's state (``rng.node_state(key, id of the row)``). An entry is kept where these 16 bits are
at least ``threshold``; so a probability is realised in steps of 2⁻¹⁶, and kept entries are scaled
by the inverse of the realised one.
"""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel
from gnn_dist.rng import draw, node_state

_LANE = np.uint64(0xFFFF)
_S16 = np.uint64(16)


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
        args = (x, ids, np.uint64(key), np.uint64(drop), _scale(drop, x.dtype), out)
        parallel.run(_dropout, x.shape[0], *args, work=x.size // 4)
    return out


def drop_rows(lo: int, hi: int, x: np.ndarray, ids: np.ndarray, key: int, drop: int) -> None:
    """``keyed_dropout`` of rows ``lo .. hi - 1`` of ``x`` in place, on the calling thread; ``drop``
    is the ``threshold`` of the probability."""
    _dropout(lo, hi, x, ids, np.uint64(key), np.uint64(drop), _scale(drop, x.dtype), x)


def _scale(drop: int, dtype: np.dtype) -> np.floating:
    return dtype.type(65536 / (65536 - drop))


@njit(cache=True, nogil=True)
def _dropout(row_lo, row_hi, x, ids, key, drop, scale, out):
    width = x.shape[1]
    for r in range(row_lo, row_hi):
        state = node_state(key, ids[r])
        for word in range(width // 4):
            bits = draw(state, word)
            for lane in range(4):
                keep = ((bits >> (_S16 * np.uint64(lane))) & _LANE) >= drop
                c = 4 * word + lane
                out[r, c] = x[r, c] * scale if keep else 0
        bits = draw(state, width // 4)
        for c in range(width - width % 4, width):
            keep = (bits & _LANE) >= drop
            out[r, c] = x[r, c] * scale if keep else 0
            bits = bits >> _S16


def warmup() -> None:
    """Compile for the dtypes of a run."""
    keyed_dropout(np.ones((1, 1), np.float32), np.zeros(1, np.int64), 0, 0.5)
