"""Group encodings and the grouped aggregation, against scipy one snapshot at a time."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.datasets.temporal import synthetic
from gnn_dist.dynamic import ENCODINGS, Segments, SnapshotSequence, encode_group, factors
from gnn_dist.kernels.grouped import aggregate_rows


def dense_of(segments: Segments) -> np.ndarray:
    """Every snapshot's matrix, with multiplicity: float[S, rows, cols]."""
    out = np.zeros((segments.snapshots, segments.rows, segments.cols))
    for g in range(segments.first.size):
        for row in range(segments.rows):
            for e in range(segments.indptr[g, row], segments.indptr[g, row + 1]):
                for k, s in enumerate(range(segments.first[g], segments.last[g])):
                    if segments.weight is None:
                        value = 1.0
                    elif segments.position is None:
                        value = segments.weight[e]
                    else:
                        value = segments.weight[segments.position[e] + k]
                    out[s, row, segments.indices[e]] += value
    return out


def matrix(sequence: SnapshotSequence, t: int) -> np.ndarray:
    csc = sequence.snapshot(t)
    weight = np.ones(csc.indices.size) if csc.weight is None else csc.weight
    shape = (sequence.num_nodes, sequence.num_nodes)
    return sp.csr_matrix((weight, csc.indices, csc.indptr), shape).toarray()


def sequence_of(kind: str, seed: int, snapshots: int = 9) -> SnapshotSequence:
    rng = np.random.default_rng(seed)
    nodes = 12
    base = rng.random((nodes, nodes)) < 0.3
    edges, weights, fixed = [], [], rng.uniform(0.5, 2, (nodes, nodes))
    for _ in range(snapshots):
        flip = rng.random((nodes, nodes)) < 0.05
        base = base ^ flip
        dst, src = np.nonzero(base)
        edges.append(np.stack((src, dst)))
        weights.append(fixed[dst, src] if kind == "shared" else rng.uniform(0.5, 2, src.size))
    given = None if kind == "binary" else weights
    return SnapshotSequence.from_lists(edges, nodes, weights=given)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["binary", "shared", "valued"]),
    st.sampled_from(ENCODINGS),
    st.integers(0, 8),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_every_encoding_holds_every_edge_exactly_once(
    kind: str, encoding: str, first: int, count: int, seed: int
) -> None:
    sequence = sequence_of(kind, seed)
    count = min(count, sequence.num_snapshots - first)
    segments = encode_group(sequence, range(first, first + count), encoding)
    expected = np.stack([matrix(sequence, first + s) for s in range(count)])
    np.testing.assert_allclose(dense_of(segments), expected)
    np.testing.assert_allclose(dense_of(segments.transposed()), expected.transpose(0, 2, 1))
    assert segments.edges == sum(sequence.num_edges(first + s) for s in range(count))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_group_need_not_be_consecutive(encoding: str) -> None:
    sequence = sequence_of("valued", 2)
    chosen = (0, 1, 4, 5, 8)
    expected = np.stack([matrix(sequence, t) for t in chosen])
    np.testing.assert_allclose(dense_of(encode_group(sequence, chosen, encoding)), expected)


def test_dyadic_blocks_are_aligned_and_maximal() -> None:
    edges = [np.array([[0], [1]])] * 6 + [np.array([[2], [1]])] * 2
    sequence = SnapshotSequence.from_lists(edges, 3)
    segments = encode_group(sequence, range(1, 8), "dyadic")
    spans = sorted(
        (int(a) + 1, int(b) + 1) for a, b in zip(segments.first, segments.last, strict=True)
    )
    assert spans == [(1, 2), (2, 4), (4, 6), (6, 8)]
    assert segments.stored_edges == 4


def test_shared_encodings_store_fewer_edges_where_snapshots_overlap() -> None:
    sequence = synthetic(300, 3000, 8, change=0.05, seed=1)
    stored = {e: encode_group(sequence, range(8), e).stored_edges for e in ENCODINGS}
    assert stored["blockdiag"] == 24000
    assert stored["flat"] < 0.5 * stored["blockdiag"]
    assert stored["dyadic"] < 0.5 * stored["blockdiag"]


@pytest.mark.parametrize("kind", ["binary", "shared", "valued"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 8, 17, 33])
def test_grouped_aggregation_equals_scipy(kind: str, dtype: type, width: int) -> None:
    sequence = sequence_of(kind, 3)
    rng = np.random.default_rng(0)
    nodes, count = sequence.num_nodes, 7
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    x = rng.standard_normal((nodes, count, width)).astype(dtype)
    loop, scale = (rng.standard_normal((nodes, count)).astype(dtype) for _ in range(2))
    for encoding in ENCODINGS:
        s = encode_group(sequence, range(1, 1 + count), encoding)
        weight = None if s.weight is None else s.weight.astype(dtype)
        out = np.full_like(x, np.nan)
        for lo, hi in ((0, 5), (5, nodes)):
            aggregate_rows(
                lo, hi, s.indptr, s.indices, weight, s.position, s.first, s.last, x, loop, scale,
                out,
            )  # fmt: skip
        for k in range(count):
            ref = matrix(sequence, 1 + k) @ x[:, k] + loop[:, k, None] * x[:, k]
            ref *= scale[:, k, None]
            np.testing.assert_allclose(out[:, k], ref, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["gcn", "chebyshev"])
@pytest.mark.parametrize("weights", ["binary", "shared", "valued"])
def test_factors_give_the_matrices_that_pyg_uses(kind: str, weights: str) -> None:
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("torch_geometric.nn")
    sequence = sequence_of(weights, 5)
    f = factors(sequence, kind, np.float64)
    nodes = sequence.num_nodes
    eye = torch.eye(nodes, dtype=torch.float64)
    for t in range(sequence.num_snapshots):
        csc = sequence.snapshot(t)
        index = torch.from_numpy(csc.edge_index())
        weight = None if csc.weight is None else torch.from_numpy(csc.weight).double()
        ours = f.left[:, t, None] * (matrix(sequence, t) + np.diag(f.loop[:, t])) * f.right[:, t]
        if kind == "gcn":
            layer = nn.GCNConv(nodes, nodes, bias=False).double()
            layer.lin.weight.data = eye
            theirs = layer(eye, index, weight)
        else:
            layer = nn.ChebConv(nodes, nodes, 2, bias=False).double()
            layer.lins[0].weight.data = torch.zeros_like(eye)
            layer.lins[1].weight.data = eye
            theirs = layer(eye, index, weight)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-12)
