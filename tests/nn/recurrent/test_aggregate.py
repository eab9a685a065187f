"""Grouped aggregation as a function of the features: gradients, and the path of other devices."""

import numpy as np
import pytest
import torch

from gnn_dist.datasets.temporal import synthetic
from gnn_dist.dynamic import ENCODINGS, SnapshotSequence, encode_group, factors
from gnn_dist.dynamic.normalise import Factors
from gnn_dist.nn.recurrent.aggregate import aggregate_group, move


def sequence(kind: str) -> SnapshotSequence:
    base = synthetic(20, 80, 6, change=0.2, features=1)
    edges = [base.snapshot(t).edge_index() for t in range(6)]
    rng = np.random.default_rng(0)
    fixed = rng.uniform(0.5, 2, (20, 20))
    weights = {
        "binary": None,
        "shared": [fixed[tuple(e)] for e in edges],
        "valued": [rng.uniform(0.5, 2, e.shape[1]) for e in edges],
    }[kind]
    return SnapshotSequence.from_lists(edges, 20, weights=weights)


@pytest.mark.parametrize("kind", ["binary", "shared", "valued"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("normalisation", ["gcn", "chebyshev"])
def test_values_and_gradients_equal_dense_matrices(
    kind: str, encoding: str, normalisation: str
) -> None:
    data = sequence(kind)
    span = slice(1, 6)
    segments = encode_group(data, range(1, 6), encoding)
    f = factors(data, normalisation, np.float64).columns(span)
    torch.manual_seed(0)
    x = torch.randn(20, 5, 3, dtype=torch.float64, requires_grad=True)
    dense = []
    for s, t in enumerate(range(1, 6)):
        csc = data.snapshot(t)
        matrix = np.zeros((20, 20))
        src, dst = csc.edge_index()
        matrix[dst, src] = 1 if csc.weight is None else csc.weight
        matrix = f.left[:, s, None] * (matrix + np.diag(f.loop[:, s])) * f.right[:, s]
        dense.append(torch.from_numpy(matrix))
    expected = torch.stack([m @ x[:, s] for s, m in enumerate(dense)], dim=1)
    g = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * g).sum(), x)
    other = move(segments, f, torch.device("cpu"), torch.float64)  # the path of other devices
    for moved in (None, other):
        found = aggregate_group(x, segments, f, moved)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        (gradient,) = torch.autograd.grad((found * g).sum(), x)
        torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-12)


def test_factors_of_rows_and_columns_are_those_of_the_whole() -> None:
    f = factors(sequence("binary"), "gcn", np.float64)
    part = f.columns(slice(2, 4)).rows(np.array([3, 5]))
    assert isinstance(part, Factors)
    np.testing.assert_array_equal(part.left, f.left[[3, 5], 2:4])
