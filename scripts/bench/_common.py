"""What every bench shares: interleaved timing, the printed table, the JSON file."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("gnn-dist", "torch", "numba", "numpy", "torch_geometric", "dgl", "ray", "pymetis")


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every bench: ``--quick``, ``--json``, ``--repeats``."""
    out = argparse.ArgumentParser(description=description)
    out.add_argument("--quick", action="store_true", help="a small size, under a minute")
    out.add_argument("--json", type=Path, help="also write the result to this file")
    out.add_argument("--repeats", type=int, default=5, help="interleaved repeats (median quoted)")
    return out


def interleave(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each candidate, run in turn (A B A B ...) so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warmup + repeats):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the ratios turn by turn."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def target(name: str, value: float, wanted: float, better: str) -> dict[str, Any]:
    """One entry of ``targets``; ``better`` is ``higher`` or ``lower``."""
    assert better in ("higher", "lower")
    return {"name": name, "value": value, "target": wanted, "better": better}


def machine() -> dict[str, Any]:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def wait_for(processes: Sequence[subprocess.Popen[Any]], limit: float) -> None:
    """Wait ``limit`` seconds for each; all are ended. ``RuntimeError`` where one fails."""
    try:
        codes = [process.wait(limit) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(codes):
        raise RuntimeError(f"the processes ended with exit codes {codes}")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; the columns are the keys of the first row."""
    columns = list(rows[0])
    text = [[_cell(row.get(c, "")) for c in columns] for row in rows]
    width = [max(len(c), *(len(r[i]) for r in text)) for i, c in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, width, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in width) + "|"
    return "\n".join([line(columns), rule, *map(line, text)])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def finish(
    bench: str,
    rows: Sequence[Mapping[str, Any]],
    targets: Sequence[Mapping[str, Any]],
    json_file: Path | None,
) -> None:
    """Print the rows and the targets; write them where asked."""
    print(table(rows))
    print()
    for t in targets:
        met = t["value"] >= t["target"] if t["better"] == "higher" else t["value"] <= t["target"]
        sign = ">=" if t["better"] == "higher" else "<="
        verdict = "met" if met else "missed"
        print(f"{t['name']}: {t['value']:.3g} (target {sign} {t['target']:g}: {verdict})")
    if json_file is not None:
        result = {
            "bench": bench,
            "versions": versions(),
            "machine": machine(),
            "rows": list(rows),
            "targets": list(targets),
        }
        json_file.write_text(json.dumps(result, indent=2) + "\n")
