"""What a data set must hold for a job, looked at before any worker starts."""

import numpy as np

from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.nn.tasks import Task
from gnn_dist.sampling.topology import check_weights
from gnn_dist.storage import PartitionedGraph


def check_values(job: Config, graph: PartitionedGraph, task: Task) -> None:
    """Raise ``InputError`` for an epoch without a batch, for a target that the task cannot use,
    and for sampling weights below 0."""
    train = len(graph.split_in_parts("train"))
    if train < (job.train.batch_size if job.loader.drop_last else 1):
        raise InputError(
            f"train split: {train} nodes make no batch of {job.train.batch_size}; give training "
            "nodes, a smaller train.batch_size or loader.drop_last: false"
        )
    for index in range(graph.num_parts):
        part = graph.part(index)
        for split, ids in part.splits.items():
            rows = ids - part.first
            try:
                task.check(part.node[job.task.target], rows, part.original_ids[rows])
            except InputError as error:
                raise InputError(f"{error} (split {split!r})") from None
    weights = job.sampler.weights
    if weights is not None and weights in graph.schema.edge:
        _check_weights(graph, weights)


def _check_weights(graph: PartitionedGraph, name: str) -> None:
    check_weights(name, graph.schema.edge[name].shape)
    for index in range(graph.num_parts):
        part = graph.part(index)
        values = part.edge[name]
        if len(values) and values.min() < 0:
            worst = int(np.argmin(values))
            raise InputError(
                f"sampler.weights: edge tensor {name!r} holds {values.reshape(-1)[worst]} for edge "
                f"{part.edge_ids[worst]}; weights must not be negative"
            )
