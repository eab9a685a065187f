"""``python -m gnn_dist.kernels``: compile all kernels now, where a first run should not."""

import sys

from gnn_dist import kernels

if sys.argv[1:] == ["backwards"]:
    kernels.compile_backwards()
else:
    print(f"kernels are compiled ({kernels.compile_all():.0f} s)")
