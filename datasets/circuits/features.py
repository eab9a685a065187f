"""What a model sees of a node: its kind and its place, nothing of what is to be learnt."""

from collections.abc import Sequence

import numpy as np

from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.netlist import Kind, Netlist
from gnn_dist.errors import InputError

FEATURES: dict[str, str] = {
    "type": "the kind of the node, one-hot",
    "fan_in": "log2(1 + number of fan-ins)",
    "fan_out": "log2(1 + number of fan-outs)",
    "output": "1 where the node drives an output",
    "level": "level / depth of the circuit",
    "reverse_level": "reverse level / depth of the circuit",
}
_DEPTHS = {"level", "reverse_level"}


def check(features: Sequence[str], targets: Sequence[str]) -> None:
    """Raise ``InputError`` for an unknown feature and for one that gives a target away."""
    for feature in features:
        if feature not in FEATURES:
            raise InputError(
                f"circuits.features: there is none named {feature!r}; use {', '.join(FEATURES)}"
            )
    if not features:
        raise InputError("circuits.features: is empty; give at least 'type'")
    given = _DEPTHS & set(features)
    told = set(targets) - {"probability", "activity"}
    if given and told:
        raise InputError(
            f"circuits.features: {sorted(given)[0]!r} gives the target {sorted(told)[0]!r} away; "
            "leave one of them out"
        )


def names(features: Sequence[str]) -> list[str]:
    """The name of each column."""
    columns: list[str] = []
    for feature in features:
        columns += [f"is_{k.name.lower()}" for k in Kind] if feature == "type" else [feature]
    return columns


def compute(netlist: Netlist, features: Sequence[str], *, inverters: int = 1) -> np.ndarray:
    """float32[N, F], columns as ``names`` tells."""
    blocks: list[np.ndarray] = []
    for feature in features:
        if feature == "type":
            blocks.append(netlist.kinds[:, None] == np.arange(len(Kind), dtype=np.uint8))
            continue
        if feature == "fan_in":
            column = np.log2(1 + netlist.fan_in_counts())
        elif feature == "fan_out":
            column = np.log2(1 + netlist.fan_out_counts())
        elif feature == "output":
            column = np.zeros(netlist.num_nodes)
            column[netlist.outputs] = 1
        else:
            level, reverse, depth = labels.depths(netlist, inverters=inverters)
            column = (level if feature == "level" else reverse) / max(depth, 1)
        blocks.append(column[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")
