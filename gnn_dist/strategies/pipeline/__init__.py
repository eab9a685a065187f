"""Layer-wise pipelining of deep models: schedules, their simulation, their execution."""

from gnn_dist.strategies.pipeline.executor import PipelineExecutor
from gnn_dist.strategies.pipeline.forecast import PipelinePlan
from gnn_dist.strategies.pipeline.generators import SCHEDULES, generate
from gnn_dist.strategies.pipeline.plan import Candidate, Profile, candidates, plan
from gnn_dist.strategies.pipeline.schedule import Action, Schedule, check
from gnn_dist.strategies.pipeline.simulate import Costs, Timeline, simulate
from gnn_dist.strategies.pipeline.strategy import PipelineStrategy

__all__ = [
    "SCHEDULES",
    "Action",
    "Candidate",
    "Costs",
    "PipelineExecutor",
    "PipelinePlan",
    "PipelineStrategy",
    "Profile",
    "Schedule",
    "Timeline",
    "candidates",
    "check",
    "generate",
    "plan",
    "simulate",
]
