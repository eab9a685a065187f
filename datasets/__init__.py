"""Data sets: callables that return a ``Graph``.

A data set is named in a configuration by a short name of ``BUILTIN``, by an entry point of the
group ``gnn_dist.datasets``, or by the dotted path of any callable that returns a ``Graph``.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnn_dist import plugins
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph

BUILTIN: dict[str, str] = {
    "circuits": "gnn_dist.datasets.circuits.dataset.circuits",
    "generated_circuits": "gnn_dist.datasets.circuits.dataset.generated_circuits",
    "sbm": "gnn_dist.datasets.synthetic.sbm",
    "rmat": "gnn_dist.datasets.synthetic.rmat",
    "planetoid": "gnn_dist.datasets.planetoid.planetoid",
    "ogb": "gnn_dist.datasets.ogb.ogb",
    "ogbn_like": "gnn_dist.datasets.ogbn_like.ogbn_like",
    "files": "gnn_dist.datasets.files.files",
    "routed": "gnn_dist.datasets.routed.routed",
    "hgr": "gnn_dist.datasets.hgr.hgr",
    "england_covid": "gnn_dist.datasets.temporal.covid_job",
    "chickenpox": "gnn_dist.datasets.temporal.chickenpox_job",
    "twitter_tennis": "gnn_dist.datasets.temporal.tennis_job",
    "bitcoin": "gnn_dist.datasets.temporal.bitcoin_job",
    "college_messages": "gnn_dist.datasets.temporal.college_job",
    "generated_snapshots": "gnn_dist.datasets.temporal.synthetic_job",
}


def load(name: str, args: Mapping[str, Any] | None = None) -> Graph:
    """The graph of the data set ``name`` with keyword arguments ``args``.

    Raises ``InputError`` for a name that means nothing, for an argument that the data set does
    not take or misses, and where it returns something else than a ``Graph``.
    """
    args = dict(args or {})
    part = plugins.resolve("dataset", name, BUILTIN)
    plugins.check_arguments("dataset", name, part, args)
    missing = [
        p.name
        for p in inspect.signature(part).parameters.values()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in args
    ]
    if missing:
        raise InputError(
            f"dataset.args: {name!r} needs the argument {missing[0]!r}; set "
            f"dataset.args.{missing[0]}"
        )
    graph = part(**args)
    if not isinstance(graph, Graph):
        raise InputError(
            f"dataset: {name!r} returned {type(graph).__name__}; it must return a "
            "gnn_dist.graph.Graph (see Graph.from_edges, from_pyg, from_scipy)"
        )
    return graph


@dataclass(frozen=True)
class Argument:
    """One argument of a data set, as its signature and docstring give it."""

    name: str
    default: str
    """as Python writes it; ``required`` where there is none"""
    help: str


@dataclass(frozen=True)
class Listing:
    """A built-in data set, described for people."""

    name: str
    summary: str
    arguments: tuple[Argument, ...]


def list_builtin() -> list[Listing]:
    """The built-in data sets with their arguments, by name."""
    listings = []
    for name in sorted(BUILTIN):
        part = plugins.resolve("dataset", name, BUILTIN)
        doc = inspect.getdoc(part) or ""
        helps = _argument_helps(doc)
        arguments = tuple(
            Argument(p.name, "required" if p.default is p.empty else repr(p.default), helps[p.name])
            for p in inspect.signature(part).parameters.values()
        )
        listings.append(Listing(name, doc.partition("\n")[0].strip(), arguments))
    return listings


def _argument_helps(doc: str) -> dict[str, str]:
    """The entries of a docstring's ``Args:`` section: name → text on one line."""
    helps: dict[str, str] = {}
    name = ""
    _, _, section = doc.partition("\nArgs:\n")
    for line in section.splitlines():
        if line and not line.startswith("    "):
            break
        if line.startswith("    ") and not line.startswith("        "):
            name, _, text = line.strip().partition(":")
            helps[name] = text.strip()
        elif line.strip():
            helps[name] += " " + line.strip()
    return helps
