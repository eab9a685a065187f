import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.batch import BatchIndex, Block, MiniBatch, global_digest


def block(rows: list[list[int]], num_src: int) -> Block:
    indptr = torch.tensor([0, *np.cumsum([len(r) for r in rows])])
    indices = torch.tensor([s for r in rows for s in r], dtype=torch.int32)
    return Block(indptr, indices, num_src, edge_ids=torch.arange(indices.numel()))


@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=7))
def test_the_transposition_lists_every_edge_by_its_source(rows):
    b = block(rows, 7)
    edges = [(s, d) for d, row in enumerate(rows) for s in row]
    assert b.edge_index().T.tolist() == [list(e) for e in edges]
    indptr, destinations, position = b.transposed()
    for source in range(7):
        low, high = int(indptr[source]), int(indptr[source + 1])
        places = [k for k, (s, _) in enumerate(edges) if s == source]
        assert position[low:high].tolist() == places
        assert destinations[low:high].tolist() == [edges[k][1] for k in places]


def batch(seeds: list[int], nodes: list[int], rows: list[list[int]], ids: list[int]) -> MiniBatch:
    b = block(rows, len(nodes))
    b.edge_ids = torch.tensor(ids)
    return MiniBatch(BatchIndex(0, 0), [b], torch.tensor(seeds), torch.tensor(nodes))


def test_a_digest_knows_the_set_and_not_the_dealing():
    original = np.arange(100)
    whole = batch([4, 7], [4, 7, 9], [[2, 1], [2]], [11, 12, 13])
    swapped = batch([7, 4], [7, 4, 9], [[2], [2, 0]], [13, 11, 12])
    one, other = batch([4], [4, 9, 7], [[1, 2]], [11, 12]), batch([7], [7, 9], [[1]], [13])
    same = whole.digest(original)
    assert swapped.digest(original) == same
    assert global_digest([one, other], original) == same
    assert global_digest([other, one], original) == same


def test_a_digest_tells_batches_apart():
    original = np.arange(100)
    whole = batch([4, 7], [4, 7, 9], [[2, 1], [2]], [11, 12, 13])
    others = [
        batch([4, 7], [4, 7, 8], [[2, 1], [2]], [11, 12, 13]),
        batch([4, 7], [4, 7, 9], [[2, 1], [1]], [11, 12, 13]),
        batch([4, 7], [4, 7, 9], [[2, 1], [2]], [11, 12, 14]),
        batch([4], [4, 7, 9], [[2, 1]], [11, 12]),
    ]
    digests = {b.digest(original) for b in [whole, *others]}
    assert len(digests) == 5


def test_a_digest_is_over_original_ids():
    renumbered = np.arange(100)[::-1].copy()
    plain = batch([4, 7], [4, 7, 9], [[2, 1], [2]], [11, 12, 13])
    other = batch([95, 92], [95, 92, 90], [[2, 1], [2]], [11, 12, 13])
    assert plain.digest(np.arange(100)) == other.digest(renumbered)
