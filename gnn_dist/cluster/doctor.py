"""What is installed, what works here, and why something does not."""

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from gnn_dist.cluster.tuning import tune_allocator

Status = Literal["ok", "missing", "warning"]

REQUIRED = (
    "gnn-dist",
    "torch",
    "numba",
    "numpy",
    "scipy",
    "pymetis",
    "ray",
    "torchmetrics",
    "pydantic",
    "tensorboard",
)

OPTIONAL = {
    "circuits": ("circuitgraph",),
    "dgl": ("gnn_dist.interop.dgl:import_dgl",),
    "kaminpar": ("kaminpar",),
    "mtkahypar": ("mtkahypar",),
    "networkx": ("networkx",),
    "ogb": ("ogb.nodeproppred",),
    "pyg": ("torch_geometric",),
}
"""What each extra of the package is imported as; ``module:function`` is also called."""

_PROBE_SECONDS = 120
_SHM_WANTED = 128 << 20
_FILES_WANTED = 4096


@dataclass(frozen=True)
class Check:
    """One line of the answer: what was looked at, how it is, and what to do where it is not well.

    ``missing`` is an optional part that cannot be used, ``warning`` something that will disturb
    a run.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def collect() -> list[Check]:
    """Look at everything. Optional parts are imported in a process of their own."""
    return [
        *_versions(),
        *_machine(),
        *_distributed(),
        *parts(),
    ]


def describe() -> str:
    """``collect`` as text for a terminal."""
    checks = collect()
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.detail}")
        if check.remedy and check.status != "ok":
            lines.append(f"{'':<8} {'':<{width}}  -> {check.remedy}")
    return "\n".join(lines)


def _versions() -> list[Check]:
    out = [Check("python", "ok", f"{platform.python_version()} at {sys.executable}")]
    for package in REQUIRED:
        try:
            out.append(Check(package, "ok", version(package)))
        except PackageNotFoundError:
            out.append(Check(package, "warning", "is not installed", f"run: pip install {package}"))
    return out


def _machine() -> list[Check]:
    libc = " ".join(platform.libc_ver()).strip() or "unknown C library"
    tuned = tune_allocator()
    allocator = "freed memory can be kept" if tuned else f"cannot be tuned: {tuned.reason}"
    return [
        Check("system", "ok", f"{platform.platform()}, {libc}"),
        Check("cores", "ok", _cores()),
        Check("memory", "ok", _memory()),
        Check("allocator", "ok", allocator),
        _gpu(),
        _shm(),
        _open_files(),
    ]


def _cores() -> str:
    total, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    text = f"{usable} usable of {total}"
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        text += f", limited to {int(quota[0]) / int(quota[1]):.1f} by the container"
    return f"{text}; torch would use {torch.get_num_threads()} threads"


def _memory() -> str:
    known = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        known[name] = int(value.split()[0]) << 10
    text = f"{_gib(known.get('MemAvailable', 0))} free of {_gib(known.get('MemTotal', 0))}"
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) < known.get("MemTotal", 0):
        text += f", limited to {_gib(int(limit))} by the container"
    return text


def _gpu() -> Check:
    if torch.version.cuda is None:
        return Check("gpu", "ok", "this torch is built for CPUs only")
    if not torch.cuda.is_available():
        return Check(
            "gpu",
            "warning",
            f"torch is built for CUDA {torch.version.cuda}, but sees no GPU",
            "check the driver with nvidia-smi; runs go on with the CPU",
        )
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("gpu", "ok", f"{', '.join(names)}; CUDA {torch.version.cuda}")


def _shm() -> Check:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Check("/dev/shm", "warning", "does not exist; Ray will use a slower folder")
    if size < _SHM_WANTED:
        return Check(
            "/dev/shm",
            "warning",
            f"{_gib(size)}: too small for Ray's object store",
            "start the container with --shm-size=1g",
        )
    return Check("/dev/shm", "ok", _gib(size))


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_WANTED:
        return Check(
            "open files",
            "warning",
            f"at most {soft} (hard limit {hard}); many partitions and a Ray cluster need more",
            f"run: ulimit -n {min(65536, hard) if hard > 0 else 65536}",
        )
    return Check("open files", "ok", f"at most {soft}")


def _distributed() -> list[Check]:
    if not dist.is_available() or not dist.is_gloo_available():
        gloo = Check("gloo", "warning", "this torch has no gloo", "install a torch that has it")
    else:
        gloo = _gloo_host()
    nccl = dist.is_available() and dist.is_nccl_available()
    return [gloo, Check("nccl", "ok", "available" if nccl else "not in this torch (needs CUDA)")]


def _gloo_host() -> Check:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Check(
            "gloo",
            "warning",
            f"the host name {name!r} has no address, so only ranks of this machine can be reached",
            "name the interface of the cluster's network in cluster.network_interface",
        )
    if address.startswith("127.") and dist.is_available():
        return Check("gloo", "ok", f"available; {name} is {address}: ranks on this machine only")
    return Check("gloo", "ok", f"available; {name} is {address}")


def parts(optional: Mapping[str, Sequence[str]] = OPTIONAL) -> list[Check]:
    """Whether Ray Train and the extras can be imported, and the error's first line where not.

    They are imported in another process: a broken compiled package may end its process.
    """
    ray_train = "ray.train.torch"
    answers = _probe([ray_train, *(name for names in optional.values() for name in names)])
    if answers[ray_train]:
        remedy = "run: pip install 'ray[train]'; cluster.workers 0 trains without it"
        out = [Check("ray train", "warning", answers[ray_train], remedy)]
    else:
        out = [Check("ray train", "ok", "available")]
    for extra, names in optional.items():
        errors = [answers[name] for name in names if answers[name]]
        if errors:
            remedy = f"run: pip install 'gnn-dist[{extra}]'"
            out.append(Check(extra, "missing", "; ".join(errors), remedy))
        else:
            out.append(Check(extra, "ok", ", ".join(_with_version(name) for name in names)))
    return out


_PROBE = """
import contextlib, importlib, io, json, sys, warnings
warnings.simplefilter("ignore")
for target in json.loads(sys.argv[1]):
    name, _, function = target.partition(":")
    sys.__stdout__.write(json.dumps([target, "start"]) + chr(10))
    sys.__stdout__.flush()
    answer = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            module = importlib.import_module(name)
            if function:
                getattr(module, function)()
    except BaseException as error:
        answer = f"{error}".strip().splitlines()[0] if f"{error}".strip() else repr(error)
    sys.__stdout__.write(json.dumps([target, "end", answer]) + chr(10))
    sys.__stdout__.flush()
"""


def _probe(targets: list[str]) -> dict[str, str]:
    """The import error of each target; empty where it works."""
    answers: dict[str, str] = {}
    left = list(targets)
    while left:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROBE, json.dumps(left)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_SECONDS,
                text=True,
            )
            lines, ended = done.stdout.splitlines(), f"ended its process ({done.returncode})"
        except subprocess.TimeoutExpired as error:
            lines = (error.stdout or b"").decode().splitlines()
            ended = f"did not import in {_PROBE_SECONDS} s"
        records = [json.loads(line) for line in lines]
        answers.update({r[0]: r[2] for r in records if r[1] == "end"})
        started = [r[0] for r in records if r[1] == "start"]
        rest = [x for x in left if x not in answers]
        if rest:
            # The one that was being imported is the one at fault; go on with those behind it.
            broken = next((x for x in started if x in rest), rest[0])
            answers[broken] = f"{broken.partition(':')[0]} {ended}"
            rest.remove(broken)
        left = rest
    return answers


def _with_version(target: str) -> str:
    module = target.partition(":")[0]
    name = module.rpartition(".")[2] if ":" in target else module.partition(".")[0]
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
