"""One candidate of ``epoch.py`` in a process of its own: ``python _epoch_worker.py SETTINGS``.

``SETTINGS`` is a JSON object. For each line ``first last`` on standard input the worker does the
steps of batches ``first .. last - 1`` and answers with one line of JSON.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 3


class Data:
    """The graph, the features in memory, the labels and the order of the seeds."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.indptr = np.load(folder / "indptr.npy", mmap_mode="r")
        self.indices = np.load(folder / "indices.npy", mmap_mode="r")
        self.x = torch.from_numpy(np.load(folder / "x.npy"))
        self.y = torch.from_numpy(np.load(folder / "y.npy"))
        self._order = np.load(folder / "order.npy")
        self._size = batch_size

    def seeds(self, batch: int) -> np.ndarray:
        return self._order[batch * self._size : (batch + 1) * self._size]


class OwnSampler:
    """Our sampler: the batches of every candidate but DGL."""

    def __init__(self, data: Data, fanouts: list[int]) -> None:
        from gnn_dist.graph import Graph
        from gnn_dist.kernels import relabel, sample
        from gnn_dist.sampling import LocalTopology, NeighborSampler
        from gnn_dist.storage import PartitionedGraph

        for kernels in (relabel, sample):
            kernels.warmup()
        graph = PartitionedGraph.from_graph(Graph(data.indptr, data.indices))
        self._topology = LocalTopology(graph.part(0))
        self._sampler = NeighborSampler(fanouts)
        self._data = data

    def __call__(self, batch: int) -> Any:
        from gnn_dist.batch import BatchIndex

        seeds = self._data.seeds(batch)
        return self._sampler.sample(self._topology, seeds, seed=0, index=BatchIndex(0, batch))


class Ahead:
    """Samples the next batch on a thread while the model computes, as the loader does; nothing is
    sampled before a turn begins or for batches after it."""

    def __init__(self, sampler: OwnSampler, on: bool) -> None:
        self._sampler = sampler
        self._pool = ThreadPoolExecutor(1) if on else None
        self._next: Future[Any] | None = None

    def __call__(self, batch: int, goes_on: bool) -> Any:
        now = self._sampler(batch) if self._next is None else self._next.result()
        self._next = None
        if goes_on and self._pool is not None:
            self._next = self._pool.submit(self._sampler, batch + 1)
        return now


def ours(data: Data, settings: dict[str, Any]) -> Callable[[int], float]:
    from gnn_dist.features import FeatureRows
    from gnn_dist.kernels import epilogue, spmm, transpose
    from gnn_dist.nn import build_model

    for kernels in (epilogue, spmm, transpose):
        kernels.warmup()
    sampler = Ahead(OwnSampler(data, settings["fanouts"]), settings["threads"] > 1)
    model = build_model(
        "sage",
        {"hidden": settings["hidden"]},
        in_features=data.x.shape[1],
        out_features=settings["classes"],
        num_layers=LAYERS,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> float:
        batch = sampler(number, number + 1 < step.last)  # type: ignore[attr-defined]
        rows = FeatureRows((data.x,), batch.input_nodes)
        loss = F.cross_entropy(model(rows, batch.blocks), data.y[batch.seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    step.last = 0  # type: ignore[attr-defined]
    return step


class _Layers(nn.Module):
    """Convolutions with ReLU between them, each called by ``call(conv, block, h)``."""

    def __init__(self, convs: list[nn.Module], call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self._call = call

    def forward(self, blocks: list[Any], h: Tensor) -> Tensor:
        for k, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            h = self._call(conv, block, h)
            if k + 1 < len(self.convs):
                h = F.relu(h)
        return h


def _widths(data: Data, settings: dict[str, Any]) -> list[tuple[int, int]]:
    hidden = [settings["hidden"]] * (LAYERS - 1)
    return list(zip([data.x.shape[1], *hidden], [*hidden, settings["classes"]], strict=True))


def dgl(data: Data, settings: dict[str, Any]) -> Callable[[int], float]:
    """DGL's sampler and layers, with the seeds and fan-outs of all others."""
    from gnn_dist.interop.dgl import import_dgl

    library = import_dgl()
    indices = torch.from_numpy(data.indices.astype(np.int64))
    csc = ("csc", (torch.from_numpy(np.array(data.indptr)), indices, indices[:0]))
    graph = library.graph(csc, num_nodes=data.indptr.size - 1).formats(["csc"])
    sampler = library.dataloading.NeighborSampler(settings["fanouts"][::-1])
    convs = [library.nn.SAGEConv(n, m, "mean") for n, m in _widths(data, settings)]
    model = _Layers(convs, lambda conv, b, h: conv(b, (h, h[: b.num_dst_nodes()])))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> float:
        seeds = torch.from_numpy(data.seeds(number))
        nodes, _, blocks = sampler.sample(graph, seeds)
        loss = F.cross_entropy(model(blocks, data.x[nodes]), data.y[seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def pyg(data: Data, settings: dict[str, Any]) -> Callable[[int], float]:
    """PyG's layers on our batches: its own loader needs a library that cannot be installed. Our
    sampling time is charged; turning blocks into edge lists is not."""
    from torch_geometric.nn import SAGEConv

    sampler = OwnSampler(data, settings["fanouts"])
    convs = [SAGEConv(n, m) for n, m in _widths(data, settings)]
    model = _Layers(convs, lambda conv, b, h: conv((h, h[: b[1]]), b[0]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> float:
        batch = sampler(number)
        uncharged = time.perf_counter()
        blocks = [(block.edge_index(), block.num_dst) for block in batch.blocks]
        step.uncharged += time.perf_counter() - uncharged  # type: ignore[attr-defined]
        loss = F.cross_entropy(model(blocks, data.x[batch.input_nodes]), data.y[batch.seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    step.uncharged = 0.0  # type: ignore[attr-defined]
    return step


def floor(data: Data, settings: dict[str, Any]) -> Callable[[int], float]:
    """The matrix products of the same batches into warm buffers (forward, weight gradient and, but
    for the first layer, input gradient), and a copy of the bytes of their input rows."""
    sampler = OwnSampler(data, settings["fanouts"])
    widths = _widths(data, settings)
    sizes: dict[int, tuple[list[int], int]] = {}
    pool: dict[Any, Tensor] = {}

    def buffer(name: Any, rows: int, columns: int) -> Tensor:
        held = pool.get(name)
        if held is None or held.shape[0] < rows:
            held = pool[name] = torch.rand(rows + rows // 8, columns)
        return held[:rows]

    weights = [torch.rand(m, 2 * n) for n, m in widths]

    def prepare(number: int) -> None:
        blocks = sampler(number).blocks
        sizes[number] = ([block.num_dst for block in blocks], blocks[0].num_src)
        step(number)  # the buffers are warm before the time is taken

    def step(number: int) -> float:
        rows, inputs = sizes[number]
        for k, (n, m) in enumerate(widths):
            both, out = buffer(("in", k), rows[k], 2 * n), buffer(("out", k), rows[k], m)
            torch.mm(both, weights[k].t(), out=out)
            torch.mm(out.t(), both, out=buffer(("weight", k), m, 2 * n))
            if k:
                torch.mm(out, weights[k], out=buffer(("gradient", k), rows[k], 2 * n))
        columns = data.x.shape[1]
        buffer("to", inputs, columns).copy_(buffer("from", inputs, columns))
        return 0.0

    step.prepare = prepare  # type: ignore[attr-defined]
    return step


def _resident() -> int:
    """Bytes of memory that are resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    data = Data(Path(settings["folder"]), settings["batch_size"])
    build = {"ours": ours, "dgl": dgl, "pyg": pyg, "floor": floor}[settings["candidate"]]
    step = build(data, settings)
    base = _resident()
    print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        first, last = map(int, line.split())
        if hasattr(step, "prepare"):
            for number in range(first, last):
                step.prepare(number)
        if hasattr(step, "last"):
            step.last = last
        uncharged = getattr(step, "uncharged", 0.0)
        start, cpu = time.perf_counter(), time.process_time()
        losses = [step(number) for number in range(first, last)]
        seconds = time.perf_counter() - start - (getattr(step, "uncharged", 0.0) - uncharged)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {
            "seconds": seconds,
            "cpu": time.process_time() - cpu,
            "loss": losses[-1],
            "peak": peak,
            "above_data": peak - base,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
