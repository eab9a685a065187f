"""Dynamic graphs: files as their authors published them, and a generator.

Every reader returns a ``SnapshotSequence`` with features ``x[T, N, F]`` and, where the data has
one, a target ``y[T, N]`` that lies after the snapshot's own time. The names that end in ``_job``
return the same as a ``Graph`` (see ``dynamic.stored``), to be named as a job's data set.
"""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gnn_dist import rng
from gnn_dist.dynamic.events import Merge, from_events
from gnn_dist.dynamic.sequence import SnapshotSequence
from gnn_dist.dynamic.stored import as_graph
from gnn_dist.errors import InputError


def _read_json(path: Path, needs: tuple[str, ...]) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(
            f"dataset.path: cannot read {str(path)!r} ({error.strerror}); give the JSON file"
        ) from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"dataset.path: {path.name} is not valid JSON (line {error.lineno}: {error.msg}); "
            "download it again"
        ) from error
    missing = [key for key in needs if not isinstance(data, dict) or key not in data]
    if missing:
        raise InputError(
            f"dataset.path: {path.name} has no {missing[0]!r}; it is not of the shape this reader "
            f"takes (keys {', '.join(needs)})"
        )
    return data


def _lagged(signal: np.ndarray, lags: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """``x[t] = signal[t .. t + lags - 1]`` and ``y[t] = signal[t + lags]`` of float[T, N]."""
    snapshots = len(signal) - lags
    if lags < 1 or snapshots < 1:
        raise InputError(
            f"dataset.lags: is {lags}, but {name} has {len(signal)} times; choose 1 to "
            f"{len(signal) - 1}"
        )
    x = np.stack([signal[k : k + snapshots] for k in range(lags)], axis=2)
    return x.astype(np.float32), signal[lags:].astype(np.float32)


def _matrix(values: Any, name: str) -> np.ndarray:
    try:
        out = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"dataset.path: {name!r} is not a table of numbers ({error}); check for short rows"
        ) from error
    if out.ndim != 2:
        raise InputError(
            f"dataset.path: {name!r} has {out.ndim} dimensions; give a table of 2, in PyG "
            "Temporal's format"
        )
    return out


def england_covid(path: str | Path, lags: int = 8) -> SnapshotSequence:
    """Daily mobility between 129 regions and cases in each (PyG Temporal's ``england_covid.json``).

    Weighted directed graphs that change daily; features are the standardised cases of ``lags``
    days, the target those of the day after. Snapshot ``t`` has the edges of day ``t``, as in PyG
    Temporal.

    Args:
        path: the JSON file.
        lags: days of cases that a node's features are.
    """
    data = _read_json(Path(path), ("edge_mapping", "time_periods", "y"))
    cases = _matrix(data["y"], "y")
    cases = (cases - cases.mean(axis=0)) / (cases.std(axis=0) + 1e-10)
    x, y = _lagged(cases, lags, Path(path).name)
    mapping = data["edge_mapping"]
    try:
        edges = [np.array(mapping["edge_index"][str(t)]).reshape(-1, 2).T for t in range(len(x))]
        weights = [np.array(mapping["edge_weight"][str(t)], np.float32) for t in range(len(x))]
    except KeyError as error:
        raise InputError(
            f"dataset.path: {Path(path).name} has no edges for day {error}; it holds "
            f"{len(mapping.get('edge_index', {}))} of {data['time_periods']} days"
        ) from error
    return SnapshotSequence.from_lists(
        edges,
        cases.shape[1],
        weights=weights,
        x=x,
        y=y,
        info={"name": "england_covid", "task": "node_regression"},
    )


def chickenpox(path: str | Path, lags: int = 4) -> SnapshotSequence:
    """Weekly chickenpox cases in 20 Hungarian counties (PyG Temporal's ``chickenpox.json``).

    One static graph of neighbouring counties; features are the cases of ``lags`` weeks, the target
    those of the week after.

    Args:
        path: the JSON file.
        lags: weeks of cases that a node's features are.
    """
    data = _read_json(Path(path), ("edges", "FX"))
    cases = _matrix(data["FX"], "FX")
    x, y = _lagged(cases, lags, Path(path).name)
    edges = np.array(data["edges"]).reshape(-1, 2).T
    return SnapshotSequence.from_lists(
        [edges] * len(x),
        cases.shape[1],
        x=x,
        y=y,
        info={"name": "chickenpox", "task": "node_regression"},
    )


def twitter_tennis(
    path: str | Path, features: Literal["encoded", "raw"] = "encoded", offset: int = 1
) -> SnapshotSequence:
    """Hourly mention graphs of 1,000 accounts (PyG Temporal's ``twitter_tennis_*.json``).

    Consecutive graphs barely overlap. Features are log-degree and transitivity, one-hot
    (``encoded``, 16 wide) or ``raw``; the target is ``log(1 + mentions)`` of ``offset`` snapshots
    later (the last snapshots repeat the last target, as in PyG Temporal).

    Args:
        path: the JSON file.
        features: ``encoded`` (one-hot, 16 wide) or ``raw`` (2 wide).
        offset: snapshots between a snapshot and its target.
    """
    data = _read_json(Path(path), ("time_periods", "0"))
    periods = int(data["time_periods"])
    try:
        steps = [data[str(t)] for t in range(periods)]
        raw = np.stack([_matrix(step["X"], "X") for step in steps])
        mentions = _matrix([step["y"] for step in steps], "y")
        edges = [np.array(step["edges"]).reshape(-1, 2).T for step in steps]
        weights = [np.array(step["weights"], np.float32) for step in steps]
    except KeyError as error:
        raise InputError(
            f"dataset.path: {Path(path).name} lacks {error}; every one of its {periods} snapshots "
            "needs edges, weights, X and y"
        ) from error
    if features == "encoded":
        degree = np.minimum(np.ceil(np.log(raw[..., 0] + 1)), 4).astype(np.int64)
        transitivity = np.floor(raw[..., 1] * 10).astype(np.int64)
        x = np.concatenate((np.eye(5)[degree], np.eye(11)[transitivity]), axis=2)
    elif features == "raw":
        x = raw
    else:
        raise InputError(f"dataset.features: is {features!r}; use encoded or raw")
    later = np.minimum(np.arange(periods) + offset, periods - 1)
    return SnapshotSequence.from_lists(
        edges,
        mentions.shape[1],
        weights=weights,
        x=x.astype(np.float32),
        y=np.log1p(mentions)[later].astype(np.float32),
        info={"name": "twitter_tennis", "task": "node_regression"},
    )


def _read_rows(path: Path, columns: int, separator: str | None, header: bool) -> np.ndarray:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InputError(
            f"dataset.path: cannot read {str(path)!r} ({error.strerror}); give the edge file"
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#") or (header and number == 1):
            continue
        cells = line.split(separator)
        try:
            if len(cells) != columns:
                raise ValueError(f"{len(cells)} columns instead of {columns}")
            rows.append([float(cell) for cell in cells])
        except ValueError as error:
            raise InputError(
                f"dataset.path: {path.name}, line {number} is {line!r}: {error}; remove or repair "
                "the line"
            ) from error
    if not rows:
        raise InputError(f"dataset.path: {path.name} holds no edges; is it the right file?")
    return np.array(rows)


def bitcoin(
    path: str | Path, every: float = 30 * 86400.0, life: int | None = 10, labels: bool = True
) -> SnapshotSequence:
    """Who-trusts-whom ratings with times (SNAP's ``soc-sign-bitcoin*.csv``).

    Rows are ``source, target, rating, time``, with or without a header, in any order: they are
    sorted by time. Users are renumbered by id. Edges weigh 1; the class of an edge is 1 for a
    positive rating and 0 for a negative one (``labels``). Features are in- and out-degrees of the
    snapshot.

    Args:
        path: the CSV file.
        every: seconds a snapshot covers.
        life: snapshots a rating lives; None for forever.
        labels: whether edges have classes.
    """
    file = Path(path)
    with _opened(file) as stream:
        header = not stream.readline()[:1].isdigit()
    rows = _read_rows(file, 4, ",", header)
    rows = rows[np.argsort(rows[:, 3], kind="stable")]
    users, ends = np.unique(rows[:, :2].astype(np.int64), return_inverse=True)
    ends = ends.reshape(-1, 2)
    return from_events(
        ends[:, 0],
        ends[:, 1],
        rows[:, 3],
        users.size,
        every=every,
        life=life,
        labels=(rows[:, 2] > 0).astype(np.int64) if labels else None,
        info={"name": file.stem, "task": "edge_classification"},
    )


def college_messages(
    path: str | Path,
    every: float = 7 * 86400.0,
    life: int | None = 4,
    merge: Merge | None = None,
) -> SnapshotSequence:
    """Private messages at a college with times (SNAP's ``CollegeMsg.txt``).

    Rows are ``source target time``. Features are in- and out-degrees of the snapshot; the task is
    to tell the next snapshot's edges from others.

    Args:
        path: the text file.
        every: seconds a snapshot covers.
        life: snapshots a message lives; None for forever.
        merge: weight of an edge: None (1), or ``count`` (messages while alive).
    """
    rows = _read_rows(Path(path), 3, None, False)
    rows = rows[np.argsort(rows[:, 2], kind="stable")]
    users, ends = np.unique(rows[:, :2].astype(np.int64), return_inverse=True)
    ends = ends.reshape(-1, 2)
    return from_events(
        ends[:, 0],
        ends[:, 1],
        rows[:, 2],
        users.size,
        every=every,
        life=life,
        merge=merge or "last",
        info={"name": "college_messages", "task": "link_prediction"},
    )


def _opened(file: Path) -> Any:
    try:
        return file.open()
    except OSError as error:
        raise InputError(
            f"dataset.path: cannot read {str(file)!r} ({error.strerror}); give the edge file"
        ) from error


def synthetic(
    num_nodes: int = 1000,
    num_edges: int = 8000,
    snapshots: int = 20,
    change: float = 0.05,
    growth: float = 0.0,
    skew: float = 0.0,
    features: int = 8,
    seed: int = 0,
) -> SnapshotSequence:
    """Generated snapshots with a chosen size, rate of change, growth and skew.

    Features are random walks; the target is a fixed mixture of the neighbourhood's mean feature in
    this snapshot and the one before, plus noise, so that a model that uses graph and time can learn
    it. Where the sequence grows, the nodes of earlier snapshots are a prefix of those of later
    ones.

    Args:
        num_nodes: nodes of the last snapshot.
        num_edges: edges of the last snapshot.
        snapshots: their number.
        change: share of the edges replaced from one snapshot to the next.
        growth: share of new nodes and edges a snapshot (0.1: 10% more each, compounding).
        skew: exponent of the power law from which ends are drawn (0: uniform; 0.8: hubs).
        features: width of a node's features.
        seed: of every draw.
    """
    if num_nodes < 2 or num_edges < 1 or snapshots < 1 or features < 1:
        raise InputError(
            f"dataset: {num_nodes} nodes, {num_edges} edges, {snapshots} snapshots, {features} "
            "features; give at least 2 nodes and 1 of the others"
        )
    if not 0 <= change <= 1 or growth < 0 or not 0 <= skew < 1:
        raise InputError(
            f"dataset: change {change}, growth {growth}, skew {skew}; change lies in 0 to 1, "
            "growth is at least 0, skew lies in 0 to 1 (below 1)"
        )
    draw = np.random.Generator(np.random.PCG64(rng.fold(seed, rng.Stream.DATASET)))
    rate = (1 + growth) ** -np.arange(snapshots - 1, -1, -1.0)
    nodes = np.maximum(2, np.round(num_nodes * rate)).astype(np.int64)
    wanted = np.minimum(np.round(num_edges * rate).astype(np.int64), nodes * (nodes - 1) // 2)
    hub = draw.permutation(num_nodes)

    def fresh(count: int, alive: int, have: np.ndarray) -> np.ndarray:
        found = have
        missing = count
        while missing > 0:
            ends = [
                np.minimum((alive * draw.random(2 * missing) ** (1 / (1 - skew))), alive - 1)
                for _ in range(2)
            ]
            src, dst = (end.astype(np.int64) for end in ends)
            if alive == num_nodes:
                src, dst = hub[src], hub[dst]
            keys = dst * num_nodes + src
            new = np.setdiff1d(keys[src != dst], found)
            new = draw.permutation(new)[:missing]
            found = np.union1d(found, new)
            missing -= new.size
        return found

    keys: list[np.ndarray] = []
    now = np.empty(0, np.int64)
    for t in range(snapshots):
        keep = now.size - round(change * now.size)
        now = np.sort(draw.permutation(now)[:keep])
        now = fresh(int(wanted[t]) - now.size, int(nodes[t]), now)
        keys.append(now)
    steps = draw.standard_normal((snapshots, num_nodes, features)).astype(np.float32)
    x = 0.5 * np.cumsum(steps, axis=0) / np.sqrt(np.arange(1, snapshots + 1))[:, None, None]
    x = (x + draw.standard_normal((num_nodes, features))).astype(np.float32)
    mix = draw.standard_normal((2, features)).astype(np.float32) / np.sqrt(features)
    active = np.arange(num_nodes)[None, :] < nodes[:, None]
    y = np.zeros((snapshots, num_nodes), np.float32)
    before = np.zeros(num_nodes, np.float32)
    for t, edges in enumerate(keys):
        dst = edges // num_nodes
        src = edges - dst * num_nodes
        degree = np.maximum(np.bincount(dst, minlength=num_nodes), 1)
        now_mix = np.bincount(dst, weights=(x[t] @ mix[0])[src], minlength=num_nodes) / degree
        was_mix = np.bincount(dst, weights=(x[t] @ mix[1])[src], minlength=num_nodes) / degree
        noise = 0.05 * draw.standard_normal(num_nodes)
        y[t] = now_mix + before + noise
        before = was_mix.astype(np.float32)
    return SnapshotSequence.from_keys(
        keys,
        num_nodes,
        x,
        y=y,
        active=None if growth == 0 else active,
        info={"name": "synthetic", "task": "node_regression"},
    )


covid_job = as_graph(england_covid)
chickenpox_job = as_graph(chickenpox)
tennis_job = as_graph(twitter_tennis)
bitcoin_job = as_graph(bitcoin)
college_job = as_graph(college_messages)
synthetic_job = as_graph(synthetic)
