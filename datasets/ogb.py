"""The data set ``ogb``: OGB's node property prediction sets with their official splits.

Read once, through the package ``ogb``, and converted to a folder of memory maps beside the raw
files; every later start opens that folder. ogbn-papers100M is never held in memory whole: the
arrays of its ``data.npz`` are unpacked to files and its edges sorted there (``csc.write_csc``).
"""

import contextlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnn_dist.datasets import stored
from gnn_dist.datasets.checks import check_path
from gnn_dist.datasets.csc import write_csc
from gnn_dist.datasets.unpickle import load_arrays
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.interop.ogb import import_ogb

NAMES = ("ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-proteins")
_COPY = 1 << 20  # bytes unpacked at a time


def ogb(
    *, name: str, root: str = "dataset", download: bool = False, undirected: bool = False
) -> Graph:
    """OGB's ogbn-arxiv, -products, -papers100M and -proteins, with their official splits.

    Node tensors: ``x`` float32[N, F] and ``y`` (int64[N] classes, -1 where unknown; for
    ogbn-proteins uint8[N, 112] labels), ``year`` or ``species`` where the data set has them.
    ogbn-proteins has the edge tensor ``feat`` float32[E, 8] and no node features: ``x`` is the
    mean over the in-edges of a node. ``ogbn-products`` and ``ogbn-proteins`` come with both
    directions of every edge. The metrics ``ogb_accuracy`` and ``ogb_rocauc`` score with OGB's
    Evaluator.

    Args:
        name: the data set, as OGB calls it.
        root: the folder of OGB's data sets; ``root/ogbn_arxiv`` and so on.
        download: fetch what is missing (arxiv 0.08 GB, products 1.4 GB, proteins 0.2 GB,
            papers100M 56 GB); nothing is fetched without it, and nothing is asked.
        undirected: every edge in both directions, once.

    Raises ``InputError`` for files that are missing or damaged, saying which go where.
    """
    if name == "ogbn-mag":
        raise InputError(
            "ogb.name: 'ogbn-mag' has nodes and edges of several types; typed graphs are not "
            f"supported yet. Use one of {', '.join(NAMES)}"
        )
    if name not in NAMES:
        raise InputError(f"ogb.name: there is no {name!r}; use one of {', '.join(NAMES)}")
    for field, value in (("download", download), ("undirected", undirected)):
        if not isinstance(value, bool):
            raise InputError(f"ogb.{field}: must be true or false, not {value!r}")
    top = check_path("ogb.root", root)
    folder = top / name.replace("-", "_")
    converted = folder / ("gnn_dist_undirected" if undirected else "gnn_dist")
    meta = _meta(name)
    made_from = {"name": name, "version": meta["version"], "undirected": undirected}
    found = stored.open_stored(converted, made_from)
    if found is not None:
        return found
    if undirected and meta["has_edge_attr"] == "True":
        raise InputError(
            f"ogb.undirected: {name} has both directions of every edge already, each with its "
            "features; leave it out"
        )
    _provide(name, meta, top, folder, download)
    return stored.make_stored(
        converted, made_from, lambda aside: _convert(name, meta, top, folder, aside, undirected)
    )


def _meta(name: str) -> dict[str, str]:
    """OGB's own description of a data set: its files, splits and number of classes."""
    package = import_ogb()
    import pandas as pd

    table = pd.read_csv(
        Path(str(package.__file__)).parent / "master.csv", index_col=0, keep_default_na=False
    )
    return {str(key): str(value) for key, value in table[name].items()}


def _missing(meta: Mapping[str, str], folder: Path) -> list[Path]:
    """The files that OGB would read and that are not there."""
    needed = [f"RELEASE_v{meta['version']}.txt"]
    if meta["binary"] == "True":
        needed += ["raw/data.npz", "raw/node-label.npz"]
    elif not (folder / "processed" / "data_processed").exists():
        names = ["edge", "num-node-list", "num-edge-list", "node-label"]
        names += ["node-feat"] if meta["has_node_attr"] == "True" else []
        names += ["edge-feat"] if meta["has_edge_attr"] == "True" else []
        for more in meta["additional node files"].split(","):
            # ogb renames species.csv.gz, as it stands in the archive, when it reads it
            renamed = more == "node_species" and (folder / "raw" / "species.csv.gz").is_file()
            if more != "None" and not renamed:
                names.append(more)
        needed += [f"raw/{file}.csv.gz" for file in names]
    split = Path("split") / meta["split"]
    if not (folder / split / "split_dict.pt").exists():
        needed += [str(split / f"{part}.csv.gz") for part in ("train", "valid", "test")]
    return [folder / file for file in needed if not (folder / file).is_file()]


def _provide(name: str, meta: Mapping[str, str], root: Path, folder: Path, download: bool) -> None:
    """See that the raw files are there: from the archive in ``root``, or fetched if allowed."""
    missing = _missing(meta, folder)
    if not missing:
        return
    url = meta["url"]
    archive = root / url.rpartition("/")[2]
    there = (
        f"fetch {url} and put it there as {archive}, or unpack it so that these exist: "
        f"{', '.join(str(file) for file in missing)}"
    )
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"ogb.root: {folder} is incomplete, it lacks "
            f"{', '.join(str(file.relative_to(folder)) for file in missing)}; unpack {url} there, "
            "or remove that folder to begin anew"
        )
    fetched = False
    if not archive.is_file():
        if not download:
            raise InputError(
                f"ogb.root: {name} is not in {root}; give --download (dataset.args.download: "
                f"true) to fetch it, or {there}"
            )
        _fetch(url, root, there)
        fetched = True
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(aside)
        if folder.exists():
            folder.rmdir()
        (aside / meta["download_name"]).rename(folder)
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(
            f"ogb.root: {archive} cannot be unpacked ({error}); remove it and fetch {url} again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if missing := _missing(meta, folder):
        raise InputError(
            f"ogb.root: {archive} lacks {missing[0].relative_to(folder)}; fetch {url} again"
        )
    if fetched:
        archive.unlink()


def _fetch(url: str, root: Path, otherwise: str) -> None:
    from ogb.utils.url import download_url  # not decide_download, which asks on the terminal

    try:
        with contextlib.redirect_stdout(sys.stderr):
            download_url(url, str(root))
    except (OSError, RuntimeError, TypeError) as error:  # URLError is an OSError
        raise InputError(
            f"ogb.download: {url} cannot be fetched ({error}); where there is a network, "
            f"{otherwise}"
        ) from error


def _convert(
    name: str, meta: Mapping[str, str], root: Path, folder: Path, aside: Path, undirected: bool
) -> dict[str, Any]:
    """Write the files of the converted graph into ``aside``; returns its info."""
    try:
        dataset = _open(name, meta, root, folder)
        splits = dataset.get_idx_split()
        if meta["binary"] == "True":
            with np.load(folder / "raw" / "node-label.npz", allow_pickle=False) as labels:
                y = labels["node_label"]
            raw, num_nodes = _unpack(folder / "raw" / "data.npz", aside)
        else:
            (given, y), raw = dataset[0], {}
            num_nodes = int(given["num_nodes"])
            for key, value in given.items():
                if isinstance(value, np.ndarray):
                    raw[key] = value
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"ogb: {folder} cannot be read: {type(error).__name__}: {error}; remove it and fetch "
            f"{meta['url']} again"
        ) from error
    src, dst = raw.pop("edge_index")
    if "node_feat" not in raw:
        raw["node_feat"] = _mean_of_in_edges(raw["edge_feat"], dst, num_nodes)
    for key, array in raw.items():
        _write_tensor(aside, key, array)
    multilabel = int(meta["num tasks"]) > 1
    np.save(aside / "node.y.npy", y.astype(np.uint8) if multilabel else _classes(y))
    for part in ("train", "valid", "test"):
        ids = np.sort(np.asarray(splits[part], np.int64))
        np.save(aside / f"split.{'val' if part == 'valid' else part}.npy", ids)
    write_csc(src, dst, num_nodes, aside, undirected=undirected)
    del raw, src, dst
    for file in aside.glob("*.raw"):
        file.unlink()
    info: dict[str, Any] = {"name": name, "task": "multilabel" if multilabel else "classification"}
    return info if multilabel else {**info, "num_classes": int(meta["num classes"])}


def _open(name: str, meta: Mapping[str, str], root: Path, folder: Path) -> Any:
    """OGB's own data set object, with the parts replaced that pickle or would load everything."""
    base: Any = import_ogb().NodePropPredDataset
    binary = meta["binary"] == "True"
    processed = folder / "processed" / "data_processed"

    class Dataset(base):
        def pre_process(self) -> None:
            if binary:
                return
            if processed.exists():
                # torch.save of arrays, protocol 4: torch.load reads it only by running the pickle
                saved = _load_saved(processed)
                self.graph, self.labels = saved["graph"], saved["labels"]
                return
            processed.parent.mkdir(exist_ok=True)
            super().pre_process()

        def get_idx_split(self, split_type: str | None = None) -> Any:
            file = folder / "split" / (split_type or meta["split"]) / "split_dict.pt"
            return _load_saved(file) if file.is_file() else super().get_idx_split(split_type)

    with contextlib.redirect_stdout(sys.stderr):
        return Dataset(name, str(root))


def _load_saved(file: Path) -> Any:
    """Arrays in a file of ``torch.save``, read without running it."""
    with zipfile.ZipFile(file) as archive:
        (member,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        return _built(load_arrays(archive.read(member), f"ogb: {file}"))


def _built(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return value.build() if hasattr(value, "build") else value


def _unpack(npz: Path, aside: Path) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of an archive as memory maps of files ``NAME.raw``, and the number of nodes."""
    arrays = {}
    with zipfile.ZipFile(npz) as archive:
        for member in archive.namelist():
            key = member.removesuffix(".npy")
            if not key.isidentifier():
                raise InputError(
                    f"ogb: {npz} holds {member!r}, which OGB does not write; fetch it again"
                )
            target = aside / f"{key}.raw"
            with archive.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, _COPY)
            arrays[key] = np.load(target, mmap_mode="r", allow_pickle=False)
    nodes, edges = arrays.pop("num_nodes_list"), arrays.pop("num_edges_list")
    if nodes.size != 1 or arrays["edge_index"].shape != (2, int(edges[0])):
        raise InputError(f"ogb: {npz} does not hold one graph; fetch the archive again")
    return arrays, int(nodes[0])


def _write_tensor(aside: Path, key: str, array: np.ndarray) -> None:
    """``node_feat`` as ``node.x``, ``node_year`` as ``node.year``, ``edge_feat`` as
    ``edge.feat``; a file that is right as it was unpacked is renamed."""
    group, _, name = key.partition("_")
    target = aside / f"{group}.{'x' if key == 'node_feat' else name}.npy"
    dtype = np.dtype(np.float32) if array.dtype == np.float64 else array.dtype
    shape = array.shape
    if array.ndim == 2 and shape[1] == 1 and name != "feat":
        shape = shape[:1]
    unpacked = aside / f"{key}.raw"
    right = dtype == array.dtype and shape == array.shape and array.flags.c_contiguous
    if right and unpacked.exists():
        unpacked.rename(target)
        return
    rows = (part.reshape(-1, *shape[1:]) for part in stored.chunks_of(array))
    stored.write_rows(target, dtype, shape, rows)


def _mean_of_in_edges(feat: np.ndarray, dst: np.ndarray, num_nodes: int) -> np.ndarray:
    """float32[N, D]: the mean of the features of each node's in-edges, 0 where it has none."""
    count = np.maximum(np.bincount(dst, minlength=num_nodes), 1)
    columns = [np.bincount(dst, feat[:, k], num_nodes) / count for k in range(feat.shape[1])]
    return np.stack(columns, axis=1).astype(np.float32)


def _classes(y: np.ndarray) -> np.ndarray:
    """int64[N]; OGB marks unknown classes with NaN."""
    y = y.reshape(len(y))
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
    return y.astype(np.int64)
