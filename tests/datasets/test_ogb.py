"""OGB's own raw layouts, small, read through the real package ``ogb``; no network."""

import builtins
import functools
import gzip
import importlib.util
import io
import json
import pickle
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

if importlib.util.find_spec("ogb") is None:  # importing it plainly would look at the network
    pytest.skip("ogb is not installed (pip install 'gnn-dist[ogb]')", allow_module_level=True)
from gnn_dist import cli
from gnn_dist.datasets import load, stored
from gnn_dist.datasets.csc import write_csc
from gnn_dist.errors import InputError
from gnn_dist.graph import Graph
from gnn_dist.interop.ogb import import_ogb, ogb_accuracy, ogb_rocauc

NODES, EDGES = 60, 300


@pytest.fixture(autouse=True)
def no_questions(monkeypatch):
    """Nobody is asked, and no network is used."""

    def refuse(*args, **kwargs):
        raise AssertionError("asked on the terminal, or the network was used")

    monkeypatch.setattr(builtins, "input", refuse)
    import_ogb()
    monkeypatch.setattr("ogb.nodeproppred.dataset.decide_download", refuse)
    monkeypatch.setattr("ogb.utils.url.ur.urlopen", refuse)


def csv(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    kind = "%d" if rows.dtype.kind in "iu" else "%.6f"
    np.savetxt(text, rows.reshape(len(rows), -1), fmt=kind, delimiter=",")
    with gzip.open(path, "wt") as file:
        file.write(text.getvalue())


class Layout:
    """A data set in OGB's raw layout and the arrays in it."""

    def __init__(self, root: Path, name: str, split: str, classes: int) -> None:
        rng = np.random.default_rng(3)
        self.root, self.name = root, name
        self.folder = root / name.replace("-", "_")
        self.src = rng.integers(0, NODES, EDGES)
        self.dst = rng.integers(0, NODES, EDGES)
        self.x = rng.standard_normal((NODES, 8)).round(4).astype(np.float32)
        self.y = rng.integers(0, classes, (NODES, 1))
        self.year = rng.integers(2000, 2020, (NODES, 1))
        order = rng.permutation(NODES)
        self.split = {"train": order[:30], "valid": order[30:40], "test": order[40:-1]}
        self.unlabelled = order[-1]
        self.folder.mkdir(parents=True)
        (self.folder / "RELEASE_v1.txt").touch()
        for part, ids in self.split.items():
            csv(self.folder / "split" / split / f"{part}.csv.gz", ids)

    def csv(self, **files: np.ndarray) -> None:
        raw = self.folder / "raw"
        csv(raw / "edge.csv.gz", np.stack((self.src, self.dst), axis=1))
        csv(raw / "num-node-list.csv.gz", np.array([NODES]))
        csv(raw / "num-edge-list.csv.gz", np.array([EDGES]))
        csv(raw / "node-label.csv.gz", self.y)
        for file, rows in files.items():
            csv(raw / f"{file}.csv.gz", rows)

    def load(self, **args) -> Graph:
        return load("ogb", {"name": self.name, "root": str(self.root), **args})

    def forget(self) -> None:
        for folder in self.folder.glob("gnn_dist*"):
            shutil.rmtree(folder)

    def check_splits(self, graph: Graph) -> None:
        for part, ids in self.split.items():
            ours = graph.splits["val" if part == "valid" else part]
            assert ours.tolist() == sorted(ids.tolist())


def arxiv(root: Path) -> Layout:
    layout = Layout(root, "ogbn-arxiv", "time", 40)
    layout.csv(**{"node-feat": layout.x, "node_year": layout.year})
    return layout


def products(root: Path) -> Layout:
    layout = Layout(root, "ogbn-products", "sales_ranking", 47)
    layout.csv(**{"node-feat": layout.x})
    return layout


def papers(root: Path, fortran: bool = False) -> Layout:
    layout = Layout(root, "ogbn-papers100M", "time", 172)
    layout.y = layout.y.astype(np.float32)
    layout.y[layout.unlabelled] = np.nan  # as most papers are; in no split
    edge_index = np.stack((layout.src, layout.dst))
    if fortran:
        edge_index = np.asfortranarray(edge_index)
    (layout.folder / "raw").mkdir()
    np.savez_compressed(
        layout.folder / "raw" / "data.npz",
        edge_index=edge_index,
        node_feat=layout.x,
        node_year=layout.year,
        num_nodes_list=np.array([NODES]),
        num_edges_list=np.array([EDGES]),
    )
    np.savez_compressed(layout.folder / "raw" / "node-label.npz", node_label=layout.y)
    return layout


def proteins(root: Path, file: str = "node_species") -> Layout:
    layout = Layout(root, "ogbn-proteins", "species", 2)
    rng = np.random.default_rng(5)
    layout.y = rng.integers(0, 2, (NODES, 112))
    layout.feat = rng.random((EDGES, 8)).round(4).astype(np.float32)
    layout.csv(**{"edge-feat": layout.feat, file: layout.year})
    return layout


def directed(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    return layout.src, layout.dst


def both(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """As OGB adds inverse edges: each right after its own."""
    src = np.stack((layout.src, layout.dst), axis=1).ravel()
    dst = np.stack((layout.dst, layout.src), axis=1).ravel()
    return src, dst


def same_topology(graph: Graph, src: np.ndarray, dst: np.ndarray) -> None:
    plain = Graph.from_edges(src, dst, NODES)
    assert np.array_equal(graph.indptr, plain.indptr)
    assert np.array_equal(graph.indices, plain.indices)
    assert np.array_equal(graph.edge_ids, plain.edge_ids)


@pytest.mark.parametrize(
    ("make", "ends"), [(arxiv, directed), (products, both), (papers, directed), (proteins, both)]
)
def test_what_ogb_reads_is_what_is_loaded_first_and_from_every_cache(tmp_path, make, ends):
    layout = make(tmp_path)
    first = layout.load()
    same_topology(first, *ends(layout))
    layout.check_splits(first)
    again = layout.load()  # our own conversion
    layout.forget()
    cached = layout.load()  # OGB's processed file (of the CSV layouts)
    processed = layout.folder / "processed" / "data_processed"
    assert processed.exists() == (make is not papers)
    for other in (again, cached):
        assert isinstance(other.node["x"], np.memmap)
        assert other.digest == first.digest
        fresh = Graph(
            other.indptr, other.indices, other.edge_ids, other.node, other.edge, other.splits
        )
        assert fresh.digest == first.digest
        assert other.info == first.info
    if make is not proteins:
        assert np.array_equal(first.node["x"], layout.x)
        known = ~np.isnan(layout.y[:, 0].astype(float))
        assert first.node["y"].dtype == np.int64
        assert np.array_equal(first.node["y"][known], layout.y[known, 0])
        assert (first.node["y"][~known] == -1).all()
    if make in (arxiv, papers):
        assert np.array_equal(first.node["year"], layout.year[:, 0])


def test_the_processed_file_of_ogb_itself_is_read(tmp_path):
    layout = arxiv(tmp_path)
    theirs = import_ogb().NodePropPredDataset
    (layout.folder / "processed").mkdir()
    given, labels = theirs("ogbn-arxiv", str(tmp_path))[0]
    shutil.rmtree(layout.folder / "raw")
    graph = layout.load()
    same_topology(graph, *given["edge_index"])
    assert np.array_equal(graph.node["x"], given["node_feat"])
    assert np.array_equal(graph.node["y"], labels[:, 0])


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_code_in_a_processed_file_is_not_run(tmp_path, capsys):
    layout = arxiv(tmp_path)
    (layout.folder / "processed").mkdir()
    torch.save({"graph": Evil()}, layout.folder / "processed" / "data_processed")
    with pytest.raises(InputError, match="not a pickle of plain arrays"):
        layout.load()
    assert "run" not in capsys.readouterr().out


def test_papers_is_what_ogbs_own_reader_gives(tmp_path):
    from ogb.io.read_graph_raw import read_binary_graph_raw

    layout = papers(tmp_path, fortran=True)
    given = read_binary_graph_raw(str(layout.folder / "raw"))[0]
    graph = layout.load()
    same_topology(graph, *given["edge_index"])
    assert np.array_equal(graph.node["x"], given["node_feat"])
    assert not list(layout.folder.rglob("*.raw"))
    assert not list(layout.folder.rglob("*.tmp"))


def test_papers_arrays_are_never_read_whole(tmp_path, monkeypatch):
    layout = papers(tmp_path)
    real = np.load

    def load_one(file, mmap_mode=None, **options):
        assert mmap_mode == "r" or str(file).endswith("node-label.npz"), file
        return real(file, mmap_mode=mmap_mode, **options)

    monkeypatch.setattr(np, "load", load_one)
    graph = layout.load()
    assert isinstance(graph.indices, np.memmap)
    assert isinstance(graph.node["x"], np.memmap)


def test_papers_is_converted_in_bounded_memory(tmp_path, monkeypatch):
    layout = papers(tmp_path)
    rng = np.random.default_rng(0)
    nodes, edges = 200_000, 1_000_000
    x = rng.standard_normal((nodes, 40)).astype(np.float32)  # 32 MB
    np.savez(
        layout.folder / "raw" / "data.npz",
        edge_index=rng.integers(0, nodes, (2, edges)),  # 16 MB
        node_feat=x,
        num_nodes_list=np.array([nodes]),
        num_edges_list=np.array([edges]),
    )
    labels = np.zeros((nodes, 1), np.float32)
    np.savez(layout.folder / "raw" / "node-label.npz", node_label=labels)
    sort = functools.partial(write_csc, memory=1 << 21, chunk=1 << 14)
    monkeypatch.setattr("gnn_dist.datasets.ogb.write_csc", sort)
    one = np.array([0])
    write_csc(one, one, 1, tmp_path, undirected=True)  # compiled before it is measured
    tracemalloc.start()
    graph = layout.load(undirected=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert graph.num_edges > 1.9 * edges
    assert np.array_equal(graph.node["x"], x)


def test_a_second_start_reads_no_array(tmp_path, monkeypatch):
    layout = arxiv(tmp_path)
    digest = layout.load().digest
    shutil.rmtree(layout.folder / "raw")  # nor is anything else needed

    def refuse(*args, **kwargs):
        raise AssertionError("read again")

    monkeypatch.setattr("gnn_dist.graph._check_tensors", refuse)
    monkeypatch.setattr("gnn_dist.graph.hashlib.blake2b", refuse)
    assert layout.load().digest == digest


def test_a_damaged_conversion_is_made_anew(tmp_path):
    layout = arxiv(tmp_path)
    digest = layout.load().digest
    file = layout.folder / "gnn_dist" / "node.x.npy"
    file.write_bytes(file.read_bytes()[:-5])
    assert layout.load().digest == digest
    (layout.folder / "gnn_dist" / "graph.json").write_text("{")
    assert layout.load().digest == digest


def test_proteins_has_edge_features_species_and_many_labels(tmp_path):
    layout = proteins(tmp_path, "species")
    graph = layout.load()
    _, dst = both(layout)
    assert np.array_equal(graph.edge["feat"], np.repeat(layout.feat, 2, axis=0))
    assert np.array_equal(graph.node["species"], layout.year[:, 0])
    assert np.array_equal(graph.node["y"], layout.y)
    for v in (0, 17, NODES - 1):
        mean = np.repeat(layout.feat, 2, axis=0)[dst == v].mean(axis=0)
        np.testing.assert_allclose(graph.node["x"][v], mean, rtol=1e-6)
    with pytest.raises(InputError, match="both directions"):
        layout.load(undirected=True)


@pytest.mark.parametrize("make", [arxiv, papers])
def test_undirected_has_every_edge_in_both_directions_once(tmp_path, make):
    layout = make(tmp_path)
    graph = layout.load(undirected=True)
    pairs = {(u, v) for u, v in zip(*directed(layout), strict=True)}
    wanted = sorted((v, u) for u, v in pairs | {(v, u) for u, v in pairs})
    assert list(zip(graph.destinations(), graph.indices, strict=True)) == wanted
    assert graph.edge_ids is None


@pytest.mark.parametrize("memory", [1, 32 * 40, 1 << 20])
@pytest.mark.parametrize("undirected", [False, True])
def test_sorting_on_disk_does_not_depend_on_memory(tmp_path, memory, undirected):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 50, 500), rng.zipf(1.5, 500) % 50
    count = write_csc(src, dst, 50, tmp_path, undirected=undirected, memory=memory, chunk=37)
    if undirected:
        unique = np.unique(np.concatenate([dst * 50 + src, src * 50 + dst]))
        src, dst = unique % 50, unique // 50
    plain = Graph.from_edges(src, dst, 50)
    assert count == src.size
    assert np.array_equal(np.load(tmp_path / "indptr.npy"), plain.indptr)
    assert np.array_equal(np.load(tmp_path / "indices.npy"), plain.indices)
    if not undirected:
        assert np.array_equal(np.load(tmp_path / "edge_ids.npy"), plain.edge_ids)
    assert not list(tmp_path.glob("*.tmp"))


def test_an_edge_list_in_order_needs_no_edge_ids(tmp_path):
    dst = np.sort(np.random.default_rng(0).integers(0, 20, 100))
    write_csc(np.zeros(100, np.int64), dst, 20, tmp_path, chunk=7)
    assert not (tmp_path / "edge_ids.npy").exists()


def test_an_edge_that_names_no_node_is_an_error(tmp_path):
    with pytest.raises(InputError, match="names node 9; ids run from 0 to 8"):
        write_csc(np.array([0, 9]), np.array([1, 1]), 9, tmp_path)


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    def fill(folder):
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device; make room"):
        stored.make_stored(tmp_path / "graph", {}, fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "ogbn-proteins"])
def test_without_files_the_message_says_which_go_where(tmp_path, name):
    with pytest.raises(InputError) as caught:
        load("ogb", {"name": name, "root": str(tmp_path)})
    text = str(caught.value)
    short = name.removeprefix("ogbn-")
    assert "--download" in text
    assert f"http://snap.stanford.edu/ogb/data/nodeproppred/{short}.zip" in text
    assert str(tmp_path / f"{short}.zip") in text
    folder = tmp_path / name.replace("-", "_")
    for file in ("raw/edge.csv.gz", "raw/node-label.csv.gz", "RELEASE_v1.txt"):
        assert str(folder / file) in text
    assert "train.csv.gz" in text


def test_offline_a_download_says_what_to_do_and_leaves_nothing(tmp_path, monkeypatch):
    def offline(url):
        raise OSError("no route to host")

    monkeypatch.setattr("ogb.utils.url.ur.urlopen", offline)
    with pytest.raises(InputError, match=r"no route to host.*papers100M-bin\.zip.*raw/data\.npz"):
        load("ogb", {"name": "ogbn-papers100M", "root": str(tmp_path), "download": True})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("download", [False, True])
def test_an_archive_is_unpacked(tmp_path, monkeypatch, download):
    layout = arxiv(tmp_path / "made")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in layout.folder.rglob("*.*"):
            if file.is_file():
                archive.write(file, Path("arxiv") / file.relative_to(layout.folder))
    root = tmp_path / "root"
    root.mkdir()

    class Answer(io.BytesIO):
        def info(self):
            return {"Content-Length": str(2 << 30)}  # OGB would ask about this size

    if download:
        monkeypatch.setattr("ogb.utils.url.ur.urlopen", lambda url: Answer(packed.getvalue()))
        monkeypatch.setattr("ogb.utils.url.tqdm", lambda steps: Steps(range(2)))
    else:
        (root / "arxiv.zip").write_bytes(packed.getvalue())
    args = {"name": "ogbn-arxiv", "root": str(root), "download": download}
    assert load("ogb", args).digest == layout.load().digest
    assert (root / "arxiv.zip").exists() == (not download)


@pytest.mark.parametrize("name", ["../../evil.npy", "/tmp/evil.npy", "a b.npy"])
def test_members_of_archives_cannot_leave_their_folder(tmp_path, name):
    layout = papers(tmp_path / "made")
    with zipfile.ZipFile(layout.folder / "raw" / "data.npz", "a") as archive:
        archive.writestr(name, b"evil")
    with pytest.raises(InputError, match="which OGB does not write"):
        layout.load()
    assert not list(tmp_path.rglob("*evil*"))

    layout = arxiv(tmp_path / "packed")
    root = tmp_path / "root"
    root.mkdir()
    with zipfile.ZipFile(root / "arxiv.zip", "w") as archive:
        for file in layout.folder.rglob("*.*"):
            if file.is_file():
                archive.write(file, Path("arxiv") / file.relative_to(layout.folder))
        archive.writestr(name, b"evil")
    load("ogb", {"name": "ogbn-arxiv", "root": str(root)})
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/tmp/evil.npy").exists()


class Steps(list):
    def set_description(self, text):
        pass


def test_an_incomplete_folder_is_not_replaced(tmp_path):
    layout = arxiv(tmp_path)
    (layout.folder / "RELEASE_v1.txt").unlink()
    (layout.folder / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(InputError, match=r"lacks RELEASE_v1\.txt, raw/edge\.csv\.gz"):
        layout.load(download=True)
    assert (layout.folder / "raw" / "node-feat.csv.gz").exists()


def test_a_damaged_file_is_named_with_the_remedy(tmp_path):
    layout = papers(tmp_path)
    file = layout.folder / "raw" / "data.npz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InputError, match=r"ogbn_papers100M cannot be read.*fetch .*papers100M-bin"):
        layout.load()
    assert not list(layout.folder.glob("*gnn_dist*"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"name": "ogbn-mag"}, "typed graphs are not supported yet"),
        ({"name": "ogbn-x"}, "there is no 'ogbn-x'; use one of ogbn-arxiv"),
        ({"name": "ogbn-arxiv", "download": "yes"}, "ogb.download: must be true or false"),
        ({}, "needs the argument 'name'"),
    ],
)
def test_a_wrong_argument_is_named(args, words):
    with pytest.raises(InputError, match=words):
        load("ogb", args)


def run(tmp_path, file, *more):
    config = str(Path(__file__).parents[2] / "configs" / file)
    flags = ["--dataset.args.root", str(tmp_path), "--output", str(tmp_path / "run")]
    flags += ["--cluster.workers", "0", "--train.epochs", "2", "--partition.parts", "2"]
    assert cli.main(["train", config, *flags, *more]) == 0
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    with np.load(tmp_path / "run" / "predictions.npz") as saved:
        return scores, saved["test_output"], saved["test_target"]


@pytest.mark.parametrize(
    ("make", "file"),
    [
        (arxiv, "ogbn_arxiv.yaml"),
        (products, "ogbn_products.yaml"),
        (papers, "ogbn_papers100m.yaml"),
    ],
)
def test_the_configurations_train_and_score_with_the_evaluator(tmp_path, make, file):
    layout = make(tmp_path)
    scores, output, target = run(tmp_path, file, "--model.args.hidden", "8")
    evaluator = import_ogb().Evaluator(layout.name)
    truth = layout.y[np.sort(layout.split["test"])]
    assert np.array_equal(target, truth[:, 0])
    official = evaluator.eval({"y_true": truth, "y_pred": output.argmax(1)[:, None]})["acc"]
    assert scores["ogb_accuracy"] == pytest.approx(official)


def test_proteins_trains_and_scores_with_the_evaluator(tmp_path):
    layout = proteins(tmp_path)
    flags = ["--dataset.name", "ogb", "--dataset.args.name", "ogbn-proteins"]
    flags += ["--dataset.args.root", str(tmp_path), "--output", str(tmp_path / "run")]
    flags += ["--task.kind", "multilabel", "--task.metrics", "ogb_rocauc", "--train.epochs", "1"]
    flags += ["--sampler.fanouts", "4", "--model.args.hidden", "8"]
    assert cli.main(["train", *flags]) == 0
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    with np.load(tmp_path / "run" / "predictions.npz") as saved:
        output = saved["test_output"]
    truth = layout.y[np.sort(layout.split["test"])]
    evaluator = import_ogb().Evaluator("ogbn-proteins")
    official = evaluator.eval({"y_true": truth, "y_pred": output})["rocauc"]
    assert scores["ogb_rocauc"] == pytest.approx(official)


def test_a_metric_of_ogb_refuses_what_it_is_not_for():
    with pytest.raises(InputError, match="ogb_accuracy is for classes"):
        ogb_accuracy(torch.zeros(4, 2), torch.zeros(4, 2))
    with pytest.raises(InputError, match="112 labels"):
        ogb_rocauc(torch.zeros(4, 2), torch.zeros(4, 2))
    assert np.isnan(ogb_rocauc(torch.zeros(4, 112), torch.zeros(4, 112)))


def test_download_is_a_flag_of_the_command_line(tmp_path, capsys):
    config = str(Path(__file__).parents[2] / "configs" / "ogbn_arxiv.yaml")
    assert cli.main(["train", config, "--download", "--print-config"]) == 0
    assert "download: true" in capsys.readouterr().out
    assert cli.main(["partition", config, "--print-config"]) == 0
    assert "download: true" not in capsys.readouterr().out


def test_importing_ogb_starts_no_look_at_the_network():
    import_ogb()
    import ogb.version

    assert ogb.version.check_outdated is None


def test_without_ogb_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"ogb: is not installed; .*gnn-dist\[ogb\]"):
        load("ogb", {"name": "ogbn-arxiv"})


def test_a_conversion_is_not_a_pickle(tmp_path):
    layout = arxiv(tmp_path)
    layout.load()
    (layout.folder / "gnn_dist" / "node.y.npy").write_bytes(
        pickle.dumps(Evil()).ljust((layout.folder / "gnn_dist" / "node.y.npy").stat().st_size)
    )
    assert np.array_equal(layout.load().node["y"], layout.y[:, 0])  # made anew
