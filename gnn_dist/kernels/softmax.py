"""Softmax over the in-edges of each row, head by head."""

import numpy as np
from numba import njit

from gnn_dist.kernels import parallel


def edge_softmax(indptr: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """float[E, H] scores → float[E, H] that are positive and sum to 1 over the edges of a row."""
    out = np.empty_like(scores)
    if out.size:
        parallel.run_rows(_softmax, indptr, indptr, scores, out)
    return out


def edge_softmax_backward(indptr: np.ndarray, out: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Gradient with respect to the scores, from the result and its gradient, float[E, H] each."""
    result = np.empty_like(out)
    if out.size:
        parallel.run_rows(_softmax_backward, indptr, indptr, out, grad, result)
    return result


@njit(cache=True, nogil=True)
def _softmax(row_lo, row_hi, indptr, scores, out):
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        for h in range(scores.shape[1]):
            largest = scores.dtype.type(-np.inf)
            for e in range(lo, hi):
                largest = max(largest, scores[e, h])
            total = scores.dtype.type(0)
            for e in range(lo, hi):
                value = np.exp(scores[e, h] - largest)
                out[e, h] = value
                total += value
            for e in range(lo, hi):
                out[e, h] /= total


@njit(cache=True, nogil=True)
def _softmax_backward(row_lo, row_hi, indptr, out, grad, result):
    for r in range(row_lo, row_hi):
        lo, hi = indptr[r], indptr[r + 1]
        for h in range(out.shape[1]):
            dot = out.dtype.type(0)
            for e in range(lo, hi):
                dot += out[e, h] * grad[e, h]
            for e in range(lo, hi):
                result[e, h] = out[e, h] * (grad[e, h] - dot)


def warmup() -> None:
    """Compile for the dtypes of a run."""
    out = edge_softmax(np.array([0, 1]), np.ones((1, 1), np.float32))
    edge_softmax_backward(np.array([0, 1]), out, out)
