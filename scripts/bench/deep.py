"""Deep circuit models: peak memory and seconds of a step, by depth and by way of going back.

One circuit as one sub-graph, the same width, depth, inner function and number of parameters for
all. Peak memory is the resident memory of a fresh process above its own before the first step
(weights, data and libraries are in the base; the gradients of the weights are taken off), with an
allocator that gives freed tensors back, the same for all. Seconds are of steps taken in turn in one
process, with the allocator as it is.

    plain              every f leaves what its gradient needs (our kernels)
    checkpoint         the state before every block is kept
    groupaddrev        PyG's GroupAddRev around our convolution
    groupaddrev_own    PyG's GroupAddRev around LayerNorm, torch.topk and PyG's SAGEConv
    dgl                DGL's GroupRevRes around DGL's SAGEConv, where DGL is installed
    reversible         ours, rows aggregated in full
    reversible_packed  ours, rows aggregated as values and a bit mask
"""

import contextlib
import ctypes
import gc
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from _common import finish, interleave, median_ratio, parser, table, target
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.kernels import group_sparse, topk
from gnn_dist.kernels.lanes import EXPANSIONS, lowest_bit
from gnn_dist.nn.deep import DeepConfig, DeepGNN
from gnn_dist.nn.deep.inner import Inner
from gnn_dist.nn.deep.parameters import StackTensors, initialise
from gnn_dist.nn.deep.topology import prepare
from gnn_dist.nn.deep.workspace import Tape, Workspace, fresh_tape

DEPTHS = (8, 28, 56, 112, 224, 448)
WIDTH, GROUPS, FEATURES = 64, 2, 16
OURS = {
    "plain": {"mode": "plain"},
    "checkpoint": {"mode": "checkpoint"},
    "reversible": {"mode": "reversible"},
    "reversible_packed": {"mode": "reversible", "packed": True},
}
PEERS = ("groupaddrev", "groupaddrev_own", "dgl")
KEEPS_ALL = ("plain", "checkpoint")
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""glibc's own first threshold, kept: tensors that are freed leave the process. Otherwise it rises,
and what is resident tells of the holes in the heap: 150 to 187 MiB for one and the same step."""


def circuit(gates: int) -> tuple[Block, Tensor]:
    """An array multiplier of about ``gates`` gates; features are its gate kinds and noise."""
    from gnn_dist.datasets.circuits import read_circuit

    netlist = read_circuit(f"array_multiplier:{round((gates / 5.9) ** 0.5)}")
    n = netlist.num_nodes
    block = Block(
        torch.from_numpy(netlist.indptr.astype(np.int64)),
        torch.from_numpy(netlist.fanin.astype(np.int32)),
        n,
        ids=torch.arange(n),
    )
    x = torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(0))
    x[torch.arange(n), torch.from_numpy(netlist.kinds.astype(np.int64)) % FEATURES] += 1
    return block, x


class _Ours(torch.autograd.Function):
    """f(u) by our kernels as a function of its own, for ``GroupAddRev``."""

    @staticmethod
    def forward(ctx: Any, inner: Inner, u: Tensor, *tensors: Tensor) -> Tensor:
        p = StackTensors(*(t.detach() for t in tensors))
        keep = any(ctx.needs_input_grad)
        n = u.shape[0]
        tape = (
            fresh_tape(inner.config, n, inner.edges, inner.dtype) if keep else inner.shared_tape(n)
        )
        rows = u.detach().contiguous()
        inner.columns(0, 0, rows, None, p, tape)
        out = inner.product(p, tape) + p.bias
        ctx.inner = inner
        if keep:
            mask = torch.from_numpy(tape.mask.view(np.int32))
            ctx.save_for_backward(rows, tape.stats, tape.values, mask, tape.z, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        u, stats, values, mask, z, *tensors = ctx.saved_tensors
        p = StackTensors(*(t.detach() for t in tensors))
        grads = StackTensors(*(torch.zeros_like(t) for t in p))
        grad_u = torch.zeros_like(u)
        tape = Tape(stats, values, mask.numpy().view(np.uint32), z)
        ctx.inner.backward(0, 0, u, p, tape, grad.contiguous(), grad_u, grads, None)
        return None, grad_u, *grads


class OurConv(nn.Module):
    def __init__(self, inner: Inner, p: StackTensors) -> None:
        super().__init__()
        self.inner = inner
        self.tensors = nn.ParameterList([t.clone() for t in p])

    def forward(self, u: Tensor, edge_index: Tensor) -> Tensor:
        return _Ours.apply(self.inner, u, *self.tensors)


class TorchConv(nn.Module):
    """The same f of a library's layers: LayerNorm, top-k by torch, the library's SAGE."""

    def __init__(self, sage: nn.Module, call: Callable[[nn.Module, Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH // GROUPS)
        self.sage, self.call = sage, call
        self.keep = DeepConfig(width=WIDTH).kept

    def forward(self, u: Any, second: Any) -> Tensor:
        u, graph = (u, second) if isinstance(u, Tensor) else (second, u)  # DGL puts it first
        y = self.norm(u)
        kept = torch.topk(y.detach(), self.keep, dim=1).indices
        y = y * torch.zeros_like(y).scatter_(1, kept, 1.0)
        return self.call(self.sage, graph, y)


class PeerModel(nn.Module):
    def __init__(self, blocks: list[nn.Module], graph: Any, graph_first: bool) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.graph, self.graph_first = graph, graph_first

    def forward(self, x: Tensor, blocks: list[Block]) -> Tensor:
        h = self.encoder(x)
        for block in self.blocks:
            h = block(self.graph, h) if self.graph_first else block(h, self.graph)
        return self.head(self.norm(h))


def build(name: str, layers: int, block: Block) -> nn.Module:
    d = WIDTH // GROUPS
    if name in OURS:
        return DeepGNN(FEATURES, 1, width=WIDTH, layers=layers, **OURS[name])  # type: ignore[arg-type]
    if name == "dgl":
        from gnn_dist.interop.dgl import import_dgl

        dgl = import_dgl()
        from dgl.nn import GroupRevRes, SAGEConv

        graph = dgl.graph(tuple(block.edge_index()), num_nodes=block.num_dst)
        blocks = [
            GroupRevRes(
                TorchConv(SAGEConv(d, d, "mean"), lambda sage, g, y: sage(g, y)), groups=GROUPS
            )
            for _ in range(layers)
        ]
        return PeerModel(blocks, graph, True)
    from torch_geometric.nn import SAGEConv
    from torch_geometric.nn.models.rev_gnn import GroupAddRev

    if name == "groupaddrev_own":
        blocks = [
            GroupAddRev(
                nn.ModuleList(
                    TorchConv(SAGEConv(d, d), lambda sage, g, y: sage(y, g)) for _ in range(GROUPS)
                )
            )
            for _ in range(layers)
        ]
    else:
        config = DeepConfig(width=WIDTH, layers=layers, grid=None)
        p = initialise(config, 0, layers, 0)
        workspace = Workspace()
        topology = prepare(block, config.conv, config.direction, np.dtype(np.float32))
        blocks = [
            GroupAddRev(
                nn.ModuleList(
                    OurConv(Inner(config, topology, workspace, torch.float32), p.block(layer, i))
                    for i in range(GROUPS)
                )
            )
            for layer in range(layers)
        ]
    return PeerModel(blocks, block.edge_index(), False)


def step(model: nn.Module, x: Tensor, block: Block) -> None:
    for p in model.parameters():
        p.grad = None
    model(x, [block]).square().mean().backward()


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def worker(name: str, layers: int, gates: int) -> dict[str, Any]:
    """Peak MiB above the base, of one process that does nothing else."""
    torch.set_num_threads(1)
    small, tiny = circuit(200)
    step(build(name, 2, small), tiny, small)  # code is compiled and libraries are loaded
    block, x = circuit(gates)
    model = build(name, layers, block)
    block.transposed()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what libraries have freed is no room for the step
    Path("/proc/self/clear_refs").write_text("5")
    base = _status("VmRSS")
    start = time.perf_counter()
    step(model, x, block)
    step(model, x, block)
    seconds = (time.perf_counter() - start) / 2
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    peak = _status("VmHWM") - base
    return {
        "name": name,
        "layers": layers,
        "peak_mib": round(peak - weights, 1),
        "gradients_mib": round(weights, 1),
        "base_mib": round(base, 1),
        "step_s": round(seconds, 2),
    }


def memory(
    names: list[str], depths: list[int], gates: int, state: Path | None, minutes: float
) -> list[dict[str, Any]] | None:
    """A row for each name and depth; None where the time is over, and ``state`` holds the rest."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    if state is not None and state.exists():
        lines = [json.loads(line) for line in state.read_text().splitlines()]
        known = {(r["name"], r["layers"]): r for r in lines if r["gates"] == gates}
    start = time.monotonic()
    slopes: dict[str, float] = {}
    for layers in depths:
        for name in names:
            row = known.get((name, layers))
            if row is None:
                if time.monotonic() - start > 60 * minutes:
                    return None
                row = {**_measured(name, layers, gates, slopes.get(name, 0.0)), "gates": gates}
                known[name, layers] = row
                if state is not None:
                    with state.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                print(row, flush=True)
            if isinstance(row["peak_mib"], float) and name in KEEPS_ALL:
                slopes[name] = row["peak_mib"] / layers
    return [known[name, layers] for layers in depths for name in names]


def _measured(name: str, layers: int, gates: int, slope: float) -> dict[str, Any]:
    """What a fresh process measures, or why it did not."""
    free, expected = _available(), slope * layers
    if expected > 0.7 * free:
        reason = f"needs {expected:,.0f} MiB, {free:,.0f} are free"
        return {"name": name, "layers": layers, "peak_mib": reason}
    command = [sys.executable, __file__, "--worker", name, str(layers), str(gates)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3600, env={**os.environ, **GIVEN_BACK}
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1][:120]
        return {"name": name, "layers": layers, "peak_mib": reason}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _available() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def times(names: list[str], layers: int, gates: int, repeats: int) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    block, x = circuit(gates)
    block.transposed()
    candidates = {}
    for name in names:
        try:
            model = build(name, layers, block)
        except Exception as error:
            print(f"{name}: left out: {error}")
            continue
        candidates[name] = lambda m=model: step(m, x, block)
    return interleave(candidates, repeats)


@numba.njit(nogil=True, error_model="numpy")
def select_dense(u, norm, eps, gain, shift, k, stats, mask, out):
    """As ``topk.select``, straight into rows in full, [N, d]: zero where nothing is kept."""
    n, d = u.shape
    y, num_words = np.empty(d, u.dtype), mask.shape[1]
    words, spare = np.empty(num_words, np.uint32), np.empty(num_words, np.uint32)
    guess = u.dtype.type(0.5)
    for i in range(n):
        topk.normalise_row(u, i, norm, eps, gain, shift, y, stats)
        found = topk._choose(y, d, k, words, spare, guess)
        guess += (found - guess) * u.dtype.type(0.125)
        for c in range(d):
            out[i, c] = 0
        for w in range(num_words):
            word = words[w]
            mask[i, w] = word
            while word != 0:
                column = 32 * w + lowest_bit(word)
                out[i, column] = y[column]
                word &= word - np.uint32(1)


def degrees(nodes: int, repeats: int, d: int = 64, k: int = 16) -> list[dict[str, Any]]:
    """Selection and aggregation over mean degree: rows in full against rows packed, each written
    by the selection itself.

    Sources are uniform over the nodes, the worst case for caches. Saved bytes are what the
    gradient of the selection and of the weights needs to be kept.
    """
    rng = np.random.default_rng(0)
    u = rng.standard_normal((nodes, d)).astype(np.float32)
    one, gain, shift = np.float32(1), np.ones(d, np.float32), np.zeros(d, np.float32)
    stats, own = np.zeros((nodes, 2), np.float32), np.zeros(nodes, np.float32)
    values = np.zeros(nodes * k + group_sparse.PADDING, np.float32)
    mask = np.zeros((nodes, topk.mask_words(d)), np.uint32)
    full, out, ids = np.zeros(nodes * d, np.float32), np.zeros(nodes * d, np.float32), np.arange(1)
    packed_rows = values[: nodes * k].reshape(nodes, k)
    eps, rows = np.float32(1e-5), []

    for degree in (2, 4, 8, 16, 32, 64):
        indptr = np.arange(nodes + 1) * degree
        indices = rng.integers(0, nodes, nodes * degree).astype(np.int32)
        weight = np.full(nodes * degree, 1 / degree, np.float32)
        csr = (0, nodes, indptr, indices, weight, own)

        def dense(csr=csr) -> None:
            select_dense(u, 1, eps, gain, shift, k, stats, mask, full.reshape(nodes, d))
            group_sparse.aggregate(*csr, full, d, 0, full, d, 0, False, out, d, 0, d)

        def packed(csr=csr) -> None:
            topk.select(
                0, nodes, u, 1, eps, gain, shift, k, np.uint64(0), ids, 0, one, False,
                stats, packed_rows, mask,
            )  # fmt: skip
            group_sparse.aggregate_packed(*csr, values, mask, out, d, 0, d, EXPANSIONS)

        dense()
        wanted = out.copy()
        packed()
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
        seconds = interleave({"dense": dense, "packed": packed}, repeats)
        row_full, row_packed = 4 * d, 4 * k + 4 * mask.shape[1]
        rows.append(
            {
                "mean_degree": degree,
                "dense_ms": 1e3 * float(np.median(seconds["dense"])),
                "packed_ms": 1e3 * float(np.median(seconds["packed"])),
                "dense/packed": median_ratio(seconds["dense"], seconds["packed"]),
                "moved_mb_dense": nodes * degree * row_full / 1e6,
                "moved_mb_packed": nodes * degree * row_packed / 1e6,
                "saved_mb_dense": nodes * row_full / 1e6,
                "saved_mb_packed": nodes * row_packed / 1e6,
            }
        )
    return rows


def main() -> None:
    if "--worker" in sys.argv:
        at = sys.argv.index("--worker")
        name, layers, gates = sys.argv[at + 1 : at + 4]
        print(json.dumps(worker(name, int(layers), int(gates))))
        return
    arguments = parser(__doc__ or "")
    arguments.add_argument("--state", type=Path, help="keep finished rows here and go on from them")
    arguments.add_argument("--minutes", type=float, default=1e9, help="of the memory table a call")
    arguments.add_argument("--only", nargs="+", choices=[*OURS, *PEERS], help="of the memory table")
    arguments.add_argument("--depths", type=int, nargs="+", help="of the memory table")
    options = arguments.parse_args()
    gates = 5_000 if options.quick else 50_000
    depths = [4, 8, 16] if options.quick else list(DEPTHS)
    names = [*OURS, *PEERS]
    print(f"circuit of about {gates:,} gates, width {WIDTH}, {GROUPS} groups, one thread\n")
    if options.only or options.depths:  # rows for --state, nothing else
        memory(
            options.only or names, options.depths or depths, gates, options.state, options.minutes
        )
        return
    by_depth = memory(names, depths, gates, options.state, options.minutes)
    if by_depth is None:
        print(f"time is over; the same command goes on from {options.state}")
        return
    timed_layers = 8 if options.quick else 28
    seconds = times(names, timed_layers, gates, options.repeats)
    torch.set_num_threads(1)
    by_degree = degrees(50_000, max(options.repeats, 9 if options.quick else 41))

    def peak(name: str, layers: int) -> float:
        found = [r for r in by_depth if (r["name"], r["layers"]) == (name, layers)]
        value = found[0]["peak_mib"]
        return float(value) if isinstance(value, int | float) else float("nan")

    shallow, deep, reference = (8, 16, 16) if options.quick else (56, 448, 224)
    reversible = seconds["reversible"]
    pays = next(
        (
            row["mean_degree"]
            for i, row in enumerate(by_degree)
            if all(r["dense/packed"] > 1 for r in by_degree[i:])
        ),
        float("inf"),
    )
    targets = [
        target(
            "memory_saved_percent_224",
            100 * (1 - peak("reversible", reference) / peak("plain", reference)),
            95,
            "higher",
        ),
        target(
            "memory_growth_448_56",
            peak("reversible", deep) / peak("reversible", shallow),
            1.05,
            "lower",
        ),
        target("step_vs_plain", median_ratio(reversible, seconds["plain"]), 1.5, "lower"),
        target(
            "step_vs_groupaddrev_same",
            median_ratio(reversible, seconds["groupaddrev"]),
            0.85,
            "lower",
        ),
        target(
            "step_vs_groupaddrev",
            median_ratio(reversible, seconds["groupaddrev_own"]),
            0.6,
            "lower",
        ),
        target("sparse_pays_from_degree", pays, 16, "lower"),
    ]
    rows = [{"table": "memory", **r} for r in by_depth]
    rows += [
        {"table": "time", "name": name, "layers": timed_layers, "step_s": float(np.median(s))}
        for name, s in seconds.items()
    ]
    rows += [{"table": "degree", **r} for r in by_degree]
    for title, field in (("MiB at the peak", "peak_mib"), ("seconds a step there", "step_s")):
        found = {(r["name"], r["layers"]): r.get(field, "-") for r in by_depth}
        print(f"{title}, by blocks (processes of their own)\n")
        print(table([{"name": name, **{str(d): found[name, d] for d in depths}} for name in names]))
        print()
    print(f"selection and aggregation, 64 columns of which 16 are kept; pays from {pays:g} on\n")
    print(table(by_degree))
    print()
    finish("deep", [r for r in rows if r["table"] == "time"], targets, None)
    if options.json is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            finish("deep", rows, targets, options.json)


if __name__ == "__main__":
    main()
