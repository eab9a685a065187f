"""Deep circuit models: reversible, group-sparse residual blocks."""

from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.inner import GridRangeError
from gnn_dist.nn.deep.model import DeepGNN, ReversibleStack

__all__ = ["DeepConfig", "DeepGNN", "GridRangeError", "ReversibleStack"]
