"""Neighbours of nodes wherever they are stored, and samplers over them.

``Topology`` is the seam: ``LocalTopology`` has the whole graph in one part,
``PartitionedTopology`` the parts of a host and, by exchange, those of other hosts. A sampler is
the same code over both and returns the same mini-batch.
"""

from gnn_dist.sampling.labor import LaborSampler
from gnn_dist.sampling.layerwise import FastGcnSampler, LadiesSampler
from gnn_dist.sampling.matrix import MatrixTopology
from gnn_dist.sampling.neighbor import (
    NeighborSampler,
    Share,
    full_neighbour_block,
    make_block,
)
from gnn_dist.sampling.partitioned import PartitionedTopology
from gnn_dist.sampling.relabel import Relabeller
from gnn_dist.sampling.topology import ALL, Keys, LocalTopology, Neighbours, Topology

BUILTIN = {
    "neighbor": "gnn_dist.sampling.neighbor.NeighborSampler",
    "labor": "gnn_dist.sampling.labor.LaborSampler",
    "ladies": "gnn_dist.sampling.layerwise.LadiesSampler",
    "fastgcn": "gnn_dist.sampling.layerwise.FastGcnSampler",
}
"""Short names of samplers."""

__all__ = [
    "ALL",
    "BUILTIN",
    "FastGcnSampler",
    "Keys",
    "LaborSampler",
    "LadiesSampler",
    "LocalTopology",
    "MatrixTopology",
    "NeighborSampler",
    "Neighbours",
    "PartitionedTopology",
    "Relabeller",
    "Share",
    "Topology",
    "full_neighbour_block",
    "make_block",
]
