"""What a model must beat: a constant, and an MLP that sees the node's own features alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist.batch import BatchIndex, Block, MiniBatch
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.features import FeatureRows, FeatureStore
from gnn_dist.loading import Homes
from gnn_dist.sampling import Topology
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies import data
from gnn_dist.training import metrics
from gnn_dist.training.build import build_trainer, has_nodes, target_names
from gnn_dist.training.progress import Observers


class MLP(nn.Module):
    """Two hidden layers over the seed's own row; the blocks are not looked at."""

    def __init__(self, in_features: int, hidden: int, out_features: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(in_features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, out_features),
        )

    def forward(self, x: Tensor | FeatureRows, blocks: Sequence[Block]) -> Tensor:
        return self.net(x.materialise() if isinstance(x, FeatureRows) else x)


class SeedsAlone:
    """A sampler of no hops: the seeds are the input nodes."""

    edge_ids = False
    edge: tuple[str, ...] = ()

    def sample(
        self,
        topology: Topology,
        seeds: np.ndarray,
        *,
        seed: int,
        index: BatchIndex,
        global_seeds: int,
    ) -> MiniBatch:
        nodes = torch.from_numpy(np.ascontiguousarray(seeds))
        return MiniBatch(index, [], nodes, nodes, global_seeds=global_seeds)


def evaluate(
    job: Config,
    world: World,
    graph: PartitionedGraph,
    test: tuple[Tensor, Tensor, Tensor] | None,
) -> dict[str, dict[str, float]]:
    """Test metrics of the baselines (on rank 0): name → metric → value. Collective.

    ``test`` is what the model's strategy predicted, for its targets; None on other ranks.
    """
    if not (job.train.baselines and has_nodes(graph, "test")):
        return {}
    score = metrics.resolve(job.task.metrics, job.task.kind)
    names = target_names(graph, job)
    name, constant = _constant(job, world, graph)
    values = {}
    if test is not None:
        _, output, target = test
        values[name] = metrics.compute(score, constant.expand_as(output), target, names)
    hidden = int(job.model.args.get("hidden", 64))
    task = data.build_task(job, graph)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        model = MLP(data.width_of(graph, data.INPUTS), hidden, task.out_features)
    alone = SeedsAlone()
    strategy = data.assemble(job, world, graph, model, alone, alone)
    trainer = build_trainer(job, world, graph, strategy, None, Observers(), evaluate=False)
    trainer.fit()
    predictions = strategy.predict("test")
    if predictions is not None:
        values["mlp"] = trainer.score(predictions)
    return values


def _constant(job: Config, world: World, graph: PartitionedGraph) -> tuple[str, Tensor]:
    """What a constant predictor gives: the mean target; the logits of the class frequencies."""
    train, _ = graph.split("train")
    placement = world.placement(graph.num_parts, job.cluster.placement)
    mine = train[Homes.of(graph.offsets, placement)(train) == world.rank]
    features = FeatureStore(graph, placement, world.features)
    target = features.fetch(job.task.target, mine)
    width = data.build_task(job, graph).out_features
    if job.task.kind == "classification":
        target = nn.functional.one_hot(target.long(), width)
    total = world.control.all_reduce_sum(target.double().reshape(len(mine), width).sum(0))
    mean = total / len(train)
    if job.task.kind == "regression":
        return "mean", mean.float()
    if job.task.kind == "classification":
        return "majority", mean.float()
    return "frequency", torch.logit(mean, eps=1e-6).float()
