import os
from pathlib import Path

import pytest
from hypothesis import settings

# Kernels compile inside an example, and CI must not fail by chance.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(os.environ.get("GNN_DIST_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets that developers have beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"the shared data folder {SHARED} is absent (set GNN_DIST_SHARED_DATA)")
    return SHARED


SLOW = (
    "test_launch_ray.py",
    "test_soak.py",
    "test_the_driver_killed_goes_on_with_resume",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are not yet steady on a busy machine are run on demand."""
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
