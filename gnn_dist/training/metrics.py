"""Metrics over all predictions of a split at once, never a mean of ranks' means.

A metric is a callable ``(output, target) -> float``: ``output`` float[n] or float[n, C] is what the
model gave (logits for classes), ``target`` the labels. A custom one is named by dotted path.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gnn_dist import plugins
from gnn_dist.errors import InputError

Metric = Callable[[Tensor, Tensor], Any]

BUILTIN = {
    name: f"gnn_dist.training.metrics.{name}"
    for name in (
        "accuracy",
        "f1_macro",
        "f1_micro",
        "roc_auc",
        "mae",
        "rmse",
        "r2",
        "pearson",
        "spearman",
        "kendall",
    )
}
BUILTIN |= {name: f"gnn_dist.interop.ogb.{name}" for name in ("ogb_accuracy", "ogb_rocauc")}
DEFAULTS = {
    "classification": ("accuracy", "f1_macro"),
    "multilabel": ("roc_auc", "f1_micro"),
    "regression": ("mae", "rmse", "pearson", "spearman", "kendall"),
}
LOWER_IS_BETTER = {"loss", "mae", "rmse"}


def _library() -> Any:
    """torchmetrics' functions: over a second to import, and of use to one rank at the end."""
    from torchmetrics import functional

    return functional


def accuracy(output: Tensor, target: Tensor) -> float:
    """Share of nodes whose largest logit is their class; of labels at the right side of 0."""
    if target.ndim == 1:
        return float((output.argmax(-1) == target).double().mean())
    return float(((output > 0) == target.bool()).double().mean())


def _f1(output: Tensor, target: Tensor, average: Literal["macro", "micro"]) -> float:
    if target.ndim == 1:
        return float(
            _library().classification.multiclass_f1_score(
                output.argmax(-1), target, num_classes=output.shape[1], average=average
            )
        )
    return float(
        _library().classification.multilabel_f1_score(
            (output > 0).int(), target.int(), num_labels=output.shape[1], average=average
        )
    )


def f1_macro(output: Tensor, target: Tensor) -> float:
    """F1, averaged over classes or labels."""
    return _f1(output, target, "macro")


def f1_micro(output: Tensor, target: Tensor) -> float:
    """F1 over all decisions together."""
    return _f1(output, target, "micro")


def roc_auc(output: Tensor, target: Tensor) -> float:
    """Area under the ROC curve, averaged over labels (classes: one against the rest) that have
    both positive and negative nodes; NaN where none has."""
    if target.ndim == 1:
        target = torch.nn.functional.one_hot(target.long(), output.shape[1])
    both = [c for c in range(target.shape[1]) if 0 < int(target[:, c].sum()) < len(target)]
    if not both:
        return float("nan")
    areas = [
        _library().classification.binary_auroc(output[:, c], target[:, c].long()) for c in both
    ]
    return float(torch.stack(areas).mean())


def _by_target(metric: Metric) -> Metric:
    """A metric of one column, averaged over the columns."""

    def averaged(output: Tensor, target: Tensor) -> float:
        output, target = _columns(output, target)
        values = [float(metric(output[:, c], target[:, c])) for c in range(output.shape[1])]
        return sum(values) / len(values)

    averaged.__doc__ = metric.__doc__
    return averaged


def _columns(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    target = target.double().reshape(len(target), -1)
    return output.double().reshape(target.shape), target


@_by_target
def mae(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error."""
    return _library().mean_absolute_error(output, target)


@_by_target
def rmse(output: Tensor, target: Tensor) -> Tensor:
    """Root of the mean squared error."""
    return _library().mean_squared_error(output, target, squared=False)


@_by_target
def r2(output: Tensor, target: Tensor) -> Tensor:
    """Coefficient of determination; 0 for fewer than two nodes."""
    return _library().r2_score(output, target) if len(output) > 1 else torch.tensor(0.0)


def _constant(output: Tensor, target: Tensor) -> bool:
    return bool((output == output[:1]).all() or (target == target[:1]).all())


@_by_target
def pearson(output: Tensor, target: Tensor) -> Any:
    """Pearson's correlation; 0 where one side is constant."""
    return 0.0 if _constant(output, target) else _library().pearson_corrcoef(output, target)


@_by_target
def spearman(output: Tensor, target: Tensor) -> Any:
    """Spearman's rank correlation; 0 where one side is constant."""
    return 0.0 if _constant(output, target) else _library().spearman_corrcoef(output, target)


@_by_target
def kendall(output: Tensor, target: Tensor) -> Any:
    """Kendall's τ-b; 0 where one side is constant.

    SciPy's, which takes O(n log n); torchmetrics' compares all pairs.
    """
    if _constant(output, target):
        return 0.0
    from scipy import stats  # half a second to import

    return stats.kendalltau(output.numpy(), target.numpy()).statistic


def resolve(names: Sequence[str] | None, kind: str) -> dict[str, Metric]:
    """Metrics by name; ``None`` takes the defaults of the kind of task."""
    chosen = DEFAULTS[kind] if names is None else names
    found = {n: plugins.resolve("metric", n, BUILTIN) for n in chosen}
    for name, metric in found.items():
        plugins.check_call("metric", name, metric, ("output", "target"))
    return {name.rsplit(".", 1)[-1]: metric for name, metric in found.items()}


def compute(
    metrics: Mapping[str, Metric],
    output: Tensor,
    target: Tensor,
    target_names: Sequence[str] = (),
) -> dict[str, float]:
    """Every metric; for several regression targets also each target's own, ``mae.slack``."""
    values = {name: _number(name, metric(output, target)) for name, metric in metrics.items()}
    if target.is_floating_point() and target.ndim == 2 and len(target_names) == target.shape[1] > 1:
        for name, metric in metrics.items():
            for column, target_name in enumerate(target_names):
                values[f"{name}.{target_name}"] = _number(
                    name, metric(output[:, column], target[:, column])
                )
    return values


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"metric {name!r}: returned {type(value).__name__}, which is no single number "
            f"({error}); return a float"
        ) from error
