"""What docs/dynamic.md shows runs as it is written."""

import re
from pathlib import Path

import pytest

from gnn_dist import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dynamic.md"


def test_the_python_runs() -> None:
    names: dict = {}
    for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(text, str(PAGE), "exec"), names)
    assert names["sequence"].num_nodes == 200
    assert names["losses"]
    assert names["scores"]["mse"] > 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_commands_run(number: int, shared_data: Path, tmp_path: Path, monkeypatch) -> None:
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    words = block.splitlines()[number].replace("PATH", str(shared_data / "dynamic")).split()
    monkeypatch.chdir(ROOT)
    extra = ["--output", str(tmp_path), "--train.epochs", "1"]
    if "train" in words:
        extra += ["--cluster.workers", "0"]
    assert cli.main([*words[1:], *extra]) == 0
    assert (tmp_path / ("report.html" if "train" in words else "plan/policies.json")).exists()
