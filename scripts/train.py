#!/usr/bin/env python
"""The training call as a script: read a configuration, change what you like, train.

python scripts/train.py [configs/quickstart.yaml]
"""

import sys
from pathlib import Path

from gnn_dist import config
from gnn_dist.training import jobs

if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "configs/quickstart.yaml")
    job = config.load(file, {"train.epochs": 8, "output": f"runs/{file.stem}-script"})
    metrics = jobs.train(job)
    print({name: round(value, 4) for name, value in metrics["test"].items()})
