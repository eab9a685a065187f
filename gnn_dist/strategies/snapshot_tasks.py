"""What is predicted from a window: the head, the loss, the metrics.

A task is asked for the loss of the windows of a step. Embeddings may lie on several ranks, each
with some nodes of all windows or all nodes of some windows; what a task needs from elsewhere goes
through ``Embeddings.rows``. Losses are sums; they are divided by the step's true number of targets,
which every rank knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist import rng
from gnn_dist.cluster.exchange import Exchange
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.dynamic.windows import WindowBatch
from gnn_dist.errors import InputError
from gnn_dist.strategies.snapshot_scope import Counts, Draws, shuffle


@dataclass
class Embeddings:
    """The output rows of a step that one rank holds.

    Attributes:
        h: float[rows, windows, out].
        windows: positions in the batch of the windows held.
        ids: int64[rows] node ids held.
        owner: int[N] rank of each node, or None where every rank holds all nodes of its windows.
        exchange, counts: to read rows of other ranks.
    """

    h: Tensor
    windows: tuple[int, ...]
    ids: np.ndarray
    owner: np.ndarray | None
    exchange: Exchange
    counts: Counts

    def pairs(self, pairs: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, np.ndarray]:
        """Rows of both ends of this rank's share of node pairs.

        ``pairs[b]`` int64[2, n_b] are those of the batch's window ``b``, the same on every rank.
        Returns float[m, out] twice and the share's positions in all pairs, ascending. Where nodes
        are dealt to ranks, a pair belongs to the rank of its first node and the rows of second
        nodes are fetched from theirs.
        """
        sizes = [p.shape[1] for p in pairs]
        ends = np.concatenate(list(pairs), axis=1)
        window = np.repeat(np.arange(len(pairs)), sizes)
        held = len(self.windows)
        column = np.full(len(pairs), -1, np.int64)
        column[list(self.windows)] = np.arange(held)
        flat = self.h.reshape(-1, self.h.shape[2])
        if self.owner is None:
            mine = np.flatnonzero(column[window] >= 0)
            at = column[window[mine]]
            first, second = (torch.from_numpy(e[mine] * held + at) for e in ends)
            return flat[first], flat[second], mine
        local = np.full(self.owner.size, -1, np.int64)
        local[self.ids] = np.arange(self.ids.size)
        rank, size = self.exchange.rank, self.exchange.size
        rank_of_pair = self.owner[ends[0]]
        wanted = ends[1] * len(pairs) + window
        needed = [
            np.unique(wanted[(rank_of_pair == r) & (self.owner[ends[1]] != r)]) for r in range(size)
        ]
        send = []
        for r in range(size):
            theirs = needed[r][self.owner[needed[r] // held] == rank] if r != rank else None
            index = [] if theirs is None else local[theirs // held] * held + theirs % held
            send.append(torch.as_tensor(np.asarray(index, np.int64)))
        source = self.owner[needed[rank] // held]
        receive = [torch.from_numpy(np.flatnonzero(source == r)) for r in range(size)]
        come = shuffle(flat, self.exchange, send, receive, needed[rank].size, self.counts)
        mine = np.flatnonzero(rank_of_pair == rank)
        first = local[ends[0][mine]] * held + window[mine]
        here = local[ends[1][mine]]
        second = np.where(
            here >= 0,
            here * held + window[mine],
            flat.shape[0] + np.searchsorted(needed[rank], wanted[mine]),
        )
        every = torch.cat((flat, come))
        return flat[torch.from_numpy(first)], every[torch.from_numpy(second)], mine


class Task(Protocol):
    """Head, loss and metrics of one kind of prediction.

    Attributes:
        horizon: snapshots after a window that its target needs (0 or 1).
    """

    horizon: int

    def count(self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws) -> int:
        """True targets of a step."""
        ...

    def loss(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> Tensor:
        """Sum of the losses of this rank's targets."""
        ...

    def predictions(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> dict[str, np.ndarray]:
        """This rank's predictions and targets, one row a target."""
        ...

    def metrics(self, gathered: dict[str, np.ndarray]) -> dict[str, float]:
        """Metrics over the predictions of all ranks."""
        ...

    def outputs(
        self, gathered: dict[str, np.ndarray], sequence: SnapshotSequence
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, outputs, targets) as the trainer's metrics take them."""
        ...


class NodeRegression(nn.Module):
    """The target ``y`` of the window's last snapshot, for every active node: squared error.

    The head is ReLU and a linear layer.
    """

    horizon = 0

    def __init__(self, features: int, targets: int = 1, relu: bool = True) -> None:
        super().__init__()
        self.relu = relu
        self.head = nn.Linear(features, targets)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(torch.relu(h) if self.relu else h)

    def _targets(self, sequence: SnapshotSequence) -> np.ndarray:
        if sequence.y is None or sequence.y.dtype.kind != "f":
            raise InputError(
                "task: node_regression needs a float target y[T, N] or y[T, N, C]; this data set "
                "has none"
            )
        y = sequence.y
        return y[..., None] if y.ndim == 2 else y

    def count(self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws) -> int:
        active = sum(int(sequence.active_at(t).sum()) for t in batch.targets)
        return active * self._targets(sequence).shape[2]

    def _truth(self, e: Embeddings, batch: WindowBatch, sequence: SnapshotSequence) -> tuple:
        times = [batch.targets[b] for b in e.windows]
        y = self._targets(sequence)[times][:, e.ids].transpose(1, 0, 2)
        active = np.stack([sequence.active_at(t)[e.ids] for t in times], axis=1) if times else None
        return y, active

    def loss(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> Tensor:
        if not embeddings.windows:
            return embeddings.h.sum() * 0
        y, active = self._truth(embeddings, batch, sequence)
        out = self(embeddings.h)
        error = out - torch.from_numpy(np.ascontiguousarray(y)).to(out.device, out.dtype)
        if not active.all():
            error = error * torch.from_numpy(active).to(out.device)[..., None]
        return (error * error).sum()

    def predictions(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> dict[str, np.ndarray]:
        if not embeddings.windows:
            return {}
        y, active = self._truth(embeddings, batch, sequence)
        out = self(embeddings.h).detach().cpu().numpy()
        window = np.broadcast_to(np.array(batch.starts)[list(embeddings.windows)], active.shape)
        node = np.broadcast_to(embeddings.ids[:, None], active.shape)
        return {
            "window": window[active], "node": node[active], "prediction": out[active],
            "target": y[active],
        }  # fmt: skip

    def metrics(self, gathered: dict[str, np.ndarray]) -> dict[str, float]:
        error = gathered["prediction"].astype(np.float64) - gathered["target"]
        squared = float((error**2).mean())
        return {"mse": squared, "rmse": squared**0.5, "mae": float(np.abs(error).mean())}

    def outputs(
        self, gathered: dict[str, np.ndarray], sequence: SnapshotSequence
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids are ``window start · N + node``."""
        ids = gathered["window"].astype(np.int64) * sequence.num_nodes + gathered["node"]
        return ids, gathered["prediction"], gathered["target"]


class _PairHead(nn.Module):
    """Two layers over both ends' rows side by side."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * features, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(torch.cat((first, second), dim=1))))


class EdgeClassification(nn.Module):
    """The class of every edge of the snapshot after the window: cross entropy, F1."""

    horizon = 1

    def __init__(self, features: int, hidden: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.classes = classes
        self.head = _PairHead(features, hidden, classes)

    def _labels(self, sequence: SnapshotSequence) -> list[np.ndarray]:
        if sequence.edge_labels is None:
            raise InputError(
                "task: edge_classification needs edge labels; this data set has none (bitcoin has)"
            )
        return sequence.edge_labels

    def _edges(
        self, batch: WindowBatch, sequence: SnapshotSequence
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        known = self._labels(sequence)
        pairs, labels = [], []
        for t in batch.targets:
            keys = sequence.keys(t + 1)
            dst = keys // sequence.num_nodes
            pairs.append(np.stack((keys - dst * sequence.num_nodes, dst)))
            labels.append(known[t + 1])
        return pairs, labels

    def training_pairs(
        self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> list[np.ndarray]:
        """int64[2, n_b] of each window: sources above destinations."""
        return self._edges(batch, sequence)[0]

    def count(self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws) -> int:
        return max(1, sum(self._labels(sequence)[t + 1].size for t in batch.targets))

    def _scores(self, e: Embeddings, batch: WindowBatch, sequence: SnapshotSequence) -> tuple:
        pairs, labels = self._edges(batch, sequence)
        first, second, mine = e.pairs(pairs)
        return self.head(first, second), np.concatenate(labels)[mine], mine

    def loss(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> Tensor:
        scores, labels, _ = self._scores(embeddings, batch, sequence)
        truth = torch.from_numpy(labels).to(scores.device)
        return nn.functional.cross_entropy(scores, truth, reduction="sum")

    def predictions(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> dict[str, np.ndarray]:
        scores, labels, mine = self._scores(embeddings, batch, sequence)
        return {
            "window": np.full(mine.size, batch.starts[0]), "node": mine,
            "scores": scores.detach().cpu().numpy(),
            "prediction": scores.detach().argmax(1).cpu().numpy(), "target": labels,
        }  # fmt: skip

    def outputs(
        self, gathered: dict[str, np.ndarray], sequence: SnapshotSequence
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows are edges in order of window and edge key; ids count them. Outputs are logits."""
        return np.arange(gathered["node"].size), gathered["scores"], gathered["target"]

    def metrics(self, gathered: dict[str, np.ndarray]) -> dict[str, float]:
        predicted, true = gathered["prediction"], gathered["target"]
        scores, weights = [], []
        for c in range(self.classes):
            hit = float(((predicted == c) & (true == c)).sum())
            wrong = float(((predicted == c) ^ (true == c)).sum())
            scores.append(2 * hit / (2 * hit + wrong) if hit + wrong else 0.0)
            weights.append(float((true == c).sum()))
        present = [s for s, w in zip(scores, weights, strict=True) if w]
        return {
            "f1": scores[1] if self.classes == 2 else float(np.mean(present)),
            "f1_macro": float(np.mean(present)) if present else 0.0,
            "f1_weighted": float(np.average(scores, weights=weights)) if sum(weights) else 0.0,
            "accuracy": float((predicted == true).mean()) if true.size else 0.0,
        }


class LinkPrediction(nn.Module):
    """Which edges the snapshot after the window has: logistic loss against sampled negatives.

    For every edge ``u -> v``, ``negatives`` nodes ``w`` are drawn for ``u``, keyed by (epoch,
    window, edge), so that they are the same on any number of ranks; in evaluation the key has no
    epoch. A drawn ``w`` that is a true neighbour counts as drawn. MRR is the mean of 1 / rank of
    ``v`` among its negatives (ties count half); MAP the mean over sources of the average precision
    of their candidates.
    """

    horizon = 1

    def __init__(
        self, features: int, hidden: int = 32, negatives: int = 1, test_negatives: int = 20
    ) -> None:
        super().__init__()
        if negatives < 1 or test_negatives < 1:
            raise InputError(
                f"task.negatives: {negatives} and {test_negatives}; give at least 1 of each"
            )
        self.negatives, self.test_negatives = negatives, test_negatives
        self.head = _PairHead(features, hidden, 1)

    def _pairs(
        self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        number = self.negatives if draws.training else self.test_negatives
        pairs, labels, edges = [], [], []
        for start, t in zip(batch.starts, batch.targets, strict=True):
            keys = sequence.keys(t + 1)
            dst = keys // sequence.num_nodes
            src = keys - dst * sequence.num_nodes
            epoch = draws.epoch if draws.training else -1
            key = rng.fold(draws.seed, rng.Stream.NEGATIVES, epoch, start)
            bits = np.stack([rng.node_draws(key, keys, c) for c in range(number)], axis=1)
            drawn = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 * sequence.num_nodes
            other = np.concatenate((dst[:, None], drawn.astype(np.int64)), axis=1)
            pairs.append(np.stack((np.repeat(src, number + 1), other.reshape(-1))))
            positive = np.zeros((keys.size, number + 1), np.int64)
            positive[:, 0] = 1
            labels.append(positive.reshape(-1))
            edges.append(np.repeat(keys, number + 1))
        return pairs, labels, edges

    def training_pairs(
        self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> list[np.ndarray]:
        """int64[2, n_b] of each window: sources above candidates."""
        return self._pairs(batch, sequence, draws)[0]

    def count(self, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws) -> int:
        number = self.negatives if draws.training else self.test_negatives
        return max(1, (number + 1) * sum(sequence.num_edges(t + 1) for t in batch.targets))

    def loss(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> Tensor:
        pairs, labels, _ = self._pairs(batch, sequence, draws)
        first, second, mine = embeddings.pairs(pairs)
        scores = self.head(first, second)[:, 0]
        truth = torch.from_numpy(np.concatenate(labels)[mine]).to(scores.device, scores.dtype)
        return nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="sum")

    def predictions(
        self, embeddings: Embeddings, batch: WindowBatch, sequence: SnapshotSequence, draws: Draws
    ) -> dict[str, np.ndarray]:
        pairs, labels, edges = self._pairs(batch, sequence, draws)
        first, second, mine = embeddings.pairs(pairs)
        scores = self.head(first, second)[:, 0].detach().cpu().numpy()
        window = np.repeat(np.array(batch.starts), [p.shape[1] for p in pairs])
        return {
            "window": window[mine], "node": mine,
            "source": np.concatenate([p[0] for p in pairs])[mine],
            "edge": np.concatenate(edges)[mine], "prediction": scores,
            "target": np.concatenate(labels)[mine],
        }  # fmt: skip

    def outputs(
        self, gathered: dict[str, np.ndarray], sequence: SnapshotSequence
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A row is an edge: its score, then its negatives'; the target numbers (window, source)."""
        width = self.test_negatives + 1
        scores = gathered["prediction"].reshape(-1, width)
        source = _groups(gathered["window"], gathered["source"])[::width]
        return gathered["edge"][::width], scores, source.astype(np.int64)

    def metrics(self, gathered: dict[str, np.ndarray]) -> dict[str, float]:
        return ranking_metrics(
            gathered["prediction"], gathered["target"],
            _groups(gathered["window"], gathered["edge"]),
            _groups(gathered["window"], gathered["source"]),
        )  # fmt: skip


def mrr(output: Tensor, target: Tensor) -> float:
    """A metric of jobs: rows of ``output`` are an edge's score and then its negatives'."""
    return _ranked(output, target)["mrr"]


def map(output: Tensor, target: Tensor) -> float:
    """A metric of jobs: mean average precision over the sources that ``target`` numbers."""
    return _ranked(output, target)["map"]


def _ranked(output: Tensor, target: Tensor) -> dict[str, float]:
    edges, candidates = output.shape
    labels = np.zeros((edges, candidates), np.int64)
    labels[:, 0] = 1
    return ranking_metrics(
        output.numpy().reshape(-1),
        labels.reshape(-1),
        np.repeat(np.arange(edges), candidates),
        np.repeat(target.numpy(), candidates),
    )


def _groups(*columns: np.ndarray) -> np.ndarray:
    """The same number for rows that agree in all columns: int64[n]."""
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)


def ranking_metrics(
    scores: np.ndarray, labels: np.ndarray, edge: np.ndarray, source: np.ndarray
) -> dict[str, float]:
    """MRR over edges (one positive each) and MAP over sources.

    ``edge`` and ``source``: int64[n] group of each candidate. A tie counts as half a rank in MRR;
    in average precision, negatives come before positives of the same score.
    """
    positive = labels == 1
    best = np.full(int(edge.max(initial=-1)) + 1, np.nan)
    best[edge[positive]] = scores[positive]
    above = (scores > best[edge]) & ~positive
    equal = (scores == best[edge]) & ~positive
    rank = 1 + np.bincount(edge, above) + 0.5 * np.bincount(edge, equal)
    order = np.lexsort((labels, -scores, source))
    group, hit = source[order], positive[order]
    begin = np.r_[True, group[1:] != group[:-1]]
    start = np.maximum.accumulate(np.where(begin, np.arange(group.size), 0))
    hits = np.cumsum(hit)
    before = hits[start] - hit[start]
    precision = (hits - before) / (np.arange(group.size) - start + 1)
    total = np.bincount(group, hit)
    mean = np.bincount(group, np.where(hit, precision, 0)) / np.maximum(total, 1)
    return {"mrr": float((1 / rank).mean()), "map": float(mean[total > 0].mean())}


TASKS: dict[str, Any] = {
    "node_regression": NodeRegression,
    "edge_classification": EdgeClassification,
    "link_prediction": LinkPrediction,
}
