"""A small job of a deep model on circuits, and its graph."""

import numpy as np

from gnn_dist.config import Config
from gnn_dist.datasets.circuits import generated_circuits
from gnn_dist.storage import PartitionedGraph, assemble


def small_graph(parts: int = 1) -> PartitionedGraph:
    graph = generated_circuits(
        kinds=["ripple_adder", "array_multiplier"],
        widths=[2, 3, 4, 5],
        split={"train": [2, 3, 4], "test": [5]},
        targets=["relative_slack"],
        patterns=64,
    )
    if parts == 1:
        return PartitionedGraph.from_graph(graph)
    assignment = np.arange(graph.num_nodes) * parts // graph.num_nodes
    return assemble(graph, assignment.astype(np.int32), parts)


def job(precision="float64", sampler="circuits", placement="auto", model=None, **args) -> Config:
    return Config.model_validate(
        {
            "dataset": {"name": "generated_circuits"},
            "sampler": {"name": sampler, "args": {"micro_batches": 4, "max_nodes": 150, **args}},
            "model": {
                "name": "gnn_dist.nn.deep.DeepGNN",
                "args": {"width": 16, "layers": 8, **(model or {})},
            },
            "task": {"kind": "regression"},
            "train": {"strategy": "pipeline", "precision": precision},
            "cluster": {"placement": placement},
        }
    )
