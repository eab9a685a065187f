"""Dynamic graphs: sequences of snapshots, windows over them, group encodings."""

from gnn_dist.dynamic.events import from_events
from gnn_dist.dynamic.groups import ENCODINGS, Encoding, Segments, encode_group
from gnn_dist.dynamic.normalise import Factors, factors
from gnn_dist.dynamic.sequence import Csc, SnapshotSequence, degree_features
from gnn_dist.dynamic.windows import WindowBatch, Windows, segments

__all__ = [
    "ENCODINGS",
    "Csc",
    "Encoding",
    "Factors",
    "Segments",
    "SnapshotSequence",
    "WindowBatch",
    "Windows",
    "degree_features",
    "encode_group",
    "factors",
    "from_events",
    "segments",
]
