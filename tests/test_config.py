import re
from pathlib import Path

import pytest
import yaml

from gnn_dist import config, features, partitioners, sampling
from gnn_dist.errors import InputError
from gnn_dist.nn import build
from gnn_dist.nn.recurrent import models as recurrent
from gnn_dist.strategies.pipeline.batches import KINDS

BASE = {"dataset.name": "sbm"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train.bach_size": 3}, ["train.bach_size", "unknown key", "batch_size"]),
        ({"clutser.workers": 2}, ["clutser", "unknown key", "cluster"]),
        ({"train.batch_size": 0}, ["train.batch_size", "0", "greater than or equal to 1"]),
        ({"train.epochs": True}, ["train.epochs", "True", "not be true or false"]),
        ({"sampler.fanouts": [True, 5]}, ["sampler.fanouts", "not be true or false"]),
        ({"train.lr": -1}, ["train.lr", "-1", "greater than 0"]),
        ({"train.epochs": "many"}, ["train.epochs", "'many'", "integer"]),
        ({"task.kind": "ranking"}, ["task.kind", "'ranking'", "regression"]),
        ({"sampler.fanouts": [5, 0]}, ["sampler.fanouts", "0", ">= 1"]),
        ({"sampler.fanouts": []}, ["sampler.fanouts", "empty"]),
        ({"sampler.fanouts": [5, 5], "model.layers": 3}, ["sampler.fanouts", "2 hops", "3"]),
        ({"cluster.workers": 9, "train.batch_size": 4}, ["train.batch_size", "4", "9"]),
        ({"seed": 0, "seed.deep": 1}, ["seed.deep", "not a section"]),
        ({"dataset": None}, ["dataset", "partition.path"]),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_the_remedy(overrides, words):
    with pytest.raises(InputError) as error:
        config.load(None, {**BASE, **overrides})
    for word in words:
        assert word in str(error.value)


def test_a_dumped_configuration_reads_back_as_itself(tmp_path: Path):
    job = config.load(None, {**BASE, "sampler.fanouts": "7,-1", "model.args.hidden": 9})
    file = tmp_path / "config.yaml"
    file.write_text(job.dump())
    assert config.load(file) == job
    assert job.sampler.fanouts == [7, -1]
    assert job.model.args == {"hidden": 9}


@pytest.mark.parametrize("text", ["a: [", "just words", "- 1\n- 2"])
def test_a_file_that_is_no_mapping_is_an_error_that_names_it(tmp_path: Path, text: str):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape("broken.yaml")):
        config.load(file)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name: caf\xe9", "UTF-8"),
        (b"\xff\xfed\x00", "UTF-8"),
        (b"seed: 1\nseed: 2", "'seed' is given twice"),
        (b"dataset: {name: a, args: {x: 1, x: 2}}", "'x' is given twice"),
        (b"dataset: {name: a, args: &a {x: *a}}", "contain themselves"),
        (b"dataset: {name: a, args: " + b"{a: " * 300 + b"1" + b"}" * 301, "plain values"),
        (b"seed: " + b"9" * 5000, "digits"),
        (b"name: 2026-99-99", "month"),
    ],
)
def test_odd_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, words: str):
    file = tmp_path / "odd.yaml"
    file.write_bytes(data)
    with pytest.raises(InputError, match=words):
        config.load(file)


def test_the_same_key_may_stand_in_two_sections_and_be_merged(tmp_path: Path):
    file = tmp_path / "fine.yaml"
    file.write_text("dataset: {name: a, args: &a {x: 1}}\nmodel: {name: b, args: {<<: *a, x: 2}}")
    job = config.load(file)
    assert (job.dataset.args, job.model.args) == ({"x": 1}, {"x": 2})


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        config.load(Path("nowhere.yaml"))


CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def test_configurations_are_shipped():
    assert {"quickstart.yaml", "ogbn_arxiv.yaml", "ogbn_products.yaml"} <= {f.name for f in CONFIGS}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.name)
def test_every_shipped_configuration_is_valid(file: Path):
    assert config.load(file).folder == Path("runs") / yaml.safe_load(file.read_text())["name"]


def test_the_fingerprint_knows_what_decides_the_weights():
    job = config.load(None, BASE)
    same = {"cluster.workers": 2, "loader.prefetch": 0, "train.epochs": 99, "partition.name": "ldg"}
    other = {"seed": 1, "sampler.fanouts": [3], "train.batch_size": 7, "model.args.hidden": 5}
    for key, value in same.items():
        assert config.load(None, {**BASE, key: value}).fingerprint() == job.fingerprint(), key
    for key, value in other.items():
        assert config.load(None, {**BASE, key: value}).fingerprint() != job.fingerprint(), key


def test_every_key_has_a_description():
    missing = [key for key, info in config.flags() if not info.description and "args" not in key]
    assert not missing


@pytest.mark.parametrize(
    ("section", "names"),
    [
        (config.Partition, partitioners.BUILTIN),
        (config.Model, build.BUILTIN | recurrent.MODELS),
        (config.Sampler, [*sampling.BUILTIN, *KINDS]),
        (config.Cache, features.BUILTIN),
    ],
)
def test_help_lists_the_built_in_parts(section, names):
    described = re.findall(r"\w+", section.model_fields["name"].description)
    assert set(names) <= set(described)
