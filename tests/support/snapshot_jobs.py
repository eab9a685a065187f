"""A small job over a generated dynamic graph."""

from pathlib import Path
from typing import Any

from gnn_dist import config

ARGS = {"num_nodes": 40, "num_edges": 160, "snapshots": 14, "change": 0.1, "features": 3}


def job(folder: Path | None = None, **overrides: Any) -> config.Config:
    values = {
        "name": "dynamic",
        "dataset": {"name": "generated_snapshots", "args": ARGS},
        "sampler": {
            "name": "windows",
            "args": {"window": 3, "group": 4, "encoding": "flat", "policy": "grouped"},
        },
        "model": {"name": "tgcn", "args": {"hidden": 6}},
        "task": {"kind": "regression", "metrics": ["rmse"]},
        "train": {
            "strategy": "snapshot", "epochs": 3,
            "batch_size": 2, "lr": 0.01, "baselines": False, "precision": "float64",
        },
        "output": None if folder is None else str(folder),
    }  # fmt: skip
    made = config.Config.model_validate(values)
    for key, value in overrides.items():
        section, name = key.split("__")
        part = getattr(made, section)
        if name == "args":
            value = {**part.args, **value}
        made = made.model_copy(update={section: part.model_copy(update={name: value})})
    return made
