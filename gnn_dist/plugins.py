"""Named parts: a short name, an entry point or a dotted path, with keyword arguments.

Every exchangeable part (partitioner, sampler, model, data set, metric, cache policy) is named in
the configuration as ``{name: ..., args: {...}}``. A name is, in this order, one of ours, an entry
point of the group ``gnn_dist.<kind>s`` (``gnn_dist.strategies``) of an installed package, or a
dotted path to anything importable (``package.module.attribute``). There is no registry to edit.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from gnn_dist.errors import InputError


def resolve(kind: str, name: str, builtin: Mapping[str, str]) -> Any:
    """The function or class that ``name`` means.

    ``builtin`` maps our short names to dotted paths. Raises ``InputError`` when nothing has this
    name, when importing it fails, and when it cannot be called.
    """
    part = _find(kind, name, builtin)
    if not callable(part):
        raise InputError(
            f"{kind}: {name!r} is {type(part).__name__}, which cannot be called; name a function "
            "or a class"
        )
    return part


def _find(kind: str, name: str, builtin: Mapping[str, str]) -> Any:
    path = builtin.get(name)
    if path is None:
        for entry in entry_points(group=_group(kind), name=name):
            try:
                return entry.load()
            except Exception as error:
                raise InputError(
                    f"{kind}: the entry point {name!r} ({entry.value}) cannot be loaded: {error}; "
                    "correct that package or install it again"
                ) from error
        if "." not in name:
            installed = sorted({e.name for e in entry_points(group=_group(kind))})
            raise InputError(
                f"{kind}: there is none named {name!r}; use one of "
                f"{', '.join([*sorted(builtin), *installed])}, or a dotted path "
                f"such as my_package.my_module.my_{kind}"
            )
        path = name
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if path == name and module_name.split(".")[0] == missing.split(".")[0]:
            hint = "is the package installed, or its folder on PYTHONPATH?"
        else:
            hint = f"install the package that provides {missing!r}"
        raise InputError(
            f"{kind}: cannot import {name!r}: no module {missing!r}; {hint}"
        ) from error
    except Exception as error:
        if path != name:  # a fault of ours
            raise
        raise InputError(
            f"{kind}: cannot import {name!r}: {type(error).__name__}: {error}; correct the name or "
            "that module"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise InputError(
            f"{kind}: the module {module_name!r} has no attribute {attribute!r}; check {name!r}"
        ) from error


def _group(kind: str) -> str:
    """The entry point group of a kind of part."""
    return f"gnn_dist.{kind[:-1]}ies" if kind.endswith("y") else f"gnn_dist.{kind}s"


def build(kind: str, name: str, args: Mapping[str, Any], builtin: Mapping[str, str]) -> Any:
    """Resolve ``name`` and bind ``args``: a class is constructed, a function becomes a partial.

    Arguments that the part does not take are an ``InputError`` that lists the ones it takes.
    """
    part: Callable[..., Any] = resolve(kind, name, builtin)
    check_arguments(kind, name, part, args)
    if inspect.isclass(part):
        return part(**args)
    return functools.partial(part, **args) if args else part


def check_arguments(
    kind: str, name: str, part: Callable[..., Any], args: Mapping[str, Any]
) -> None:
    """Raise ``InputError`` for a keyword in ``args`` that ``part`` does not take."""
    parameters = inspect.signature(part).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [a for a in args if a not in parameters]
    if unknown:
        taken = ", ".join(p for p in parameters if p != "self")
        raise InputError(
            f"{kind}.args: {name!r} takes no argument {unknown[0]!r}; it takes: {taken}"
        )


def keywords(part: Callable[..., Any]) -> set[str] | None:
    """The parameters of a callable; None where it takes any keyword."""
    try:
        parameters = inspect.signature(part).parameters.values()
    except ValueError:  # some compiled callables have no signature
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def check_call(
    kind: str, name: str, part: Callable[..., Any], arguments: Sequence[str], *keywords: str
) -> None:
    """Raise ``InputError`` where ``part`` cannot be called with ``arguments`` by position and
    ``keywords`` by name."""
    try:
        signature = inspect.signature(part)
    except ValueError:  # some compiled callables have none
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        raise InputError(
            f"{kind}: {name!r} is called with ({', '.join((*arguments, *keywords))}) and does not "
            f"take that ({error}); see docs/custom_parts.md"
        ) from error


def check_has(kind: str, name: str, part: Any, attributes: Sequence[str]) -> None:
    """Raise ``InputError`` where ``part`` lacks one of ``attributes``."""
    lacking = [a for a in attributes if not hasattr(part, a)]
    if lacking:
        raise InputError(
            f"{kind}: {name!r} has no {lacking[0]!r}, and must have {', '.join(attributes)}; see "
            "docs/custom_parts.md"
        )
