import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import gnn_dist
from support.job import flags

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray cluster of one host for runs that need no Ray of their own: to start one takes longer
    than they do. Its workers find the modules of ``tests/support``."""
    from ray.cluster_utils import Cluster

    # short: Ray puts Unix sockets there; and its processes may write on while it is removed
    temporary = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
    with pytest.MonkeyPatch.context() as patch, temporary as folder:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_enable_metrics_collection", "0")
        patch.setenv("RAY_worker_niceness", "0")  # beside other tests
        arguments = {"num_cpus": 2, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=arguments)
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.fixture(scope="session")
def runs(tmp_path_factory, ray_address) -> Path:
    """Two runs of one job: on two workers of a Ray cluster, and in one process."""
    folder = tmp_path_factory.mktemp("runs")
    ranks = {
        "ray": {"cluster__workers": "2", "cluster__address": ray_address},
        "alone": {"cluster__workers": "0"},
    }
    for name, changes in ranks.items():
        done = gnn_dist("train", *flags(**changes, output=name), folder=folder)
        assert done.returncode == 0, done.stderr
        (folder / name / "said.json").write_text(json.dumps([done.stdout, done.stderr]))
    return folder
