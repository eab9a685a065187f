"""Exact counts of global batches: layer by layer, rank by rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_dist.batch import MiniBatch

VERTICES, EDGES, CROSS_EDGES, ROWS_SHUFFLED, SOURCES = range(5)


@dataclass(frozen=True, eq=False)
class LayerCounts:
    """What every rank does for each of some global batches.

    Attributes:
        values: int64[batches, ranks, layers + 1, 5]. Layer 0 is the input: its vertices are the
            feature rows that a rank reads of its own. Of a layer above: vertices whose rows the
            rank computes; their in-edges; those of them whose source's row comes from another
            rank; rows that come from other ranks; and all rows that the layer reads.
    """

    values: np.ndarray

    @classmethod
    def of(cls, batches: Sequence[np.ndarray]) -> "LayerCounts":
        """``batches`` int64[ranks, layers + 1, 5] each, at least one."""
        return cls(np.stack(list(batches)))

    @classmethod
    def gathered(cls, ranks: Sequence[np.ndarray]) -> "LayerCounts":
        """``ranks`` int64[batches, layers + 1, 5] each."""
        return cls(np.stack(list(ranks), axis=1))

    def a_batch(self, what: int) -> np.ndarray:
        """The mean over batches of one count: float64[ranks, layers + 1]."""
        mean: np.ndarray = self.values[..., what].mean(axis=0)
        return mean

    def imbalance(self) -> np.ndarray:
        """The busiest rank's vertices over the mean of ranks, averaged over batches, a layer:
        float64[layers + 1]; 1 where a layer is empty."""
        return _imbalance(self.values[..., VERTICES])

    def work_imbalance(self) -> float:
        """The same of all layers together, a vertex and an edge counted alike."""
        work = self.values[..., (VERTICES, EDGES)].sum(axis=(2, 3))
        return float(_imbalance(work[..., None])[0])

    def table(self) -> list[dict[str, Any]]:
        """One row a layer, sums over the ranks, in the mean of batches."""
        names = {"edges": EDGES, "cross edges": CROSS_EDGES, "rows shuffled": ROWS_SHUFFLED}
        vertices = self.a_batch(VERTICES)
        sums = {name: self.a_batch(what).sum(axis=0) for name, what in names.items()}
        imbalance = self.imbalance()
        return [
            {
                "layer": layer_name(layer),
                "vertices": float(vertices[:, layer].sum()),
                "vertices by rank": [round(float(n)) for n in vertices[:, layer]],
                **{name: float(values[layer]) for name, values in sums.items()},
                "imbalance": float(imbalance[layer]),
            }
            for layer in range(vertices.shape[1])
        ]


def layer_name(layer: int) -> str:
    return str(layer) if layer else "input"


def beside(predicted: LayerCounts, measured: LayerCounts) -> list[dict[str, Any]]:
    """Both tables in one: each measured column beside the predicted one."""
    rows = []
    for before, after in zip(predicted.table(), measured.table(), strict=True):
        row = {"layer": after.pop("layer")}
        for name, value in after.items():
            row[f"{name}, predicted"] = before[name]
            row[name] = value
        rows.append(row)
    return rows


def count(
    batch: MiniBatch, owners: np.ndarray, takers: np.ndarray, num_ranks: int, data_parallel: int
) -> np.ndarray:
    """What each rank would do for a global batch that one process has sampled whole.

    Args:
        batch: all seeds of a global batch, drawn node by node.
        owners: int[n], the rank of every input node.
        takers: int[s], the rank that computes the loss of every seed.
        data_parallel: layers next to the seeds that every rank computes for its own seeds; with
            all of them, these are the counts of data parallelism.

    Returns int64[num_ranks, layers + 1, 5], see ``LayerCounts``.
    """
    depth = len(batch.blocks)
    out = np.zeros((num_ranks, depth + 1, 5), np.int64)
    computes = [takers == rank for rank in range(num_ranks)]
    for hop, block in enumerate(reversed(batch.blocks)):
        layer = depth - hop
        sources, destinations = block.indices.numpy(), block.destinations().numpy()
        owner = owners[: block.num_src]
        for rank in range(num_ranks):
            here = computes[rank][destinations]
            reads = np.zeros(block.num_src, bool)
            reads[: block.num_dst] = computes[rank]
            reads[sources[here]] = True
            row = out[rank, layer]
            row[VERTICES] = np.count_nonzero(computes[rank])
            row[EDGES] = np.count_nonzero(here)
            row[SOURCES] = np.count_nonzero(reads)
            computes[rank] = reads
            if hop + 1 >= data_parallel:
                row[CROSS_EDGES] = np.count_nonzero(owner[sources[here]] != rank)
                row[ROWS_SHUFFLED] = np.count_nonzero(owner[reads] != rank)
                computes[rank] = owner == rank
    for rank in range(num_ranks):
        out[rank, 0, VERTICES] = np.count_nonzero(computes[rank])
    return out


def _imbalance(work: np.ndarray) -> np.ndarray:
    """``work`` [batches, ranks, n] → [n]."""
    mean = work.mean(axis=1)
    ratio = np.divide(work.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0)
    out: np.ndarray = ratio.mean(axis=0)
    return out
