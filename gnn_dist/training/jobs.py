"""What a command does from start to end: the driver's side of a run."""

import contextlib
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnn_dist import config, datasets, kernels, partitioners, plugins, storage, strategies
from gnn_dist.cluster import WorkerContext, Workers, launch
from gnn_dist.config import Config
from gnn_dist.errors import InputError, WorkerError
from gnn_dist.graph import Graph
from gnn_dist.nn import TRANSFORMS
from gnn_dist.storage import PartitionedGraph
from gnn_dist.strategies.split import weights
from gnn_dist.training import checkpoints, metrics, report, run_folder, worker
from gnn_dist.training.build import target_names
from gnn_dist.training.estimate import estimate
from gnn_dist.training.worker import Payload, Predictions, Result


def train(job: Config, *, resume: bool = False) -> dict[str, Any]:
    """Partition, train, evaluate, report; returns what ``metrics.json`` holds."""
    with run_folder.held(job.folder):
        return _train(job, resume)


def _train(job: Config, resume: bool) -> dict[str, Any]:
    started = time.perf_counter()
    record = job.folder / "metrics.json"
    before: Mapping[str, Any] = {}
    if resume:
        _check_resume(job)
        before = _read_record(record)
    graph = partition(job)
    partitioned = time.perf_counter()
    _check(job, graph)
    run_folder.prepare(job, resume, _say)
    result = _launch(job, worker.train, graph, resume=resume)
    values = {
        **_about(job, graph),
        **result.metrics,
        "partition": partitioners.quality(graph).as_dict(),
    }
    parts = {"partition": partitioned - started, **values["time"]}
    total = time.perf_counter() - started
    values["time"] = {**parts, "start": total - sum(parts.values()), "total": total}
    if before.get("epochs") == _finite(values["epochs"]):  # nothing was left to train
        kept = ("time", "communication", "strategy", "choice", "workers")
        values |= {key: before[key] for key in kept if key in before}
    _write_json(record, values)
    _write_predictions(job.folder / "predictions.npz", result.predictions)
    page = report.write(job.folder)
    print(_table(values))
    _say(f"report: {page}")
    return values


def plan(job: Config) -> str:
    """What a job's strategy foresees: printed, and as files in the run's folder."""
    graph = partition(job)
    _check(job, graph)
    _compile()
    with _threads(job.cluster.threads):  # those of a rank, for what is measured here
        found = strategies.plan(job, graph)
    files = found.write(job.folder / "plan")
    return "\n".join([found.text(), *(f"wrote {file}" for file in files)])


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def partition_table(job: Config) -> str:
    """Partition as configured; its place and quality, for people."""
    graph = partition(job)
    return f"{graph.path}\n{partitioners.quality(graph).table()}"


def partition(job: Config) -> PartitionedGraph:
    """The partition of a job: the one that is there if it fits, else a new one."""
    path = job.partition.path or job.folder / "partition"
    if job.dataset is None:
        return storage.open_partition(path)
    graph = load_graph(job.dataset)
    found = _fitting_partition(job, graph, path)
    if found is not None:
        return found
    try:
        return _make_partition(job, graph, path)
    except (FileExistsError, InputError):  # the former or the latter: another job was first
        found = _fitting_partition(job, graph, path)
        if found is None:
            raise
        return found


def _fitting_partition(job: Config, graph: Graph, path: Path) -> PartitionedGraph | None:
    """The partition at ``path`` if it is as configured; None where a new one may be written."""
    if not (path / "manifest.json").exists():
        return None
    named = job.partition.path is not None
    found = storage.open_partition(path, expect_graph=graph.digest if named else None)
    if found.digest == graph.digest and _maker(found) == _wanted(job):
        return found
    if named:
        raise InputError(
            f"config partition.path: {path} was made with {_maker(found)}, the configuration "
            f"says {_wanted(job)}; remove that folder, or name another one"
        )
    return None


def load_graph(dataset: config.Dataset) -> Graph:
    """The graph of a data set, transformed as configured."""
    _say(f"loading {dataset.name}")
    graph = datasets.load(dataset.name, dataset.args)
    for name in dataset.transforms:
        graph = plugins.resolve("transform", name, TRANSFORMS)(graph)
        if not isinstance(graph, Graph):
            raise InputError(
                f"dataset.transforms: {name!r} returned {type(graph).__name__}; it must return a "
                "gnn_dist.graph.Graph"
            )
    return graph


def dry_run(job: Config) -> str:
    """Resolve and validate a job and estimate what it takes; nothing is started or written."""
    if job.dataset is None:
        raise InputError(
            "config dataset: a dry run draws batches from the data set; name the data set that "
            "the partition was made from"
        )
    graph = load_graph(job.dataset)
    _check(job, PartitionedGraph.from_graph(graph))
    return estimate(job, graph).text(job, graph)


def _make_partition(job: Config, graph: Graph, path: Path) -> PartitionedGraph:
    settings = job.partition
    node_weights, edge_weights = None, None
    if settings.weights is not None:
        _say(f"weighing {graph!r} by {settings.weights}")
        node_weights, edge_weights = weights.partition_weights(job, graph)
    _say(f"partitioning {graph!r} into {job.num_parts} with {settings.name}")
    assignment = partitioners.partition(
        graph,
        job.num_parts,
        settings.name,
        settings.args,
        seed=job.seed,
        node_weights=node_weights,
        edge_weights=edge_weights,
        max_imbalance=settings.max_imbalance,
    )
    cut = storage.assemble(graph, assignment, job.num_parts)
    storage.write(
        cut,
        path,
        partitioner={
            "name": settings.name,
            "args": settings.args,
            "seed": job.seed,
            "weights": weights.origin(job),
        },
        half=settings.half,
        overwrite=settings.path is None,
    )
    return storage.open_partition(path)


def _wanted(job: Config) -> dict[str, Any]:
    settings = job.partition
    return {
        "partitioner": settings.name,
        "args": settings.args,
        "seed": job.seed,
        "weights": weights.origin(job),
        "parts": job.num_parts,
        "half": sorted(settings.half),
    }


def _maker(graph: PartitionedGraph) -> dict[str, Any]:
    assert graph.manifest is not None
    maker = graph.manifest.partitioner
    half = [n for n, spec in graph.schema.node.items() if spec.stored != spec.dtype]
    return {
        "partitioner": maker.name,
        "args": maker.args,
        "seed": maker.seed,
        "weights": maker.weights,
        "parts": graph.num_parts,
        "half": sorted(half),
    }


def verify(path: Path) -> str:
    """Re-read every checksum of a partition; returns a sentence."""
    graph = storage.open_partition(path, verify=True)
    return f"{path}: intact; {graph!r}"


def evaluate(run: Path, *, split: str = "test", checkpoint: Path | None = None) -> dict[str, float]:
    """Metrics of a trained run on one split; printed and returned."""
    file = run / "config.yaml"
    if not file.is_file():
        raise InputError(f"run {run}: holds no config.yaml; give the folder of a run")
    job = config.load(file, {"output": str(run)})
    if job.train.strategy == "auto":  # both of its strategies predict alike
        job = config.load(file, {"output": str(run), "train.strategy": "data"})
    graph = storage.open_partition(job.partition.path or run / "partition")
    if not len(graph.split_in_parts(split)):
        raise InputError(f"--split {split}: has no nodes in this graph; choose another split")
    if checkpoint is None:
        checkpoint = run / "checkpoints" / "best"
        if not checkpoint.exists():
            newest = checkpoints.newest(run / "checkpoints")
            if newest is None:
                raise InputError(f"run {run}: holds no complete checkpoint; train it first")
            checkpoint = newest.path
    try:
        checkpoints.read(checkpoint)
    except InputError as error:
        raise InputError(
            f"{error}; name a complete one with --checkpoint, such as the newest in "
            f"{run / 'checkpoints'}"
        ) from error
    work = functools.partial(worker.evaluate, checkpoint=checkpoint.absolute(), split=split)
    result = _launch(job, work, graph)
    values: dict[str, float] = result.metrics[split]
    print(_rows([{split: "model", **values}]))
    return values


def _launch(
    job: Config,
    work: Callable[[WorkerContext, Payload], Result],
    graph: PartitionedGraph,
    *,
    resume: bool = False,
) -> Result:
    """Run ``work`` on every rank; the result of rank 0."""
    _compile()
    settings = job.cluster
    workers = Workers(
        count=settings.workers,
        address=settings.address,
        threads=settings.threads,
        device=settings.device,
        timeout=settings.timeout,
        max_failures=settings.max_failures,
        tune_allocator=settings.tune_allocator,
        huge_pages=settings.huge_pages,
        network_interface=settings.network_interface,
        environment=settings.environment,
    )
    assert graph.path is not None
    payload = Payload(job, graph.path.absolute(), job.folder.absolute(), resume)
    if settings.workers:
        _say(f"starting {settings.workers} workers")
    try:
        return launch(work, payload, workers, keep=_say)
    except WorkerError:
        graph.check_files()  # a worker is killed when a file that it maps is cut short
        raise


def _compile() -> None:
    """Compile the kernels now, visibly, rather than in the middle of the first epoch."""
    new: list[str] = []

    def told(module: str, seconds: float | None) -> None:
        if seconds is None:
            if not new:
                _say("compiling kernels (about a minute, once; the result is cached)")
            new.append(module)
        elif seconds > 1:
            _say(f"  {module}: {seconds:.0f} s")

    kernels.compile_all(told)


def _check(job: Config, graph: PartitionedGraph) -> None:
    """What can be seen to fail before any worker starts."""
    graph.split("train")
    metrics.resolve(job.task.metrics, job.task.kind)
    strategies.check(job, graph)
    if job.sampler.weights is not None and job.sampler.weights not in graph.schema.edge:
        names = ", ".join(graph.schema.edge) or "none"
        raise InputError(
            f"config sampler.weights: the graph has no edge tensor {job.sampler.weights!r}; "
            f"it has: {names}"
        )


def _check_resume(job: Config) -> None:
    """That the newest checkpoint is of this job, before anything of the run is replaced."""
    found = checkpoints.newest(job.folder / "checkpoints", checkpoints.quiet)
    if found is None:
        return
    before = config.load(job.folder / "config.yaml", {"output": str(job.folder)})
    if before.fingerprint() == found.config != job.fingerprint():
        key, was, now = _first_difference(before, job)
        raise InputError(
            f"config {key}: {now!r}, but the checkpoints in {job.folder} were trained with "
            f"{was!r}; leave it as it was, or begin another run with --output"
        )
    found.check(graph=found.graph, config=job.fingerprint(), model=found.model)


def _first_difference(before: Config, after: Config) -> tuple[str, Any, Any]:
    """The first key that changes the fingerprint, and both values."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    for key, _ in config.flags():
        *path, last = key.split(".")
        changed = before.model_dump(mode="json")
        was, now, place = (functools.reduce(_section, path, v) for v in (old, new, changed))
        if was.get(last) != now.get(last):
            place[last] = now.get(last)
            if Config.model_validate(changed).fingerprint() != before.fingerprint():
                return key, was.get(last), now.get(last)
    return "dataset", old["dataset"], new["dataset"]


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    return values.get(name) or {}


def _about(job: Config, graph: PartitionedGraph) -> dict[str, Any]:
    name = graph.info.get("name", job.dataset.name if job.dataset else str(graph.path))
    return {
        "name": job.name,
        "graph": f"{name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges",
        "task": job.task.kind,
        "strategy": job.train.strategy,
        "workers": job.cluster.workers,
        "target_names": target_names(graph, job),
    }


def _read_record(path: Path) -> Mapping[str, Any]:
    """``metrics.json`` of an earlier run; empty where there is none that can be read."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".json.tmp")
    aside.write_text(json.dumps(_finite(values), indent=1, allow_nan=False) + "\n")
    aside.rename(path)


def _finite(value: Any) -> Any:
    """JSON has no NaN: a metric that is undefined becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_predictions(path: Path, predictions: Predictions) -> None:
    """``SPLIT_ids`` (original ids), ``SPLIT_output`` and ``SPLIT_target`` of every split."""
    arrays = {}
    for split, (ids, output, target) in predictions.items():
        arrays[f"{split}_ids"] = ids.numpy()
        arrays[f"{split}_output"] = output.numpy()
        arrays[f"{split}_target"] = target.numpy()
    aside = path.with_suffix(".tmp.npz")
    np.savez(aside, allow_pickle=False, **arrays)
    aside.rename(path)


def _table(values: Mapping[str, Any]) -> str:
    split = next((name for name in ("test", "val") if values.get(name)), None)
    if split is None:
        return "nothing to evaluate: the graph has no test and no validation nodes"
    rows = [{split: "model", **values[split]}]
    rows += [{split: name, **scores} for name, scores in values["baselines"].items()]
    return _rows(rows)


def _rows(rows: list[dict[str, Any]]) -> str:
    """Aligned columns for a terminal."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([report.number(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _say(text: str) -> None:
    """Tell a person what goes on; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
