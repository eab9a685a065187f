"""DGL: importing it under a current torch.

DGL 1.1.3, the newest wheel that runs with a current torch, imports ``setuptools.extern.packaging``,
which setuptools no longer has; ``packaging`` is put in its place first.
"""

import importlib.util
import os
import sys
import types
import warnings
from typing import Any

from gnn_dist.errors import InputError

_REMEDY = "install it with pip install 'gnn-dist[dgl]'"


def import_dgl() -> Any:
    """The module ``dgl``; ``InputError`` with the remedy where it cannot be imported."""
    if importlib.util.find_spec("dgl") is None:
        raise InputError(f"dgl: is not installed; {_REMEDY}")
    try:
        _lend_packaging()
        # else the first import prints a choice and writes it to the home folder
        os.environ.setdefault("DGLBACKEND", "pytorch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside DGL that nobody here can act on
            import dgl
    except Exception as error:
        raise InputError(f"dgl: cannot be imported: {error}; {_REMEDY}") from error
    return dgl


def _lend_packaging() -> None:
    try:
        import setuptools.extern.packaging  # noqa: F401
    except ImportError:
        import packaging
        import packaging.version

        extern = types.ModuleType("setuptools.extern")
        extern.packaging = packaging  # type: ignore[attr-defined]
        sys.modules.setdefault("setuptools.extern", extern)
        sys.modules.setdefault("setuptools.extern.packaging", packaging)
