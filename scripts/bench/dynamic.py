"""Dynamic graphs: an epoch of T-GCN and MPNN-LSTM against PyG's layers one graph at a time.

Peers, in the same run and on one thread: (a) ``pyg``, the cells of PyTorch Geometric Temporal with
PyG's layers as they are; (b) ``csr``, the same cells with the adjacency normalised once and kept in
CSR. Same weights, same windows, same steps; the losses are compared before anything is timed.
Ratios are medians of interleaved repeats of epochs after the first (aggregations without parameters
are then kept; the first epoch is listed too). The allocator is tuned as in our workers, for the
peers too, which it makes faster.
"""

import ctypes
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import finish, interleave, median_ratio, parser, table, target
from _dynamic_peers import CsrConv, PeerMPNNLSTM, PeerTGCN, PygConv, csr_graphs, pyg_graphs
from torch import Tensor, nn

from gnn_dist.cluster.tuning import tune_allocator
from gnn_dist.datasets import temporal
from gnn_dist.dynamic import (
    ENCODINGS,
    SnapshotSequence,
    WindowBatch,
    Windows,
    encode_group,
    segments,
)
from gnn_dist.nn.recurrent import functional, models
from gnn_dist.strategies.snapshot import Options, SnapshotStrategy
from gnn_dist.strategies.snapshot_plan import choose_group, plan
from gnn_dist.strategies.snapshot_tasks import NodeRegression

WINDOW = 8
HIDDEN = 32
OVERLAP = 0.5


def with_target(sequence: SnapshotSequence) -> SnapshotSequence:
    """Data without a target gets the degrees of the next snapshot; every node counts."""
    if sequence.y is None:
        y = np.roll(sequence.x[..., 0], -1, axis=0)
        object.__setattr__(sequence, "y", y)
    object.__setattr__(sequence, "active", None)  # the peers know no mask
    return sequence


def data_sets(folder: Path, quick: bool) -> dict[str, Callable[[], SnapshotSequence]]:
    nodes, edges, snapshots = (3000, 60_000, 30) if quick else (50_000, 1_000_000, 100)
    files = {
        "covid": lambda: temporal.england_covid(folder / "england_covid.json"),
        "bitcoin life 10": lambda: temporal.bitcoin(folder / "soc-sign-bitcoinalpha.csv", life=10),
        "bitcoin life 1": lambda: temporal.bitcoin(folder / "soc-sign-bitcoinalpha.csv", life=1),
        "college": lambda: temporal.college_messages(folder / "CollegeMsg.txt", life=4),
        "tennis": lambda: temporal.twitter_tennis(folder / "twitter_tennis_rg17.json"),
    }
    found = files if folder.is_dir() else {}
    if quick:
        found = {name: read for name, read in found.items() if name in ("covid", "tennis")}
    return {
        **found,
        "generated": lambda: temporal.synthetic(nodes, edges, snapshots, change=0.05, features=8),
    }


class Peer:
    """Steps of a peer: window by window, snapshot by snapshot."""

    def __init__(
        self, sequence: SnapshotSequence, cell: nn.Module, head: nn.Module, graphs: list[Any]
    ) -> None:
        self.cell, self.graphs = cell, graphs
        self.head = nn.Linear(head.in_features, 1)
        self.head.load_state_dict(head.state_dict())
        self.x = [torch.tensor(x) for x in sequence.x]
        self.y = [torch.tensor(y)[:, None] for y in sequence.y]
        self.optimizer = torch.optim.Adam([*cell.parameters(), *self.head.parameters()], 1e-3)

    def loss(self, start: int) -> Tensor:
        span = range(start, start + WINDOW)
        h = self.cell([self.x[t] for t in span], [self.graphs[t] for t in span])
        return ((self.head(torch.relu(h)) - self.y[span[-1]]) ** 2).mean()

    def loss_of(self, batch: WindowBatch) -> float:
        return sum(self.loss(start).item() for start in batch.starts) / len(batch.starts)

    def epoch(self, batches: list[WindowBatch]) -> float:
        total = 0.0
        for batch in batches:
            self.optimizer.zero_grad()
            for start in batch.starts:
                loss = self.loss(start) / len(batch.starts)
                loss.backward()
                total += loss.item()
            self.optimizer.step()
        return total


class Ours:
    """Steps of ours."""

    def __init__(self, sequence: SnapshotSequence, model: nn.Module, options: Options) -> None:
        self.task = NodeRegression(model.out_features)
        self.sequence, self.model, self.options = sequence, model, options
        self.forget()

    def forget(self) -> None:
        """Begin again with nothing kept."""
        self.strategy = SnapshotStrategy(self.sequence, self.model, self.task, self.options)
        self.optimizer = torch.optim.Adam(self.strategy.parameters(), 1e-3)

    def loss_of(self, batch: WindowBatch) -> float:
        draws = self.strategy.draws(batch)
        rows = self.strategy.embed(batch, draws)
        loss = self.task.loss(rows, batch, self.sequence, draws).item()
        return loss / self.task.count(batch, self.sequence, draws)

    def epoch(self, batches: list[WindowBatch]) -> float:
        total = 0.0
        for batch in self.strategy.ahead(batches):
            self.optimizer.zero_grad()
            total += self.strategy.accumulate(batch)
            self.optimizer.step()
        return total

    def recurrent(self, batches: list[WindowBatch]) -> float:
        """Seconds of the recurrence alone, forward and back, over the same steps."""
        seconds = 0.0
        for batch in batches:
            rows = torch.zeros(
                self.strategy.sequence.num_nodes, len(batch.snapshots),
                self.strategy.model.spatial_width(),
            )  # fmt: skip
            with torch.no_grad():
                projected = self.strategy.model.project(rows)
            projected.requires_grad_()
            start = time.perf_counter()
            scope: Any = None
            out, _ = self.strategy.model.recur(projected, batch.slots, batch.snapshots, scope, None)
            out.backward(torch.ones_like(out))
            seconds += time.perf_counter() - start
        return seconds


def build(name: str, features: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "T-GCN":
        return models.TGCN(features, HIDDEN)
    return models.MPNNLSTM(features, HIDDEN, WINDOW)


def batches_of(sequence: SnapshotSequence, windows: int, size: int) -> list[WindowBatch]:
    """Steps over the last windows of the sequence (the fullest, where it grows)."""
    every = Windows(sequence.num_snapshots, WINDOW)
    chosen = np.arange(len(every))[-windows:]
    return list(every.batches(chosen, size, shuffle=False))


def measure(
    name: str,
    sequence: SnapshotSequence,
    windows: int,
    repeats: int,
    peers: dict[str, list[Any]],
    names: Sequence[str] = ("T-GCN", "MPNN-LSTM"),
) -> Iterator[dict[str, Any]]:
    """A row for each model and number of windows a step; ``peers`` are the graphs of each."""
    overlap = sequence.overlap()
    group, encoding, _ = choose_group(sequence, HIDDEN, sizes=(1, 8), sample=16, repeats=2)
    for model_name in names:
        model = build(model_name, sequence.num_features)
        cell = PeerTGCN if model_name == "T-GCN" else PeerMPNNLSTM
        for size in (1, 8):
            steps = batches_of(sequence, windows, size)
            ours = Ours(
                sequence, build(model_name, sequence.num_features),
                Options("grouped", group=group, encoding=encoding),
            )  # fmt: skip
            ours.strategy.model.load_state_dict(model.state_dict())
            head = ours.task.head
            runs: dict[str, Any] = {"ours": ours}
            for peer, graphs in peers.items():
                conv = PygConv if peer == "pyg" else CsrConv
                runs[peer] = Peer(sequence, cell(model, conv), head, graphs)
            with torch.no_grad():
                losses = {k: r.loss_of(steps[0]) for k, r in runs.items()}
            for peer in peers:
                gap = abs(losses[peer] - losses["ours"]) / abs(losses["ours"])
                assert gap < 1e-4, f"{name}, {model_name}: losses {losses}"
            ours.forget()
            start = time.perf_counter()
            ours.epoch(steps)
            first = time.perf_counter() - start
            aggregated = ours.strategy.counts.snapshots_aggregated
            for peer in peers if sequence.num_nodes < 20_000 else ():
                runs[peer].epoch(steps[:1])

            def one(run: Any, steps: list[WindowBatch] = steps) -> Callable[[], Any]:
                return lambda: run.epoch(steps)

            seconds = interleave({k: one(r) for k, r in runs.items()}, repeats, warmup=0)
            share = ours.recurrent(steps) / statistics.median(seconds["ours"])
            yield {
                "data": name,
                "overlap": round(overlap, 2),
                "model": model_name,
                "windows/step": size,
                "group": f"{group} {encoding}",
                "ours (s)": statistics.median(seconds["ours"]),
                "first epoch (s)": first,
                "vs pyg": (
                    median_ratio(seconds["pyg"], seconds["ours"]) if "pyg" in peers else "-"
                ),
                "vs csr": median_ratio(seconds["csr"], seconds["ours"]),
                "recurrent share": min(share, 1.0),
                "aggregated/snapshot": aggregated / len({t for b in steps for t in b.snapshots}),
                "canonical": (1 if model_name == "T-GCN" else 2) * windows * WINDOW
                / len({t for b in steps for t in b.snapshots}),
            }  # fmt: skip
            del runs, ours
            gc.collect()


def encodings(name: str, sequence: SnapshotSequence) -> dict[str, Any]:
    """Bytes of the whole sequence by encoding."""
    row: dict[str, Any] = {"data": name, "snapshots": sequence.num_snapshots}
    row["keyframes+deltas (MB)"] = sequence.nbytes()["topology"] / 1e6
    whole = sum(8 * sequence.num_edges(t) for t in range(sequence.num_snapshots))
    row["keys of each (MB)"] = whole / 1e6
    for encoding in ENCODINGS:
        size = 0
        for first in range(0, sequence.num_snapshots, 8):
            span = range(first, min(sequence.num_snapshots, first + 8))
            size += encode_group(sequence, span, encoding).nbytes
        row[f"{encoding} (MB)"] = size / 1e6
    return row


def policies(name: str, sequence: SnapshotSequence, ranks: int) -> list[dict[str, Any]]:
    """Rows that every policy would send in an epoch."""
    rows = []
    for model_name in ("T-GCN", "MPNN-LSTM"):
        model = build(model_name, sequence.num_features)
        steps = batches_of(sequence, sequence.num_snapshots, 8)
        for policy in ("windows", "snapshots", "vertices"):
            p = plan(sequence, model, steps, Options(policy), ranks)
            rows.append(
                {"data": name, "model": model_name, "ranks": ranks, "policy": policy,
                 "rows (first epoch)": p.rows_once + p.rows, "rows (epoch)": p.rows,
                 "edges (largest rank)": p.edges, "memory (MB)": p.memory / 1e6}
            )  # fmt: skip
    return rows


def peak_bytes(run: Callable[[], Any]) -> int:
    """Growth of the process's peak resident memory while ``run`` runs (Linux)."""

    def read(field: str) -> int:
        text = Path("/proc/self/status").read_text()
        return 1024 * int(text.split(f"{field}:")[1].split()[0])

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed before must not hide what is taken
    Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS")
    run()
    return read("VmHWM") - before


def memory(quick: bool) -> list[dict[str, Any]]:
    """Peak memory of one step of one window against the window's length."""
    nodes, edges = (2000, 30_000) if quick else (10_000, 200_000)
    sequence = temporal.synthetic(nodes, edges, 33, change=0.05, features=8)
    rows = []
    for length in (4, 8, 16, 32):
        row: dict[str, Any] = {"window": length}
        for label, options in (
            ("kept (MB)", Options("grouped")),
            ("checkpointed (MB)", Options("grouped", checkpoint=4)),
        ):
            ours = Ours(sequence, build("T-GCN", 8), options)
            batch = WindowBatch(0, 0, (0,), length)
            row[label] = peak_bytes(lambda o=ours, b=batch: o.epoch([b])) / 1e6
        peer = Peer(
            sequence, PeerTGCN(build("T-GCN", 8), CsrConv), nn.Linear(HIDDEN, 1),
            csr_graphs(sequence[:length], torch.float32),
        )  # fmt: skip

        def step(p: Peer = peer, n: int = length) -> None:
            h = p.cell(p.x[:n], p.graphs[:n])
            p.head(h).sum().backward()

        row["csr peer (MB)"] = peak_bytes(step) / 1e6
        rows.append(row)
    return rows


class Recipe(NamedTuple):
    """How ours trains: windows of ``length`` (0: the whole training span, state carried on),
    ``size`` of them a step (0: all), Adam with ``rate``."""

    length: int
    size: int
    rate: float

    def __str__(self) -> str:
        steps = f"{self.size} a step" if self.size else "one step an epoch"
        windows = f"windows of {self.length}, {steps}" if self.length else "state carried"
        return f"{windows}, rate {self.rate:g}"


RECIPES = {
    ("covid", "T-GCN"): Recipe(4, 8, 0.01),
    ("covid", "MPNN-LSTM"): Recipe(1, 0, 0.005),
    ("chickenpox", "T-GCN"): Recipe(0, 0, 0.01),
    ("chickenpox", "MPNN-LSTM"): Recipe(1, 8, 0.01),
}


def example(
    sequence: SnapshotSequence, name: str, epochs: int, seed: int, recipe: Recipe
) -> tuple[float, float]:
    """Test error of PyG Temporal's example (with PyG's layers) and of ours at equal epochs.

    The example: the first 20% of snapshots train, one step an epoch on the mean loss of all; T-GCN
    carries its state through the sequence, MPNN-LSTM sees one snapshot at a time with dropout 0.5;
    Adam, 0.01. Ours: the same model, weights and number of epochs, by ``recipe``.
    """
    cut = int(0.2 * sequence.num_snapshots)
    graphs = pyg_graphs(sequence, torch.float32)
    xs, ys = torch.tensor(sequence.x), torch.tensor(sequence.y)[..., None]
    torch.manual_seed(seed)
    if name == "T-GCN":
        model: Any = models.TGCN(sequence.num_features, HIDDEN)
        cell: Any = PeerTGCN(model, PygConv)
    else:
        model = models.MPNNLSTM(sequence.num_features, HIDDEN, 1, 0.5)
        cell = PeerMPNNLSTM(model, PygConv)
    task = NodeRegression(model.out_features)
    head = nn.Linear(model.out_features, 1)
    head.load_state_dict(task.head.state_dict())
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], 0.01)

    def cost(span: range) -> Tensor:
        total, h = torch.zeros(()), torch.zeros(sequence.num_nodes, HIDDEN)
        for t in span:
            h = cell.step(xs[t], graphs[t], h) if name == "T-GCN" else cell([xs[t]], [graphs[t]])
            total = total + ((head(torch.relu(h)) - ys[t]) ** 2).mean()
        return total / len(span)

    for _ in range(epochs):
        optimizer.zero_grad()
        cost(range(cut)).backward()
        optimizer.step()
    cell.eval()
    with torch.no_grad():
        theirs = cost(range(cut, sequence.num_snapshots)).item()

    strategy = SnapshotStrategy(sequence, model, task, Options("grouped"), seed=seed)
    optimizer = torch.optim.Adam(strategy.parameters(), recipe.rate)
    if not recipe.length:
        (span,) = segments(cut, cut)
        for _ in range(epochs):
            optimizer.zero_grad()
            strategy.accumulate_truncated(span, None)
            optimizer.step()
        rest = range(cut, sequence.num_snapshots)
        found = strategy.predictions_truncated(rest, sequence.num_snapshots)
        return theirs, task.metrics(found)["mse"]
    windows = Windows(sequence.num_snapshots, recipe.length)
    split = windows.split(0.2)
    size = recipe.size or split["train"].size
    for epoch in range(epochs):
        for batch in windows.batches(split["train"], size, epoch=epoch, seed=seed):
            optimizer.zero_grad()
            strategy.accumulate(batch)
            optimizer.step()
    test = windows.batches(split["test"], 32, shuffle=False)
    return theirs, strategy.evaluate(test)["mse"]


def accuracy(folder: Path, quick: bool) -> list[dict[str, Any]]:
    if not folder.is_dir():
        return []
    data = {
        "covid": temporal.england_covid(folder / "england_covid.json"),
        "chickenpox": temporal.chickenpox(folder / "chickenpox.json"),
    }
    rows = []
    for name, sequence in data.items():
        for model in ("T-GCN", "MPNN-LSTM"):
            pairs = [
                example(sequence, model, 5 if quick else 50, seed, RECIPES[name, model])
                for seed in range(1 if quick else 3)
            ]
            theirs, ours = (statistics.median(p) for p in zip(*pairs, strict=True))
            rows.append(
                {"data": name, "model": model, "example (mse)": theirs, "ours (mse)": ours,
                 "ours": str(RECIPES[name, model])}
            )  # fmt: skip
    return rows


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, default=Path("../shared/data/dynamic"))
    options.add_argument("--only", nargs="*", help="names of data sets to time")
    options.add_argument(
        "--parts",
        nargs="*",
        choices=("time", "memory", "error"),
        default=["time", "memory", "error"],
    )
    options.set_defaults(repeats=3)
    args = options.parse_args()
    torch.set_num_threads(1)
    tune_allocator()
    warnings.filterwarnings("ignore", message="Sparse")
    functional.warmup()
    rows: list[dict[str, Any]] = []
    stored, moved = [], []
    for name, read in data_sets(args.data, args.quick).items():
        if "time" not in args.parts or (args.only and name not in args.only):
            continue
        sequence = with_target(read())
        big = name == "generated" and not args.quick
        cut = sequence[-2 * WINDOW :] if big else sequence  # peers' CSR of 100 is 5 GB
        peers = {"csr": csr_graphs(cut, torch.float32)}
        if not big:  # minutes an epoch
            peers["pyg"] = pyg_graphs(cut, torch.float32)
        windows = 8 if big or args.quick else min(16, cut.num_snapshots - WINDOW + 1)
        repeats = 2 if args.quick or big else args.repeats
        names = ("T-GCN",) if big else ("T-GCN", "MPNN-LSTM")
        for row in measure(name, cut, windows, repeats, peers, names):
            print(table([row]), flush=True)
            rows.append(row)
        stored.append(encodings(name, cut))
        if not big:
            moved += policies(name, sequence, 2) + policies(name, sequence, 4)
    window_memory = memory(args.quick) if "memory" in args.parts else []
    errors = accuracy(args.data, args.quick) if "error" in args.parts else []
    for title, part in (
        ("Bytes by encoding", stored), ("Rows sent by policy", moved),
        ("Peak memory of a step", window_memory), ("Test error", errors),
    ):  # fmt: skip
        if part:
            print(f"\n{title}\n\n{table(part)}")

    def smallest(model: str, size: int, column: str, keep: Callable[[dict], bool]) -> float | None:
        found = [r[column] for r in rows
                 if r["model"] == model and r["windows/step"] == size and keep(r)]  # fmt: skip
        return min(found) if found else None

    def overlapping(r: dict[str, Any]) -> bool:
        return r["overlap"] >= OVERLAP and r["data"] != "generated"

    def apart(r: dict[str, Any]) -> bool:
        return r["overlap"] < OVERLAP

    generated = [r for r in rows if r["data"] == "generated" and r["model"] == "T-GCN"]
    slowest = [smallest(m, b, "vs csr", apart) for m in ("T-GCN", "MPNN-LSTM") for b in (1, 8)]
    wanted = [
        ("tgcn_vs_pyg", smallest("T-GCN", 8, "vs pyg", overlapping), 4.0),
        ("tgcn_vs_csr", smallest("T-GCN", 8, "vs csr", overlapping), 2.5),
        ("mpnn_vs_pyg", smallest("MPNN-LSTM", 8, "vs pyg", overlapping), 2.0),
        ("mpnn_vs_csr", smallest("MPNN-LSTM", 8, "vs csr", overlapping), 1.5),
        ("generated_vs_csr",
         next((r["vs csr"] for r in generated if r["windows/step"] == 8), None), 2.5),
        ("tgcn_vs_csr_b1", smallest("T-GCN", 1, "vs csr", overlapping), 1.6),
        ("mpnn_vs_csr_b1", smallest("MPNN-LSTM", 1, "vs csr", overlapping), 1.1),
        ("no_overlap_vs_csr", min((s for s in slowest if s is not None), default=None), 0.95),
    ]  # fmt: skip
    targets = [target(n, v, w, "higher") for n, v, w in wanted if v is not None]
    if window_memory:
        eight, longest = window_memory[1], window_memory[-1]
        for label in ("kept", "checkpointed"):
            growth = longest[f"{label} (MB)"] / eight[f"{label} (MB)"]
            targets.append(target(f"memory_{label}_window_32_vs_8", growth, 4.0, "lower"))
    for row in errors:
        name = f"{row['data']}_{row['model'].split('-')[0].lower()}_error_vs_example"
        targets.append(target(name, row["ours (mse)"] / row["example (mse)"], 1.0, "lower"))
    print()
    finish("dynamic", rows or window_memory or errors, targets, args.json)


if __name__ == "__main__":
    main()
