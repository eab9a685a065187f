"""The typed configuration: one YAML file a job, every key also a dotted flag.

A job is read with ``load(file, overrides)``; whatever is wrong with it is one ``InputError`` that
names the key, the value and the remedy. Sections that name an exchangeable part (data set,
partitioner, sampler, model, cache) have ``name`` and ``args`` (see ``gnn_dist.plugins``).
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from gnn_dist.errors import InputError

_LONGEST = 200  # characters of a wrong value that are shown
_LARGEST_FANOUT = (1 << 31) - 1


def _split_commas(value: Any) -> Any:
    """``10,5`` on the command line means ``[10, 5]``."""
    if isinstance(value, str):
        return [_item(item) for item in value.split(",") if item.strip()]
    return [value] if isinstance(value, int | float) else value


def _item(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # the latter: a day or a number that cannot be
        return text


class _Loader(yaml.SafeLoader):
    """Takes no key twice, of which plain YAML would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag == "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


Ints = Annotated[list[int], BeforeValidator(_split_commas)]
Names = Annotated[list[str], BeforeValidator(_split_commas)]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic takes true for 1."""
        kind = cls.model_fields[info.field_name or ""].annotation
        given = value if isinstance(value, list) else [value]
        if bool not in (kind, *get_args(kind)) and any(isinstance(v, bool) for v in given):
            raise PydanticCustomError("truth", "input should not be true or false")
        return value


class Dataset(Section):
    name: str
    """a data set's name (see `gnn-dist datasets`) or dotted path"""
    args: dict[str, Any] = {}
    """keyword arguments of the data set"""
    transforms: Names = []
    """functions from a graph to a graph, by name (gcn_norm, add_self_loops) or dotted path"""


class Partition(Section):
    name: str = "metis"
    """random, hash, range, ldg, fennel, refennel, metis, kaminpar, mtkahypar, or the dotted path or
    entry point of a partitioner"""
    args: dict[str, Any] = {}
    """keyword arguments of the partitioner"""
    parts: int | None = Field(None, ge=1)
    """number of parts (default: one a worker, at least one)"""
    path: Path | None = None
    """the partition directory (default: `partition` in the output folder); used as it is where
    it was made for this graph with these settings, made where it is missing"""
    weights: Literal["presample", "vip"] | None = None
    """weigh vertices and edges by what they cost in a batch: counted in rehearsed epochs, or by
    probabilities without sampling; for partitioners that take weights (metis, kaminpar, ...)"""
    presample_epochs: int = Field(1, ge=1)
    """epochs that `presample` counts"""
    half: Names = []
    """node tensors to store in float16; they are widened on reading"""
    max_imbalance: float | None = Field(None, gt=1)
    """refuse a partition whose largest part holds more than this times the mean of nodes"""


class Sampler(Section):
    name: str = "neighbor"
    """neighbor, labor, ladies, fastgcn, for a pipeline circuits, parts, clusters, or a dotted
    path"""
    fanouts: Ints = [10, 10]
    """neighbours drawn a node, hop by hop from the seeds outward; -1 takes all"""
    replace: bool = False
    """draw with replacement"""
    weights: str | None = None
    """the edge tensor that holds sampling weights"""
    bulk: int = Field(1, ge=1)
    """global batches sampled in one call, with one round of requests a hop for all of them"""
    engine: Literal["fused", "matrix"] = "fused"
    """`matrix` samples by products of sparse matrices: slow, for study, the same batches"""
    args: dict[str, Any] = {}
    """further keyword arguments of the sampler"""


class Model(Section):
    name: str = "sage"
    """sage, gcn, gat, gin, deep, for snapshots tgcn, mpnn_lstm, evolve_gcn_o, evolve_gcn_h,
    gconv_gru, or the dotted path of an nn.Module that takes (x, blocks)"""
    layers: int | None = Field(None, ge=1)
    """number of layers (default: one a fan-out)"""
    args: dict[str, Any] = {}
    """keyword arguments of the model, such as hidden and dropout"""


class Task(Section):
    kind: Literal["classification", "multilabel", "regression"] = "classification"
    """what is predicted for a node"""
    target: str = "y"
    """the node tensor to predict"""
    loss: str | None = None
    """the loss (default: cross_entropy, bce or mse, by kind)"""
    metrics: Names | None = None
    """metrics by name or dotted path (default: by kind); the first one is monitored"""


class Train(Section):
    strategy: str = "data"
    """how the ranks compute one global batch: data, split, auto (the faster of these two),
    pipeline, snapshot or a dotted path"""
    epochs: int = Field(10, ge=1)
    """passes over the training nodes"""
    batch_size: int = Field(1024, ge=1)
    """seed nodes of a global batch, over all workers"""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """the optimiser"""
    lr: float = Field(3e-3, gt=0)
    """learning rate"""
    weight_decay: float = Field(0.0, ge=0)
    """weight decay"""
    clip_norm: float | None = Field(None, gt=0)
    """largest norm of the gradient of a global batch"""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 runs the model under autocast; weights stay float32"""
    max_steps: int | None = Field(None, ge=1)
    """end after so many optimiser steps in all"""
    evaluate_every: int = Field(1, ge=0)
    """epochs between evaluations of the validation split; 0 never evaluates while training"""
    patience: int | None = Field(None, ge=1)
    """stop after so many evaluations without a better monitored metric"""
    checkpoint_every: int | None = Field(None, ge=1)
    """optimiser steps between checkpoints, besides the one after every epoch"""
    keep_checkpoints: int = Field(2, ge=1)
    """checkpoints kept, besides the best"""
    baselines: bool = True
    """also report a constant predictor and an MLP on the node's own features"""


class Loader(Section):
    prefetch: int = Field(4, ge=0)
    """batches prepared ahead on threads; 0 prepares each one when it is needed"""
    max_bytes: int = Field(1 << 30, ge=1)
    """bytes of batches that may wait for the model (one is always allowed)"""
    sampling_threads: int = Field(1, ge=1)
    """threads that sample; more than one where no other host is asked"""
    drop_last: bool = False
    """leave out the last, smaller batch of an epoch"""


class Cache(Section):
    name: str = "none"
    """none, degree, presample, vip, score, lookahead, or the dotted path of a cache policy"""
    fraction: float | None = Field(None, ge=0, le=1)
    """rows kept of other hosts, as a fraction of the halo"""
    max_bytes: int | None = Field(None, ge=0)
    """bytes of rows kept; with `fraction`, the smaller of the two holds"""
    window: int = Field(1, ge=1)
    """batches whose missing rows are fetched together, once"""
    ahead: int = Field(0, ge=0)
    """batches beyond the window that are sampled before it is fetched; rows that they need are
    held, and `lookahead` sees them"""
    window_bytes: int | None = Field(None, ge=0)
    """bytes of rows held beyond the cache for those batches (default: as many as they need)"""
    args: dict[str, Any] = {}
    """keyword arguments of the policy"""


class Pipeline(Section):
    schedule: Literal["auto", "gpipe", "1f1b", "interleaved", "zb-h1", "chimera"] = "auto"
    """the schedule; `auto` measures a batch and takes the fastest that fits"""
    chunks: int = Field(2, ge=1)
    """stages a rank, for the schedule interleaved"""
    table: Path | None = None
    """a JSON file with a schedule of your own, used instead"""
    memory_mib: float | None = Field(None, gt=0)
    """activations that a rank may hold, in MiB"""
    replan: bool = True
    """move layers between stages when the slowest rank is 15% above the mean"""


class Cluster(Section):
    workers: int = Field(0, ge=0)
    """Ray workers, one rank each; 0 trains in this process without Ray"""
    address: str | None = None
    """a Ray cluster's address, or `auto`; none starts a local Ray"""
    placement: Literal["auto", "per-rank"] = "auto"
    """`auto`: ranks of a host share its partitions; `per-rank`: each rank is a host of its own"""
    replication: int = Field(1, ge=1)
    """copies of the graph and its features among the hosts; must divide their number, which of
    themselves hold each partition once"""
    threads: int = Field(1, ge=1)
    """compute threads a rank"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where models run; `auto` takes a GPU where the worker has one"""
    timeout: float = Field(120.0, gt=0)
    """seconds after which a rank that does not answer is an error"""
    max_failures: int = Field(2, ge=0)
    """how often a failed group of workers is restarted from the last checkpoint"""
    stage_dir: Path | None = None
    """a local folder to which each host copies its own partitions first"""
    tune_allocator: bool = True
    """keep freed memory in the process (glibc mallopt); faster, at the price of peak memory"""
    huge_pages: bool = False
    """ask glibc and torch for transparent huge pages, in workers that Ray starts"""
    network_interface: str | None = None
    """the interface of the cluster's network (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`)"""
    environment: dict[str, str] = {}
    """further environment variables of the workers that Ray starts"""


class Split(Section):
    data_parallel_layers: int = Field(0, ge=0)
    """layers next to the seeds that every rank computes for its own seeds, with no exchange"""


class Config(Section):
    name: str = "run"
    """a name for the report and the folder, without slashes"""
    seed: int = Field(0, ge=0)
    """the seed of every random choice"""
    output: Path | None = None
    """the folder of the run (default: runs/NAME)"""
    dataset: Dataset | None = None
    """the graph; may be left out where partition.path names an existing partition"""
    partition: Partition = Partition()
    sampler: Sampler = Sampler()
    model: Model = Model()
    task: Task = Task()
    train: Train = Train()
    loader: Loader = Loader()
    cache: Cache = Cache()
    pipeline: Pipeline = Pipeline()
    split: Split = Split()
    cluster: Cluster = Cluster()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.output or Path("runs") / self.name

    @property
    def num_parts(self) -> int:
        return self.partition.parts or max(self.cluster.workers, 1)

    def dump(self) -> str:
        """As YAML, in the order of the fields; ``load`` reads it back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def fingerprint(self) -> str:
        """Digest of everything that decides the weights after a given number of steps.

        Where a run is placed, how many workers compute it, how long it goes on and what is
        printed do not belong to it, so that a run may be resumed with those changed.
        """
        free = {"name", "output", "loader", "cache", "pipeline", "split", "cluster"}
        free_train = {
            "epochs", "max_steps", "evaluate_every", "patience", "checkpoint_every",
            "keep_checkpoints", "baselines", "strategy",
        }  # fmt: skip
        values = self.model_dump(mode="json", exclude=free)
        values["sampler"] = {
            k: v for k, v in values["sampler"].items() if k not in ("bulk", "engine")
        }
        values["drop_last"] = self.loader.drop_last
        values["train"] = {k: v for k, v in values["train"].items() if k not in free_train}
        values["partition"] = None  # a batch does not depend on the partition
        return hashlib.blake2b(
            json.dumps(values, sort_keys=True).encode(), digest_size=8
        ).hexdigest()


def load(file: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file and apply ``overrides``, dotted keys → values."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except OSError as error:
            raise InputError(
                f"config file: cannot read {str(file)!r} ({error.strerror}); give the path of a "
                "YAML file, such as configs/quickstart.yaml"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(
                f"config file {file}: is not text in UTF-8; give a YAML file, such as "
                "configs/quickstart.yaml"
            ) from error
        try:
            values = yaml.load(text, _Loader) or {}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(f"config file {file}: is not valid YAML: {error}") from error
        if not isinstance(values, dict):
            raise InputError(
                f"config file {file}: holds a {type(values).__name__}; give `key: value` lines"
            )
    for key, value in (overrides or {}).items():
        _assign(values, key, value)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise InputError(_explain(error)) from None
    try:
        config.dump()
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"config: some args cannot be written to config.yaml ({error}); give plain values "
            "that do not contain themselves"
        ) from None
    _check_together(config)
    return config


def flags(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of the configuration as (dotted name, field)."""
    for name, info in section.model_fields.items():
        inner = _section_of(info)
        if inner is not None:
            yield from flags(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def describe(info: FieldInfo) -> str:
    """A key in one line: what it is, its values where they are few, its default."""
    told = []
    kinds = (info.annotation, *get_args(info.annotation))
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    if choices:
        told.append("one of " + ", ".join(choices))
    default = info.default
    if default not in (None, {}, []) and not info.is_required() and info.default_factory is None:
        told.append(f"default {str(default).lower() if isinstance(default, bool) else default}")
    description = " ".join((info.description or "").split())
    return f"{description} ({'; '.join(told)})" if told else description


def _section_of(info: FieldInfo) -> type[Section] | None:
    for kind in (info.annotation, *get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for step in path:
        inner = values.get(step)
        if inner is None:
            inner = values[step] = {}
        if not isinstance(inner, dict):
            raise InputError(
                f"config {key}: {step!r} holds a value, it is not a section; leave one out"
            )
        values = inner
    values[last] = value


def _explain(error: ValidationError) -> str:
    """Sentences for people, one an error."""
    return "; ".join(_explain_one(e) for e in error.errors()[:5])


def _explain_one(error: Any) -> str:
    path = [str(step) for step in error["loc"]]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        section: type[Section] = Config
        for step in path[:-1]:
            section = _section_of(section.model_fields[step]) or section
        known = list(section.model_fields)
        close = difflib.get_close_matches(path[-1], known, 1)
        remedy = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        return f"config {key}: unknown key; {remedy}"
    if error["type"] == "missing":
        return f"config {key}: is required; give a value"
    given = repr(error["input"])
    if len(given) > _LONGEST:
        given = f"{given[:_LONGEST]}..."
    return f"config {key}: {given} is not valid; {error['msg'][:1].lower()}{error['msg'][1:]}"


def _check_together(config: Config) -> None:
    """What no single field can tell."""
    if Path(config.name).name != config.name or config.name == "..":
        raise InputError(
            f"config name: {config.name!r} is no name of a folder; give one without slashes (and "
            "set output for another place)"
        )
    fanouts, layers = config.sampler.fanouts, config.model.layers
    if not fanouts:
        raise InputError("config sampler.fanouts: is empty; give one number a layer, as in [10, 5]")
    for fanout in fanouts:
        if (fanout < 1 and fanout != -1) or fanout > _LARGEST_FANOUT:
            raise InputError(
                f"config sampler.fanouts: {fanout} is not valid; give numbers >= 1, or -1 for all"
            )
    if config.task.metrics is not None and not config.task.metrics:
        raise InputError(
            "config task.metrics: is empty; name at least one, or leave it out for the usual ones "
            f"of {config.task.kind}"
        )
    if layers is not None and layers != len(fanouts):
        raise InputError(
            f"config sampler.fanouts: {fanouts} has {len(fanouts)} hops for a model of {layers} "
            f"layers (model.layers); give {layers} fan-outs or leave model.layers out"
        )
    cache = config.cache
    if cache.name != "none" and cache.fraction is None and cache.max_bytes is None:
        raise InputError(
            f"config cache.fraction: the cache {cache.name!r} may keep nothing; give "
            "cache.fraction (of the halo) or cache.max_bytes"
        )
    if config.cluster.replication > 1 and config.cluster.stage_dir is not None:
        raise InputError(
            "config cluster.stage_dir: a host copies the partitions that are its own alone, and "
            f"cluster.replication: {config.cluster.replication} lets it read others; give one of "
            "the two"
        )
    if config.dataset is None and config.partition.path is None:
        raise InputError(
            "config dataset: is missing; name a data set, or an existing partition with "
            "partition.path"
        )
    if config.cluster.workers > config.train.batch_size:
        raise InputError(
            f"config train.batch_size: {config.train.batch_size} is less than cluster.workers "
            f"({config.cluster.workers}); give at least one seed a worker"
        )
