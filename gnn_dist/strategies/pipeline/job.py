"""What a job names for a pipeline: its model, its task and its schedule table, checked."""

from gnn_dist.config import Config, Pipeline
from gnn_dist.errors import InputError
from gnn_dist.nn import Task, build_model
from gnn_dist.nn.deep import DeepGNN
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.base import model_dtype
from gnn_dist.strategies.data import INPUTS, build_task, width_of
from gnn_dist.strategies.pipeline.batches import SubgraphBatches, SubgraphSettings
from gnn_dist.strategies.pipeline.schedule import Schedule


def model_and_task(job: Config, graph: PartitionedGraph) -> tuple[DeepGNN, Task]:
    """What a job names, where the pipeline can run it."""
    SubgraphSettings.of(job.sampler)
    task = build_task(job, graph)
    model = build_model(
        job.model.name,
        job.model.args,
        in_features=width_of(graph, INPUTS),
        out_features=task.out_features,
        num_layers=len(job.sampler.fanouts),
        seed=job.seed,
    )
    if not isinstance(model, DeepGNN):
        raise InputError(
            f"config model.name: {job.model.name!r} cannot be cut into stages; the strategy "
            "pipeline runs the model deep"
        )
    if job.train.precision == "bfloat16":
        raise InputError(
            "config train.precision: bfloat16 cannot hold a residual stream on a grid; use float32"
        )
    if job.sampler.name == "circuits" and "circuit" not in graph.schema.node:
        raise InputError(
            "config sampler.name: 'circuits' needs a node tensor `circuit`, which this graph "
            "lacks; use parts or clusters"
        )
    return model.to(model_dtype(job)), task


def read_table(settings: Pipeline) -> Schedule | None:
    """The configured schedule of the user's own; None where there is none."""
    if settings.table is None:
        return None
    try:
        return Schedule.from_json(settings.table.read_text())
    except OSError as error:
        raise InputError(
            f"config pipeline.table: cannot read {str(settings.table)!r} ({error.strerror}); give "
            "a schedule in JSON"
        ) from error


def check_table(table: Schedule, batches: SubgraphBatches, ranks: int) -> None:
    """A table is for one number of ranks, and for one number of micro-batches."""
    sizes = sorted({len(plans) for plans in batches.epoch(0)})
    if table.num_ranks != ranks or sizes != [table.num_micro]:
        raise InputError(
            f"config pipeline.table: is made for {table.num_ranks} ranks and {table.num_micro} "
            f"micro-batches; this job has {ranks} ranks (cluster.workers) and global batches of "
            f"{' and '.join(map(str, sizes))} micro-batches; make a table for these, or leave "
            "pipeline.table out"
        )
