import importlib.util
import sys
import types

import pytest

from gnn_dist.errors import InputError
from gnn_dist.interop.dgl import import_dgl


def test_without_dgl_the_remedy_is_named(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "dgl" else find_spec(name)
    )
    with pytest.raises(InputError, match=r"dgl: is not installed; .*pip install 'gnn-dist\[dgl\]'"):
        import_dgl()


def test_a_dgl_that_cannot_be_imported_says_why(monkeypatch, tmp_path):
    (tmp_path / "dgl.py").write_text("raise OSError('libgraphbolt.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dgl", raising=False)
    with pytest.raises(InputError, match=r"dgl: cannot be imported: libgraphbolt.so: no such file"):
        import_dgl()


def test_what_dgl_imports_of_setuptools_is_there(monkeypatch, tmp_path):
    (tmp_path / "dgl.py").write_text(
        "from setuptools.extern.packaging import version\n"
        "newer = version.parse('2.10') > version.parse('2.9')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("dgl", "setuptools.extern", "setuptools.extern.packaging"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_dgl()
    assert isinstance(module, types.ModuleType)
    assert module.newer
    monkeypatch.delitem(sys.modules, "dgl")
