"""A snapshot sequence as one ``Graph``: partitioned, stored and opened like any other.

Every edge stands once for each run of consecutive snapshots in which it does not change: edge
tensors ``start`` and ``stop`` (int32, snapshots ``start .. stop - 1``), and ``weight`` and
``label`` where there are any. Node tensors ``x_t`` float[N, T, F], ``y_t`` float[N, T] or
[N, T, C], ``active`` bool[N, T]. A partitioner sees the union of all snapshots, an edge as often as
it has runs.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

if TYPE_CHECKING:
    from gnn_dist.storage import PartitionedGraph


def to_graph(sequence: SnapshotSequence) -> Graph:
    """The union graph of a sequence; ``from_partition`` gives the sequence back."""
    keys, times, weights, labels = [], [], [], []
    for t, now in enumerate(sequence.key_range(0, sequence.num_snapshots)):
        keys.append(now)
        times.append(np.full(now.size, t, np.int32))
        weight = sequence.weight(t, now)
        weights.append(np.ones(now.size, np.float32) if weight is None else weight)
        if sequence.edge_labels is not None:
            labels.append(sequence.edge_labels[t])
    key, time, weight = (np.concatenate(parts) for parts in (keys, times, weights))
    label = np.concatenate(labels) if labels else np.zeros(key.size, np.int64)
    order = np.lexsort((time, key))
    key, time, weight, label = key[order], time[order], weight[order], label[order]
    if not key.size:
        raise InputError("snapshots: no snapshot has an edge; check the data set's arguments")
    first = np.r_[
        True,
        (key[1:] != key[:-1])
        | (time[1:] != time[:-1] + 1)
        | (weight[1:] != weight[:-1])
        | (label[1:] != label[:-1]),
    ]
    last = np.r_[first[1:], True]
    dst = key[first] // sequence.num_nodes
    edge = {"start": time[first], "stop": (time[last] + 1).astype(np.int32)}
    if sequence.weights is not None:
        edge["weight"] = weight[first]
    if sequence.edge_labels is not None:
        edge["label"] = label[first]
    node = {"x_t": np.ascontiguousarray(sequence.x.transpose(1, 0, 2))}
    if sequence.y is not None:
        node["y_t"] = np.ascontiguousarray(np.swapaxes(sequence.y, 0, 1))
    if sequence.active is not None:
        node["active"] = np.ascontiguousarray(sequence.active.T)
    node["y"] = np.zeros(sequence.num_nodes, np.float32)  # what a static job would predict: nothing
    everyone = np.arange(sequence.num_nodes)
    info: dict[str, Any] = {**sequence.info, "snapshots": sequence.num_snapshots}
    if sequence.times is not None:
        info["times"] = [float(border) for border in sequence.times]
    return Graph.from_edges(
        key[first] - dst * sequence.num_nodes,
        dst,
        sequence.num_nodes,
        node=node,
        edge=edge,
        splits=dict.fromkeys(("train", "val", "test"), everyone),
        info=info,
    )


def from_partition(graph: "PartitionedGraph") -> SnapshotSequence:
    """The sequence of a graph that ``to_graph`` made, in original node ids.

    Raises ``InputError`` for a graph that is not one.
    """
    if "snapshots" not in graph.info or "x_t" not in graph.schema.node:
        raise InputError(
            "dataset: this graph is no snapshot sequence; name one of "
            "gnn_dist.datasets.temporal (covid, bitcoin, ...), or build it with "
            "gnn_dist.dynamic.stored.to_graph"
        )
    snapshots, num_nodes = int(graph.info["snapshots"]), graph.num_nodes
    original = graph.original_ids()
    found: dict[str, list[np.ndarray]] = {}
    nodes: dict[str, np.ndarray] = {}
    for p in range(graph.num_parts):
        part = graph.part(p)
        dst = np.repeat(part.original_ids, np.diff(part.indptr)).astype(np.int64)
        src = original[part.indices]
        columns = {"key": dst * num_nodes + src, **{k: part.edge[k] for k in part.edge}}
        for name, values in columns.items():
            found.setdefault(name, []).append(np.asarray(values))
        for name in ("x_t", "y_t", "active"):
            if name in part.node:
                rows = np.asarray(part.node[name])
                whole = nodes.setdefault(name, np.empty((num_nodes, *rows.shape[1:]), rows.dtype))
                whole[part.original_ids] = rows
    edge = {name: np.concatenate(parts) for name, parts in found.items()}
    edges, weights, labels = [], [], []
    for t in range(snapshots):
        alive = np.flatnonzero((edge["start"] <= t) & (edge["stop"] > t))
        alive = alive[np.argsort(edge["key"][alive])]
        key = edge["key"][alive]
        dst = key // num_nodes
        edges.append(np.stack((key - dst * num_nodes, dst)))
        if "weight" in edge:
            weights.append(edge["weight"][alive])
        if "label" in edge:
            labels.append(edge["label"][alive])
    times = graph.info.get("times")
    return SnapshotSequence.from_lists(
        edges,
        num_nodes,
        weights=weights or None,
        x=nodes["x_t"].transpose(1, 0, 2),
        y=np.swapaxes(nodes["y_t"], 0, 1) if "y_t" in nodes else None,
        active=nodes["active"].T if "active" in nodes else None,
        edge_labels=labels or None,
        times=None if times is None else np.array(times),
        info={k: v for k, v in graph.info.items() if k not in ("snapshots", "times")},
    )


def as_graph(read: Callable[..., SnapshotSequence]) -> Callable[..., Graph]:
    """A reader of sequences as a data set for jobs: same arguments, returns the ``Graph``."""

    @functools.wraps(read)
    def load(*args: Any, **kwargs: Any) -> Graph:
        return to_graph(read(*args, **kwargs))

    load.__annotations__ = {**read.__annotations__, "return": Graph}
    return load
