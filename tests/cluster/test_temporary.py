"""What killed processes leave behind is found and removed; what is in use is not."""

import subprocess
import sys

from gnn_dist.cluster import temporary

MAKE = (
    "import time; from gnn_dist.cluster.temporary import make_folder; "
    "print(make_folder('hidden-', {!r}), flush=True); time.sleep(60)"
)


def test_the_folder_of_a_killed_process_is_removed_and_no_other(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", MAKE.format(str(tmp_path))], stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = other.stdout.readline().strip()
        mine = temporary.make_folder("hidden-", str(tmp_path))
        (tmp_path / "gnn-dist-notes").mkdir()
        temporary.sweep(str(tmp_path))
        assert len(list(tmp_path.iterdir())) == 3
        other.kill()
    temporary.sweep(str(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} == {mine.name, "gnn-dist-notes"}
    assert theirs.startswith(str(tmp_path / "gnn-dist-"))
