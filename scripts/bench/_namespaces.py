"""Two hosts on one machine: network namespaces joined by a veth pair, throttled where asked.

``run`` starts one rank of ``_hosts_worker.py`` in each. Needs root, ``ip netns`` and ``tc``.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import wait_for

ADDRESSES = ("10.78.0.1", "10.78.0.2")
DEVICE = "veth0"
PORT = "29555"
HERE = Path(__file__).resolve().parent


def permitted() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc (iproute2) are not installed"
    name = f"gnnprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"ip netns is not permitted: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def hosts(rate: str) -> Iterator[tuple[str, str]]:
    """Names of two joined namespaces; ``rate`` is ``none`` or as ``tc`` has it (``1gbit``)."""
    names = (f"gnn{os.getpid()}a", f"gnn{os.getpid()}b")
    try:
        for name in names:
            _do("ip", "netns", "add", name)
        _do("ip", "link", "add", DEVICE, "netns", names[0], "type", "veth",
            "peer", "name", DEVICE, "netns", names[1])  # fmt: skip
        for name, address in zip(names, ADDRESSES, strict=True):
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _do("ip", "-n", name, "link", "set", DEVICE, "up")
            if rate != "none":
                _do("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf",
                    "rate", rate, "burst", "256kb", "latency", "100ms")  # fmt: skip
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


def run(
    partition: Path, settings: Sequence[Mapping[str, Any]], rate: str, limit: float = 500
) -> list[list[dict[str, Any]]]:
    """What ``_hosts_worker.py`` measured: for each host, one record for each of ``settings``."""
    with tempfile.TemporaryDirectory() as folder, hosts(rate) as names:
        outputs = [Path(folder) / f"{rank}.json" for rank in (0, 1)]
        processes = []
        for rank, name in enumerate(names):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": PORT, "RANK": str(rank), "WORLD_SIZE": "2",
                "GLOO_SOCKET_IFNAME": DEVICE,
            }  # fmt: skip
            job = json.dumps(
                {
                    "partition": str(partition),
                    "settings": list(settings),
                    "address": ADDRESSES[rank],
                    "device": DEVICE,
                    "output": str(outputs[rank]),
                }
            )
            worker = [sys.executable, str(HERE / "_hosts_worker.py"), job]
            processes.append(
                subprocess.Popen(["ip", "netns", "exec", name, *worker], env=environment)
            )
        wait_for(processes, limit)
        return [json.loads(output.read_text()) for output in outputs]
