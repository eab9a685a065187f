"""What a deep model is made of."""

from dataclasses import dataclass

from gnn_dist.errors import InputError
from gnn_dist.kernels.topk import NORMS

CONVS = ("mean", "gcn", "gin", "attention")
DIRECTIONS = ("fan_in", "fan_out", "both")
MODES = ("plain", "checkpoint", "reversible")
COMPRESSIONS = ("bf16", "int8")


def _one_of(field: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    if value not in allowed:
        raise InputError(f"model.{field}: {value!r} is not one of {', '.join(allowed)}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepConfig:
    """A stack of ``layers`` grouped residual blocks.

    Attributes:
        width: columns of the residual stream, a multiple of ``groups``.
        groups: C >= 2; group i is updated from group i - 1.
        keep: columns a node keeps in a group after the selection; None for a quarter of them, the
            group's width for no selection at all.
        conv: ``mean`` (SAGE: own row and mean of neighbours), ``gcn`` (symmetric normalisation
            with self-loops), ``gin`` (sum of neighbours plus ``1 + gin_eps`` times the own row),
            ``attention`` (one head a group, GAT scores, own row included).
        direction: whose rows a node reads: ``fan_in`` (sources of its in-edges), ``fan_out``
            (destinations of its out-edges) or ``both``, each with weights of its own.
        norm: of a group's row before the selection: ``layer``, ``rms`` or ``none``.
        dropout: probability that a kept value is dropped; drawn from the block's key and the
            node's original id, so that a recomputation sees the same.
        initial_residual: GCNII's alpha: the share of the stack's input in what is aggregated.
        grid: residual stream in multiples of 2**-grid, which makes the inverse bit-exact; None
            for none.
        mode: what is kept for the backward pass: ``plain`` everything, ``checkpoint`` the state
            before every block and after the last, ``reversible`` the output of the stack.
        saved_indices: with ``reversible``, keep the selected columns (one bit each) of every
            block: the alternative to a grid, close but not exact, memory grows with depth.
        compression: of what ``plain`` and ``checkpoint`` keep: ``bf16``, ``int8`` or None.
        packed: aggregate rows as values and a bit mask: less is moved, in about the same time.
    """

    width: int = 64
    layers: int = 28
    groups: int = 2
    keep: int | None = None
    conv: str = "mean"
    direction: str = "fan_in"
    norm: str = "layer"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    initial_residual: float = 0.0
    gin_eps: float = 0.0
    attention_slope: float = 0.2
    grid: int | None = 16
    mode: str = "reversible"
    saved_indices: bool = False
    compression: str | None = None
    packed: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InputError(f"model.layers: {self.layers} is below 1; give at least one block")
        if self.groups < 2:
            raise InputError(
                f"model.groups: {self.groups} is below 2; give at least the two groups that a "
                "reversible block needs"
            )
        if self.width < self.groups or self.width % self.groups:
            raise InputError(
                f"model.width: {self.width} cannot be cut into {self.groups} equal groups; "
                f"use a multiple of {self.groups}"
            )
        if not 1 <= self.kept <= self.group_width:
            raise InputError(
                f"model.keep: {self.keep} is outside 1 to {self.group_width}; keep some of "
                "the columns of a group (model.width / model.groups)"
            )
        _one_of("conv", self.conv, CONVS)
        _one_of("direction", self.direction, DIRECTIONS)
        if "batch" in str(self.norm):
            raise InputError(
                "model.norm: batch norm is refused inside a reversible block: its statistics "
                "depend on the other nodes of the batch and would be updated twice by the "
                "recomputation; use layer or rms"
            )
        _one_of("norm", self.norm, tuple(NORMS))
        _one_of("mode", self.mode, MODES)
        for name, value in (("dropout", self.dropout), ("initial_residual", self.initial_residual)):
            if not 0 <= value < 1:
                raise InputError(f"model.{name}: {value} is not in [0, 1); give 0 for none")
        if self.grid is not None and not 4 <= self.grid <= 20:
            raise InputError(
                f"model.grid: {self.grid} is outside 4 to 20; 16 leaves a range of +-256 in float32"
            )
        if self.compression is not None:
            _one_of("compression", self.compression, COMPRESSIONS, ", or null for none")
            if self.mode == "reversible":
                raise InputError(
                    "model.compression: the mode reversible keeps nothing that could be "
                    "compressed; use the mode plain or checkpoint, or leave compression out"
                )
        if self.saved_indices and self.mode != "reversible":
            raise InputError(
                "model.saved_indices: only the mode reversible recomputes from an inverse; "
                "leave it out or set model.mode: reversible"
            )

    @property
    def group_width(self) -> int:
        return self.width // self.groups

    @property
    def kept(self) -> int:
        return max(1, self.group_width // 4) if self.keep is None else self.keep

    @property
    def sweeps(self) -> int:
        """Directions that are aggregated."""
        return 2 if self.direction == "both" else 1

    @property
    def own_column(self) -> bool:
        """Whether the own row stands beside the aggregated ones (else it is inside them)."""
        return self.conv == "mean"

    @property
    def columns(self) -> int:
        """Columns that a block's weight matrix reads."""
        return (self.own_column + self.sweeps) * self.group_width
