import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
