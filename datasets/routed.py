"""The data set ``routed``: placed and routed designs, labelled by the router itself."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gnn_dist.datasets.def_format import Design, read_def
from gnn_dist.errors import InputError
from gnn_dist.graph import SPLITS, Graph

DRIVERS = frozenset(("Z", "ZN", "Q", "QN", "CO", "COUT", "SUM", "Y", "GCK", "X", "HI", "LO"))
"""Names of output pins in common libraries (Nangate45, SkyWater, ASAP7)."""

_ADDER = re.compile(r"(.*__)?[FH]A", re.IGNORECASE)
"""Full and half adders: ``S`` is their sum, and an input (select) of every other cell."""

TARGETS = ("length", "vias")
FEATURES = ("type", "degree", "drive", "placement")


def routed(
    *,
    path: str,
    split: Mapping[str, Sequence[str]] | None = None,
    targets: Sequence[str] = ("length",),
    features: Sequence[str] = ("type", "degree", "drive"),
) -> Graph:
    """Routed designs in DEF, every net labelled with what the router made of it.

    Nodes are cells, ports and signal nets; edges lead from the driver of a net to the net and from
    the net to its sinks, as the signal goes.
    Node tensors: ``x`` float32[N, F], ``y`` float32[N] or float32[N, T] (zero but for nets),
    ``circuit`` int32[N], the place of the node's design in ``info["circuits"]``.

    Args:
        path: a folder of .def files, or one file.
        split: names of the designs of ``train``, ``val`` and ``test`` (the file's name up to
            ``_route``); left out, every fifth is for testing and one is for validation.
        targets: ``length``, log2(1 + routed length in micrometres); ``vias``, log2(1 + vias).
        features: ``type`` (kind of node, family of the cell), ``degree`` (log2(1 + in and out)),
            ``drive`` (log2 of the cell's strength), ``placement`` (half perimeter of a net, and
            position: what is known before routing).

    Raises ``InputError`` for files that are missing or malformed and for unknown names.
    """
    _known("targets", targets, TARGETS)
    _known("features", features, FEATURES)
    folder = Path(path)
    files = [folder] if folder.is_file() else sorted(folder.glob("*.def"))
    if not files:
        raise InputError(f"routed.path: {path!r} holds no .def file; give one, or a folder of them")
    names = [f.stem.removesuffix("_route") for f in files]
    split = _default_split(names) if split is None else split
    where = {name: k for k, name in enumerate(names)}
    for part, chosen in split.items():
        if part not in SPLITS:
            raise InputError(f"routed.split: {part!r} is not one of {', '.join(SPLITS)}")
        for name in chosen:
            if name not in where:
                raise InputError(
                    f"routed.split.{part}: there is no design {name!r}; use {', '.join(names)}"
                )
    used = [n for n in names if any(n in chosen for chosen in split.values())]
    designs = [_One(read_def(files[where[n]])) for n in used]
    first = np.concatenate(([0], np.cumsum([d.num_nodes for d in designs])))
    families = sorted({f for d in designs for f in d.families})
    nets = [np.arange(d.first_net, d.num_nodes) + first[k] for k, d in enumerate(designs)]
    y = np.concatenate([d.labels(targets) for d in designs])
    return Graph.from_edges(
        np.concatenate([d.src + first[k] for k, d in enumerate(designs)]),
        np.concatenate([d.dst + first[k] for k, d in enumerate(designs)]),
        int(first[-1]),
        node={
            "x": np.concatenate([d.columns(features, families) for d in designs]),
            "y": y[:, 0] if len(targets) == 1 else y,
            "circuit": np.repeat(np.arange(len(used), dtype=np.int32), np.diff(first)),
        },
        splits={
            part: np.concatenate([nets[used.index(n)] for n in used if n in chosen])
            for part, chosen in split.items()
            if chosen
        },
        info={"name": "routed", "circuits": used, "targets": list(targets)},
    )


def _known(field: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    if isinstance(given, str) or not given:
        raise InputError(f"routed.{field}: give a list, such as [{allowed[0]}], not {given!r}")
    for name in given:
        if name not in allowed:
            raise InputError(
                f"routed.{field}: there is none named {name!r}; use {', '.join(allowed)}"
            )


def _default_split(names: Sequence[str]) -> dict[str, list[str]]:
    test = list(names[4::5])
    rest = [n for n in names if n not in test]
    val = rest[-1:] if len(rest) > 1 else []
    return {"train": [n for n in rest if n not in val], "val": val, "test": test}


class _One:
    """A design as nodes: cells, then ports, then nets."""

    def __init__(self, design: Design) -> None:
        self.design = design
        cells = {cell.name: k for k, cell in enumerate(design.cells)}
        ports = {port.name: k + len(cells) for k, port in enumerate(design.ports)}
        self.first_net = len(cells) + len(ports)
        self.num_nodes = self.first_net + len(design.nets)
        driving = {p.name for p in design.ports if p.direction == "INPUT"}
        macros = [cell.macro for cell in design.cells]
        src, dst = [], []
        for k, net in enumerate(design.nets):
            for cell, pin in net.pins:
                at = ports.get(pin) if cell == "PIN" else cells.get(cell)
                if at is None:
                    raise InputError(
                        f"def {design.name}: net {net.name!r} names {cell} {pin}, which does not "
                        "exist; declare it under COMPONENTS or PINS"
                    )
                drives = pin in driving if cell == "PIN" else _is_output(macros[at], pin)
                src.append(at if drives else self.first_net + k)
                dst.append(self.first_net + k if drives else at)
        self.src, self.dst = np.array(src, np.int64), np.array(dst, np.int64)
        self.families = {_family(m) for m in macros}

    def labels(self, targets: Sequence[str]) -> np.ndarray:
        out = np.zeros((self.num_nodes, len(targets)), np.float32)
        nets, units = self.design.nets, self.design.units
        for t, target in enumerate(targets):
            values = [n.length / units if target == "length" else n.vias for n in nets]
            out[self.first_net :, t] = np.log2(1 + np.array(values))
        return out

    def columns(self, features: Sequence[str], families: Sequence[str]) -> np.ndarray:
        blocks = []
        cells, ports = self.design.cells, self.design.ports
        for feature in features:
            if feature == "type":
                kind = np.zeros((self.num_nodes, 3 + len(families)), np.float32)
                kind[len(cells) : self.first_net, 0] = 1
                kind[len(cells) : self.first_net, 1] = [p.direction == "INPUT" for p in ports]
                kind[self.first_net :, 2] = 1
                at = {f: 3 + k for k, f in enumerate(families)}
                kind[np.arange(len(cells)), [at[_family(c.macro)] for c in cells]] = 1
                blocks.append(kind)
            elif feature == "degree":
                both = [np.bincount(e, minlength=self.num_nodes) for e in (self.dst, self.src)]
                blocks.append(np.log2(1 + np.stack(both, axis=1)))
            elif feature == "drive":
                strength = np.zeros((self.num_nodes, 1), np.float32)
                strength[: len(cells), 0] = [np.log2(_strength(c.macro)) for c in cells]
                blocks.append(strength)
            else:
                blocks.append(self._placement())
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")

    def _placement(self) -> np.ndarray:
        out = np.zeros((self.num_nodes, 3), np.float32)
        out[self.first_net :, 0] = np.log2(1 + self.design.half_perimeters())
        points = [(c.x, c.y) for c in self.design.cells] + [(p.x, p.y) for p in self.design.ports]
        where = np.array(points).reshape(-1, 2)
        if len(where):
            size = np.nanmax(where, axis=0, initial=1.0, where=~np.isnan(where))
            out[: self.first_net, 1:] = np.nan_to_num(where / size)
        return out


def _is_output(macro: str, pin: str) -> bool:
    return pin in DRIVERS or (pin == "S" and _ADDER.match(macro) is not None)


def _family(macro: str) -> str:
    """``NAND2_X1`` and ``NAND2_X4`` are of one family."""
    return re.sub(r"_X?\d+$", "", macro)


def _strength(macro: str) -> float:
    found = re.search(r"_X(\d+)$", macro)
    return float(found.group(1)) if found else 1.0
