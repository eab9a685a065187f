import os
from pathlib import Path

import pytest
from hypothesis import settings

# Kernels compile inside an example, and a run must not fail by chance; to look for new examples:
# --hypothesis-profile explore
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("steady")

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(os.environ.get("GNN_DIST_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests one of several processes runs: those of a file, if it names no other group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets that developers have beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"the shared data folder {SHARED} is absent (set GNN_DIST_SHARED_DATA)")
    return SHARED
