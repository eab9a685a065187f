"""Splits by fraction, the same for the same seed wherever they are made."""

from collections.abc import Mapping

import numpy as np

from gnn_dist import rng
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS


def check_fractions(fractions: Mapping[str, float], field: str) -> dict[str, float]:
    """``fractions`` by split, in the order train, val, test.

    Raises ``InputError`` unless they are for those splits, not negative, and at most 1 together.
    """
    if not isinstance(fractions, Mapping):
        raise InputError(
            f"{field}: must give a fraction for each split, as in {{train: 0.8, test: 0.2}}, "
            f"not {fractions!r}"
        )
    if unknown := [name for name in fractions if name not in SPLITS]:
        raise InputError(f"{field}: has {unknown[0]!r}; the splits are {', '.join(SPLITS)}")
    for name, value in fractions.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InputError(f"{field}.{name}: must be a fraction from 0 to 1, not {value!r}")
    if sum(fractions.values()) > 1 + 1e-9:
        raise InputError(
            f"{field}: the fractions add up to {sum(fractions.values()):g}; make it at most 1"
        )
    return {name: float(fractions[name]) for name in SPLITS if name in fractions}


def random_split(
    num_nodes: int, fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Disjoint random sets of nodes, ``round(fraction * num_nodes)`` each: int64, ascending."""
    key = rng.fold(seed, rng.Stream.DATASET, 1)
    order = rng.permutation(key, np.arange(num_nodes, dtype=np.int64))
    bounds = np.rint(np.cumsum([0.0, *fractions.values()]) * num_nodes).astype(np.int64)
    return {name: np.sort(order[bounds[i] : bounds[i + 1]]) for i, name in enumerate(fractions)}
