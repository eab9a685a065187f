"""What is learnt about a circuit's nodes: probabilities from simulation, times from its depth."""

from collections.abc import Sequence

import numpy as np

from gnn_dist.datasets.circuits.netlist import Kind, Netlist
from gnn_dist.errors import InputError
from gnn_dist.kernels import simulate

TARGETS: dict[str, str] = {
    "probability": "the probability that the node is 1 under random inputs",
    "activity": "the probability that it changes from one random pattern to the next",
    "level": "the longest path from an input to the node, in gates, its own included",
    "reverse_level": "the longest path from the node to an end, in gates, its own left out",
    "slack": "by how many gates its paths are shorter than the longest of the circuit",
    "relative_level": "level / depth of the circuit",
    "relative_reverse_level": "reverse_level / depth of the circuit",
    "relative_slack": "slack / depth of the circuit, in [0, 1]",
}


def signal_statistics(
    netlist: Netlist, *, patterns: int, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """Signal probability and switching activity from simulation, float64[N] each.

    ``patterns`` input vectors are drawn independently, each input 1 with probability one half.
    The probability is the share of patterns in which the node is 1; the activity is the share of
    the ``patterns - 1`` pairs of consecutive patterns between which it changes (a zero-delay
    model: no glitches). The patterns are independent, so its expectation is 2p(1 - p).
    """
    ones, toggles = simulate.simulate_random(
        netlist.kinds, netlist.indptr, netlist.fanin, patterns=patterns, key=key
    )
    return ones / patterns, toggles / max(patterns - 1, 1)


def unit_delays(netlist: Netlist, *, inverters: int = 1) -> np.ndarray:
    """int64[N]: 1 for a gate, ``inverters`` for an inverter or buffer, 0 for inputs, constants."""
    delay = (netlist.kinds > Kind.CONST1).astype(np.int64)
    delay[(netlist.kinds == Kind.NOT) | (netlist.kinds == Kind.BUF)] = inverters
    return delay


def depths(netlist: Netlist, *, inverters: int = 1) -> tuple[np.ndarray, np.ndarray, int]:
    """Level, reverse level (int64[N] each) and depth of the circuit, under unit delays.

    Level is the arrival time at a node; reverse level the longest time from it to an end of a
    path, which is a node that drives nothing, whether or not it is an output. Depth is the latest
    arrival. Slack is ``depth - level - reverse_level``: 0 on the critical paths. ``inverters=0``
    counts as tools for and-inverter graphs do.
    """
    delay = unit_delays(netlist, inverters=inverters)
    level = simulate.longest_from_inputs(netlist.indptr, netlist.fanin, delay)
    reverse = simulate.longest_to_ends(netlist.indptr, netlist.fanin, delay)
    return level, reverse, int(level.max())


def check(targets: Sequence[str]) -> None:
    """Raise ``InputError`` for a target that does not exist."""
    for target in targets:
        if target not in TARGETS:
            raise InputError(
                f"circuits.targets: there is none named {target!r}; use {', '.join(TARGETS)}"
            )


def compute(
    netlist: Netlist, targets: Sequence[str], *, patterns: int, key: int, inverters: int = 1
) -> np.ndarray:
    """The targets of each node, one a column: float32[N, T]."""
    columns: dict[str, np.ndarray] = {}
    if {"probability", "activity"} & set(targets):
        columns["probability"], columns["activity"] = signal_statistics(
            netlist, patterns=patterns, key=key
        )
    if set(targets) - {"probability", "activity"}:
        level, reverse, depth = depths(netlist, inverters=inverters)
        columns.update(level=level, reverse_level=reverse, slack=depth - level - reverse)
        for name in ("level", "reverse_level", "slack"):
            columns[f"relative_{name}"] = columns[name] / max(depth, 1)
    return np.stack([columns[t] for t in targets], axis=1).astype(np.float32)
