"""What an import may cost, and what it may not pull in."""

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gnn_dist


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_command_line_answers_without_torch_or_ray():
    assert not {"torch", "ray", "numba"} & loaded("import gnn_dist.cli")


def test_other_libraries_are_imported_only_when_used():
    found = loaded("import gnn_dist.training.jobs")
    assert not {"torch_geometric", "dgl", "ogb", "ray", "circuitgraph"} & found


def test_every_module_can_be_imported():
    for info in pkgutil.walk_packages(gnn_dist.__path__, "gnn_dist."):
        if info.name.endswith("__main__"):
            continue
        __import__(info.name)


def test_every_package_is_installed_with_the_others():
    root = Path(__file__).parents[1]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(p.parent.relative_to(root).parts) for p in root.glob("gnn_dist/**/__init__.py")
    } | {
        ".".join(("gnn_dist", *p.parent.relative_to(root).parts))
        for top in ("datasets", "partitioners")
        for p in root.glob(f"{top}/**/__init__.py")
    }
    assert set(listed) == found
