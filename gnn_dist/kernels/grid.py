"""Additions on a grid: a residual stream of multiples of 2⁻ᵇ, so that adding can be undone.

Numbers that are multiples of 2⁻ᵇ and smaller than 2^(p - b), where p is the precision of the type
(24 bits for float32, 53 for float64), add and subtract without rounding. Then
``(x + snap(f)) - snap(f)`` is ``x``, bit by bit, however long the chain.
"""

import numba
import numpy as np

PRECISION = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}


def bound(dtype: np.dtype, bits: int) -> float:
    """Numbers of the grid below this magnitude add exactly."""
    return 2.0 ** (PRECISION[np.dtype(dtype)] - bits)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def add(lo, hi, x, f, bias, scale, back, sign, limit, outside):
    """Rows ``lo .. hi - 1``: ``x += sign * snap(f + bias)``, in place.

    ``x, f``: float[N, d]; ``bias``: float[d]; ``scale, back``: 2**bits and 2**-bits to snap; a
    scale of 0 leaves ``f`` as it is. ``outside``: int32[N], set to the number of columns of the
    row that are no longer below ``limit`` in magnitude (NaN counts).
    """
    d = x.shape[1]
    for i in range(lo, hi):
        bad = 0
        if scale > 0:
            for c in range(d):
                value = x[i, c] + sign * (np.rint((f[i, c] + bias[c]) * scale) * back)
                x[i, c] = value
                bad += not (abs(value) < limit)
        else:
            for c in range(d):
                value = x[i, c] + sign * (f[i, c] + bias[c])
                x[i, c] = value
                bad += not (abs(value) < limit)
        outside[i] = bad


def warmup() -> None:
    """Compile for float32."""
    x = np.zeros((1, 8), np.float32)
    one = np.float32(1)
    add(0, 1, x, x.copy(), np.zeros(8, np.float32), one, one, one, one, np.zeros(1, np.int32))
