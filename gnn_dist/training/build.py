"""Puts a trainer together from a configuration, for the model of a run and for its baselines."""

import math
from pathlib import Path

import torch

from gnn_dist.cluster import World
from gnn_dist.config import Config, Train
from gnn_dist.errors import InputError
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import Strategy
from gnn_dist.training import metrics
from gnn_dist.training.progress import Observer
from gnn_dist.training.trainer import Trainer


def build_trainer(
    job: Config,
    world: World,
    graph: PartitionedGraph,
    strategy: Strategy,
    folder: Path | None,
    observer: Observer,
    evaluate: bool = True,
) -> Trainer:
    """The trainer of a strategy; ``folder`` is where checkpoints go, None for none."""
    return Trainer(
        strategy,
        build_optimizer(strategy.model, job.train),
        job.train,
        metrics.resolve(job.task.metrics, job.task.kind),
        target_names(graph, job),
        world.control,
        folder,
        observer,
        graph,
        job.fingerprint(),
        evaluate=evaluate and has_nodes(graph, "val"),
    )


def build_optimizer(model: torch.nn.Module, settings: Train) -> torch.optim.Optimizer:
    """The configured optimiser over all trainable parameters of a model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError(
            f"model: {type(model).__name__} has no parameters to train; keep its layers as "
            "attributes, lists of them in nn.ModuleList"
        )
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.lr, momentum=0.9, weight_decay=settings.weight_decay
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)


def target_names(graph: PartitionedGraph, job: Config) -> list[str]:
    """Names of the columns of a regression target: the data set's own, else numbers. A task of
    another kind has none."""
    if job.task.kind != "regression":
        return []
    names = list(graph.info.get("targets", []))
    width = math.prod(graph.schema.node[job.task.target].shape)
    return names if len(names) == width else [str(k) for k in range(width)]


def has_nodes(graph: PartitionedGraph, split: str) -> bool:
    return split in graph.split_names and graph.split(split)[0].size > 0
