"""What is predicted for a node: width of the model's output, loss, and how outputs are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from gnn_dist import plugins
from gnn_dist.errors import InputError

KINDS = ("classification", "multilabel", "regression")

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(output [n, out], target) → [n]``, the loss of each seed."""


class TargetSpec(Protocol):
    """What a target tensor is (``gnn_dist.storage.TensorSpec`` is one)."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Task:
    """One kind of prediction.

    Attributes:
        kind: ``classification``, ``multilabel`` or ``regression``.
        out_features: columns that a model must give.
        loss: of each seed, from ``(output, target)``. Over several labels or targets it is the
            mean, so that its scale does not depend on their number.
    """

    kind: str
    out_features: int
    loss: Loss

    @classmethod
    def build(
        cls, kind: str, target: TargetSpec, info: Mapping[str, Any], loss: str | None = None
    ) -> "Task":
        """From the target tensor's dtype and row shape and the graph's ``info``.

        Classes are counted by ``info["num_classes"]``. ``loss`` is one of ``LOSSES[kind]``, the
        first by default, or the dotted path of a ``Loss``. Raises ``InputError`` where the target
        does not suit the task.
        """
        if kind not in KINDS:
            raise InputError(f"task.kind: {kind!r} is none of {', '.join(KINDS)}")
        width = prod(target.shape)
        is_float = np.dtype(target.dtype).kind == "f"
        shape = "[N" + "".join(f", {n}" for n in target.shape) + "]"
        if target.dtype in ("uint16", "uint32", "uint64"):  # torch compares these with nothing
            raise InputError(
                f"task.target: is {target.dtype}{shape}, which torch cannot compute with; convert "
                "it to int64"
            )
        if kind == "classification":
            if is_float or width != 1:
                raise InputError(
                    f"task.target: classification takes whole-number classes [N], the target is "
                    f"{target.dtype}{shape}; use task.kind regression or multilabel"
                )
            if "num_classes" not in info:
                raise InputError(
                    "task: the graph does not say how many classes there are; set "
                    "graph.info['num_classes']"
                )
            width = int(info["num_classes"])
            if width < 2:
                raise InputError(f"graph.info num_classes: is {width}; a task needs 2 or more")
        elif kind == "multilabel" and len(target.shape) != 1:
            raise InputError(
                f"task.target: multilabel takes 0/1 labels [N, T], the target is "
                f"{target.dtype}{shape}; use task.kind classification for one label a node"
            )
        elif kind == "regression" and not is_float:
            raise InputError(
                f"task.target: regression takes float targets [N] or [N, T], the target is "
                f"{target.dtype}{shape}; convert it to float32, or use task.kind classification"
            )
        names = LOSSES[kind]
        chosen = next(iter(names)) if loss is None else loss
        if chosen not in names and "." not in chosen:
            raise InputError(
                f"task.loss: {kind} has no loss {chosen!r}; use one of {', '.join(names)}, or the "
                "dotted path of a function (output, target) -> loss of each seed"
            )
        return cls(kind, width, names.get(chosen) or plugins.resolve("loss", chosen, {}))

    def loss_sum(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss summed over the seeds: a scalar. ``output`` is [n, out_features]; ``target``
        [n] or [n, T] as in the graph."""
        n = target.shape[0]
        if not is_rows(output, n) or output.shape != (n, self.out_features):
            raise InputError(
                f"model: gives {_described(output)} for {n} seeds; this {self.kind} task needs "
                f"floats of shape ({n}, {self.out_features})"
            )
        if self.kind == "classification":
            target = target.reshape(n).long()
        else:
            target = target.reshape(n, self.out_features).to(output.dtype)
        loss = self.loss(output, target)
        if not is_rows(loss, n) or loss.ndim != 1:
            raise InputError(
                f"task.loss: gives {_described(loss)} for {n} seeds; it must give the loss of each "
                f"seed, ({n},), as reduction='none' does"
            )
        return loss.sum()

    def predict(self, output: Tensor) -> Tensor:
        """Outputs as people read them: class probabilities [n, C], label probabilities [n, T], or
        the targets' values [n, T]."""
        if self.kind == "classification":
            return output.softmax(-1)
        return output.sigmoid() if self.kind == "multilabel" else output

    def check(
        self,
        target: np.ndarray,
        nodes: np.ndarray | None = None,
        names: np.ndarray | None = None,
    ) -> None:
        """Raise ``InputError`` for a class out of range, a label that is neither 0 nor 1, or a
        target that is not finite, among the rows ``nodes`` (default: all), which a person knows
        as ``names``."""
        nodes = np.arange(len(target)) if nodes is None else nodes
        names = nodes if names is None else names
        if not len(nodes):  # a part may hold nothing of a split
            return
        values = target[nodes].reshape(len(nodes), -1)
        if self.kind == "classification":
            good = (values >= 0) & (values < self.out_features)
            wanted = f"a class in 0 .. {self.out_features - 1} (graph.info num_classes)"
        elif self.kind == "multilabel":
            good = (values == 0) | (values == 1)
            wanted = "0 or 1"
        else:
            good = np.isfinite(values)
            wanted = "a finite number"
        bad = ~good.all(axis=1)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            value = values[first][~good[first]][0]
            raise InputError(
                f"task.target: node {names[first]} has {value}, not {wanted} "
                f"({int(bad.sum())} nodes in all); correct the labels or leave these nodes out of "
                "the splits"
            )


def is_rows(output: object, n: int) -> TypeGuard[Tensor]:
    """Whether ``output`` is a float tensor of ``n`` rows."""
    return isinstance(output, Tensor) and output.is_floating_point() and output.shape[:1] == (n,)


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of logits."""
    return F.binary_cross_entropy_with_logits(output, target, reduction="none").mean(1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(1)


def l1(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean(1)


def huber(output: Tensor, target: Tensor) -> Tensor:
    """Quadratic up to an error of 1, linear beyond (Huber 1964)."""
    return F.huber_loss(output, target, reduction="none").mean(1)


LOSSES: dict[str, dict[str, Loss]] = {
    "classification": {"cross_entropy": cross_entropy},
    "multilabel": {"bce": bce},
    "regression": {"mse": mse, "l1": l1, "huber": huber},
}
"""Losses by kind of task; the first is the default."""
