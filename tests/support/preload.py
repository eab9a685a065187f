"""Imported by the process that ranks are forked from: what every rank would import and load."""

import torch._dynamo
import torch.utils.tensorboard  # noqa: F401
import torchmetrics  # noqa: F401

import gnn_dist.strategies.pipeline
import gnn_dist.strategies.snapshot_job
import gnn_dist.strategies.split
import gnn_dist.training.build  # noqa: F401
from gnn_dist import kernels

kernels.compile_all()
