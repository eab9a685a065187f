import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Kernels compile inside an example, and a run must not fail by chance; to look for new examples:
# --hypothesis-profile explore
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("steady")

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(os.environ.get("GNN_DIST_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


ONE_RAY = {f"tests/distributed/test_{name}.py" for name in ("train", "faults", "launch_ray")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes take the tests file by file, and one all that share a Ray cluster."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "one Ray" if file in ONE_RAY else file

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets that developers have beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"the shared data folder {SHARED} is absent (set GNN_DIST_SHARED_DATA)")
    return SHARED
