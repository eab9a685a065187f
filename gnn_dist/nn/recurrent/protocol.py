"""What a model over snapshots is: a spatial part with declared reuse, and a temporal part whose
state goes in and comes out.

A model is cut where work can be shared or moved. For the snapshots of one optimiser step, with
features side by side, float[rows, S, F]:

1. ``prepare``: aggregations without parameters. The same for every window, epoch and rank.
2. ``spatial``: what has parameters and reads neighbours. The same for every window of a step.
3. ``project``: what has parameters and is row by row; ends with the input half of the recurrence.
   The same for every window of a step.
4. ``recur``: over the windows side by side, from their states.

Steps 1 to 3 see each snapshot once for all windows that contain it. A model never keeps state, and
never reads neighbours except through the ``Scope`` that it is handed, which is what lets one model
run under every policy.
"""

from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from gnn_dist.dynamic.normalise import Kind

Temporal = Literal["nodes", "graph", "weights"]


class State(NamedTuple):
    """A temporal part's state after a window: named by the model, carried by the caller."""

    tensors: tuple[Tensor, ...]

    def detach(self) -> "State":
        """The same values without their history (truncated back-propagation)."""
        return State(tuple(t.detach() for t in self.tensors))


class Scope(Protocol):
    """The part of the graphs that a rank computes, and the only way to read neighbours.

    ``snapshots`` are always numbers in the sequence, one for each column of a tensor float[rows, S,
    F]; ``rows`` are the nodes this rank computes.
    """

    rows: int

    def aggregate(self, x: Tensor, snapshots: tuple[int, ...], kind: Kind) -> Tensor:
        """Normalised sum over in-neighbours in each snapshot: float[rows, S, F]; differentiable."""
        ...

    def standardise(
        self,
        x: Tensor,
        snapshots: tuple[int, ...],
        scale: Tensor,
        shift: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Each column of each snapshot less its mean over active nodes, over their deviation;
        times ``scale`` float[F], plus ``shift`` float[F]. With a ``bias`` float[F] the columns are
        those of ``relu(x + bias)``."""
        ...

    def mask(self, x: Tensor, snapshots: tuple[int, ...]) -> Tensor:
        """``x`` with zeros in the rows of nodes that are not active."""
        ...

    def top_rows(self, x: Tensor, score: Tensor, snapshots: tuple[int, ...], k: int) -> Tensor:
        """In each snapshot, the k rows of ``x`` of highest ``score`` float[rows, S], by descending
        score, times tanh of it: float[S, k, F]. Ties go to the lower node id."""
        ...

    def dropout(self, x: Tensor, snapshots: tuple[int, ...], layer: int, p: float) -> Tensor:
        """Dropout keyed by (epoch, step, snapshot, layer) and node; none while evaluating."""
        ...

    def dropout_windows(self, x: Tensor, layer: int, p: float) -> Tensor:
        """Dropout of float[rows, B, F] keyed by (epoch, window, its last snapshot, layer)."""
        ...


class DynamicModel(Protocol):
    """A model over snapshots; see the module. ``nn.Module``s of this shape plug in by dotted path.

    Attributes:
        temporal: what the recurrence runs over. ``nodes``: row by row, so that rows may be dealt
            to ranks; ``graph``: it reads neighbours at every step; ``weights``: over parameters,
            and the output of a window needs its last snapshot alone.
        kinds: normalisations that it asks the scope for.
        out_features: width of an output row.
    """

    temporal: ClassVar[Temporal]
    kinds: ClassVar[tuple[Kind, ...]]
    out_features: int

    def prepare(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        """float[rows, S, F] → float[rows, S, A], without parameters. Rows of inactive nodes are
        zero."""
        ...

    def prepare_calls(self) -> int:
        """Aggregations a snapshot in ``prepare``."""
        ...

    def spatial(self, prepared: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        """float[rows, S, A] → float[rows, S, D]. Rows of inactive nodes are zero."""
        ...

    def spatial_calls(self) -> int:
        """Aggregations a snapshot in ``spatial``; with none, ``spatial`` is row by row."""
        ...

    def spatial_width(self) -> int:
        """D."""
        ...

    def project(self, spatial: Tensor) -> Tensor:
        """float[rows, S, D] → float[rows, S, G], row by row."""
        ...

    def recur_calls(self) -> int:
        """Aggregations a snapshot and window in ``recur``, except at a first step from zeros."""
        ...

    def recur(
        self,
        projected: Tensor,
        slots: np.ndarray,
        snapshots: tuple[int, ...],
        scope: Scope,
        state: State | None,
        *,
        every: bool = False,
        checkpoint: bool = False,
    ) -> tuple[Tensor, State]:
        """Run every window over its snapshots ``snapshots[slots[k, b]]``.

        Returns float[1 or steps, rows, B, out] (all steps where ``every``) and the final state.
        ``state`` None starts from the model's initial state.
        """
        ...

    def parameters(self, recurse: bool = True): ...  # type: ignore[no-untyped-def]


def check_model(model: nn.Module) -> None:
    """Raise ``InputError`` for a module that lacks a part of ``DynamicModel``."""
    from gnn_dist.errors import InputError

    needed = (
        "temporal", "kinds", "out_features", "prepare", "prepare_calls", "spatial",
        "spatial_calls", "spatial_width", "project", "recur", "recur_calls",
    )  # fmt: skip
    missing = [name for name in needed if not hasattr(model, name)]
    if missing:
        raise InputError(
            f"model: {type(model).__name__} has no {missing[0]!r}; a model over snapshots provides "
            f"{', '.join(needed)} (see gnn_dist.nn.recurrent.protocol)"
        )
    if model.temporal not in ("nodes", "graph", "weights"):
        raise InputError(f"model.temporal: is {model.temporal!r}; use nodes, graph or weights")
