"""The data sets ``circuits`` and ``generated_circuits``: several netlists in one graph."""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_dist import rng
from gnn_dist.datasets.checks import check_count
from gnn_dist.datasets.circuits import features as feature_columns
from gnn_dist.datasets.circuits import labels
from gnn_dist.datasets.circuits.generate import KINDS
from gnn_dist.datasets.circuits.netlist import Kind, Netlist
from gnn_dist.datasets.circuits.suite import expand, family, read_circuit
from gnn_dist.datasets.splits import check_fractions
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS, Graph

_LOG = logging.getLogger(__name__)

DEFAULT_SPLIT: dict[str, tuple[str, ...]] = {
    "train": (
        *("c432", "c880", "c1908", "c2670", "c5315", "c7552", "s13207", "s38417"),
        *("adder", "max", "sin", "cavlc", "i2c", "priority_ckt", "arbiter"),
    ),
    "val": ("c3540", "bar", "ctrl", "dec"),
    "test": ("c499", "c6288", "s38584", "int2float", "router"),
}
"""Real circuits, small to medium; those for testing are no variants of others."""

_FRACTIONS = {"train": 0.7, "val": 0.1, "test": 0.2}

Split = Mapping[str, Sequence[str]] | Mapping[str, float]


def circuits(
    *,
    circuits: Sequence[str] | None = None,
    split: Split | None = None,
    targets: Sequence[str] = ("probability",),
    features: Sequence[str] = ("type", "fan_in", "fan_out", "output"),
    direction: str = "fan_in",
    patterns: int = 16384,
    inverters: int = 1,
    label: str = "gates",
    seed: int = 0,
) -> Graph:
    """Real netlists (ISCAS85, ISCAS89, ITC99, EPFL, or your files), every gate labelled.

    Nodes are inputs, gates, inverters and constants; flip-flops are cut. The circuits follow one
    another in the graph and share no edge. Node tensors: ``x`` float32[N, F], ``y`` float32[N] or
    float32[N, T], ``circuit`` int32[N], the place of the node's circuit in ``info["circuits"]``.

    Args:
        circuits: names, suites, files or globs (.aig, .aag, .bench, .v), or generated circuits
            such as ``ripple_adder:64``; left out, those that ``split`` names.
        split: the circuits of ``train``, ``val`` and ``test``, or the fraction of gates that each
            should get; circuits stay whole, and variants of one circuit together. Left out with
            ``circuits``, a small set of real circuits; left out alone, 0.7, 0.1 and 0.2.
        targets: probability, activity, level, reverse_level, slack, or relative_level,
            relative_reverse_level, relative_slack; several make ``y`` float32[N, T].
        features: type, fan_in, fan_out, output, level, reverse_level.
        direction: how messages flow: ``fan_in`` from fan-ins to gates, ``fan_out`` backwards, or
            ``both``, with the edge tensor ``reverse`` telling them apart.
        patterns: random input patterns of the simulation.
        inverters: unit delay of inverters and buffers in levels and slack, 1 or 0.
        label: which nodes are in the splits: ``gates``, or ``all`` with inputs and constants.
        seed: of the patterns and of a split by fractions.

    Raises ``InputError`` for circuits that do not exist or are damaged, and bad arguments.
    """
    return _load(
        "circuits",
        circuits,
        split,
        _Options(targets, features, direction, patterns, inverters, label, seed),
    )


def generated_circuits(
    *,
    kinds: Sequence[str] = tuple(KINDS),
    widths: Sequence[int] = (4, 6, 8, 12, 16, 24),
    split: Mapping[str, Sequence[int]] | Mapping[str, float] | None = None,
    targets: Sequence[str] = ("relative_slack",),
    features: Sequence[str] = ("type", "fan_in", "fan_out", "output"),
    direction: str = "fan_in",
    patterns: int = 16384,
    inverters: int = 1,
    label: str = "gates",
    seed: int = 0,
) -> Graph:
    """Adders, multipliers and shifters of any width, every gate labelled; nothing is read.

    The graph is as that of ``circuits``, one circuit for each of ``kinds`` at each of ``widths``.

    Args:
        kinds: ripple_adder, lookahead_adder, array_multiplier, wallace_multiplier,
            barrel_shifter.
        widths: of the operands, in bits.
        split: the widths of ``train``, ``val`` and ``test``, or the fraction of gates that each
            should get; left out, 0.7, 0.1 and 0.2.
        targets: as for ``circuits``.
        features: as for ``circuits``.
        direction: as for ``circuits``.
        patterns: as for ``circuits``.
        inverters: as for ``circuits``.
        label: as for ``circuits``.
        seed: as for ``circuits``.

    Raises ``InputError`` for an unknown kind and for widths that are too small or too large.
    """
    kinds = _strings(kinds, "kinds")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(
            f"generated_circuits.kinds: there is none named {unknown[0]!r}; use {', '.join(KINDS)}"
        )

    def named(chosen: Sequence[int], field: str) -> list[str]:
        if not isinstance(chosen, list | tuple):
            raise InputError(
                f"generated_circuits.{field}: must be a list of widths, not {chosen!r}"
            )
        for width in chosen:
            if isinstance(width, bool) or not isinstance(width, int) or width < 1:
                raise InputError(
                    f"generated_circuits.{field}: must hold widths of at least 1, not {width!r}"
                )
        return [f"{kind}:{width}" for width in chosen for kind in kinds]

    by_name: Split | None = None
    everything = named(widths, "widths")
    if isinstance(split, Mapping) and _is_named(split):
        by_name = {part: named(chosen, f"split.{part}") for part, chosen in split.items()}  # type: ignore[arg-type]
        everything = list(dict.fromkeys([c for chosen in by_name.values() for c in chosen]))
    elif split is not None:
        by_name = split  # type: ignore[assignment]
    return _load(
        "generated_circuits",
        everything,
        by_name,
        _Options(targets, features, direction, patterns, inverters, label, seed),
    )


@dataclass
class _Options:
    """The arguments that both data sets share, checked."""

    targets: Sequence[str]
    features: Sequence[str]
    direction: str
    patterns: int
    inverters: int
    label: str
    seed: int

    def __post_init__(self) -> None:
        self.targets = _strings(self.targets, "targets")
        self.features = _strings(self.features, "features")
        labels.check(self.targets)
        feature_columns.check(self.features, self.targets)
        choices = {
            "direction": ("fan_in", "fan_out", "both"),
            "inverters": (0, 1),
            "label": ("gates", "all"),
        }
        for field, allowed in choices.items():
            value = getattr(self, field)
            if value not in allowed or isinstance(value, bool):
                raise InputError(
                    f"circuits.{field}: must be one of {', '.join(map(str, allowed))}, "
                    f"not {value!r}"
                )
        check_count("circuits.patterns", self.patterns, 2, 1 << 32)
        check_count("circuits.seed", self.seed, 0, None)


def _load(
    dataset: str, circuits: Sequence[str] | None, split: Split | None, options: _Options
) -> Graph:
    began = time.perf_counter()
    names, named = _members(circuits, split)
    netlists = [read_circuit(name) for name in names]
    if named is None:
        fractions = check_fractions(split or _FRACTIONS, "circuits.split")  # type: ignore[arg-type]
        gates = {n: netlist.num_gates for n, netlist in zip(names, netlists, strict=True)}
        named = _deal(gates, fractions, options.seed)
    graph = _build(dataset, netlists, names, named, options)
    _LOG.info(
        "%s: %d circuits, %s nodes, read and labelled in %.1f s",
        dataset,
        len(names),
        f"{graph.num_nodes:,}",
        time.perf_counter() - began,
    )
    return graph


def _strings(value: Sequence[str], field: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(v, str) for v in value)
        or len(set(value)) < len(value)
    ):
        raise InputError(f"circuits.{field}: must be a list of different names, not {value!r}")
    return tuple(value)


def _is_named(split: Mapping[str, Any]) -> bool:
    """Whether the split lists its members rather than fractions."""
    lists = [not isinstance(v, int | float) for v in split.values()]
    if any(lists) != all(lists):
        raise InputError(
            f"circuits.split: mixes lists and fractions: {dict(split)!r}; give one of the two"
        )
    return bool(lists) and lists[0]


def _members(
    circuits: Sequence[str] | None, split: Split | None
) -> tuple[list[str], dict[str, list[str]] | None]:
    """The circuits of the graph in order, and those of each split where it lists them."""
    if isinstance(circuits, str):
        circuits = [circuits]
    if circuits is None and split is None:
        split = DEFAULT_SPLIT
    if split is not None and not isinstance(split, Mapping):
        raise InputError(
            f"circuits.split: must give circuits or a fraction for each of {', '.join(SPLITS)}, "
            f"not {split!r}"
        )
    for part in split or {}:
        if part not in SPLITS:
            raise InputError(f"circuits.split: has {part!r}; the splits are {', '.join(SPLITS)}")
    if split is None or not _is_named(split):
        names = expand(circuits or ())
        if not names:
            raise InputError("circuits: none are named; give circuits, or lists in split")
        return names, None
    members = {}
    for part in SPLITS:
        if chosen := split.get(part):
            members[part] = expand([chosen] if isinstance(chosen, str) else chosen)  # type: ignore[arg-type]
    owner: dict[str, str] = {}
    for part, names in members.items():
        for name in names:
            if name in owner:
                raise InputError(
                    f"circuits.split: {name!r} is both in {owner[name]!r} and {part!r}; leave it "
                    "in one"
                )
            owner[name] = part
    if circuits is None:
        return list(owner), members
    names = expand(circuits)
    if absent := [name for name in owner if name not in names]:
        raise InputError(
            f"circuits.split: {absent[0]!r} is not among the circuits; add it to circuits or "
            "leave circuits out"
        )
    return names, members


def _deal(
    gates: Mapping[str, int], fractions: Mapping[str, float], seed: int
) -> dict[str, list[str]]:
    """Deal families of circuits, in an order drawn from ``seed``, to the split furthest behind.

    ``gates`` of each circuit are what is shared out.
    """
    shares = {part: share for part, share in fractions.items() if share > 0}
    families: dict[str, int] = {}
    for name, size in gates.items():
        families[family(name)] = families.get(family(name), 0) + size
    if not shares or len(families) < len(shares):
        raise InputError(
            f"circuits.split: {len(families)} circuits (variants of one circuit count once) "
            f"cannot be split into {', '.join(shares) or 'nothing'}; name more circuits or "
            "change the fractions"
        )
    order = sorted(families, key=lambda f: rng.fold(seed, rng.Stream.DATASET, 2, _digest(f)))
    total = sum(families.values())
    behind = {part: share * total for part, share in shares.items()}
    behind[""] = total - sum(behind.values())  # in no split
    dealt: dict[str, str] = {}
    for place, each in enumerate(order):
        empty = [part for part in shares if part not in dealt.values()]
        must = len(empty) == len(order) - place
        part = max(empty if must else behind, key=lambda p: behind[p])
        dealt[each] = part
        behind[part] -= families[each]
    return {part: [n for n in gates if dealt[family(n)] == part] for part in shares}


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _build(
    dataset: str,
    netlists: list[Netlist],
    names: list[str],
    members: Mapping[str, list[str]],
    options: _Options,
) -> Graph:
    sizes = [netlist.num_nodes for netlist in netlists]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    xs, ys, drivers, gates = [], [], [], []
    for netlist, offset in zip(netlists, first, strict=False):
        key = rng.fold(options.seed, rng.Stream.DATASET, 3, _digest(netlist.name))
        xs.append(feature_columns.compute(netlist, options.features, inverters=options.inverters))
        ys.append(
            labels.compute(
                netlist,
                options.targets,
                patterns=options.patterns,
                key=key,
                inverters=options.inverters,
            )
        )
        drivers.append(netlist.fanin + offset)
        gates.append(netlist.destinations() + offset)
    driver, gate = np.concatenate(drivers), np.concatenate(gates)
    edge = {}
    if options.direction == "both":
        edge["reverse"] = np.repeat(np.array([0, 1], np.float32), driver.size)
        driver, gate = np.concatenate([driver, gate]), np.concatenate([gate, driver])
    elif options.direction == "fan_out":
        driver, gate = gate, driver
    kinds = np.concatenate([netlist.kinds for netlist in netlists])
    circuit = np.repeat(np.arange(len(netlists), dtype=np.int32), sizes)
    labelled = np.ones(kinds.size, bool) if options.label == "all" else kinds > Kind.CONST1
    place = {name: k for k, name in enumerate(names)}
    splits = {
        part: np.flatnonzero(np.isin(circuit, [place[n] for n in chosen]) & labelled)
        for part, chosen in members.items()
    }
    y = np.concatenate(ys)
    return Graph.from_edges(
        driver,
        gate,
        kinds.size,
        node={
            "x": np.concatenate(xs),
            "y": y[:, 0].copy() if len(options.targets) == 1 else y,
            "circuit": circuit,
        },
        edge=edge,
        splits=splits,
        info={
            "name": dataset,
            "task": "regression",
            "targets": list(options.targets),
            "features": feature_columns.names(options.features),
            "circuits": [netlist.name for netlist in netlists],
            "circuit_nodes": sizes,
            "split_circuits": {part: list(chosen) for part, chosen in members.items()},
        },
    )
