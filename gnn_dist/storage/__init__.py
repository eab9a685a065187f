"""The partition format: cut a graph, write the parts atomically, open them as memory maps.

``assemble`` cuts in memory; ``write`` and ``open_partition`` go through a folder; ``stage`` copies
what one host needs of a folder to a local disk. All give or take a ``PartitionedGraph``.
"""

from gnn_dist.storage.assemble import assemble
from gnn_dist.storage.layout import Part, PartitionedGraph, Schema, TensorSpec
from gnn_dist.storage.manifest import Manifest, parse_manifest, read_manifest
from gnn_dist.storage.read import open_partition
from gnn_dist.storage.stage import stage
from gnn_dist.storage.verify import verify_contents, verify_files
from gnn_dist.storage.write import write

__all__ = [
    "Manifest",
    "Part",
    "PartitionedGraph",
    "Schema",
    "TensorSpec",
    "assemble",
    "open_partition",
    "parse_manifest",
    "read_manifest",
    "stage",
    "verify_contents",
    "verify_files",
    "write",
]
