"""Models on blocks: SAGE, GCN, GAT and GIN.

A model takes ``(x, blocks)``: the rows of the input nodes ([num_input, in], or ``FeatureRows`` left
in their table) and one block a layer, the input layer's first. It returns [num_seeds, out]. Each
layer but the last is followed by an optional norm, the activation, dropout and an optional
residual. ``forward_layer`` runs one of them alone, for exact inference layer by layer.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from gnn_dist.batch import Block
from gnn_dist.errors import InputError
from gnn_dist.features.rows import FeatureRows
from gnn_dist.nn.convs import (
    GCN_EDGE_TENSOR,
    GATConv,
    GCNConv,
    GINConv,
    SAGEConv,
    own_rows,
    transform_first,
)
from gnn_dist.nn.functional import Reduce, dropout_key, keyed_dropout
from gnn_dist.nn.fused import SageLayer, sage_stack

Norm = Literal["layer", "batch"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class GraphLayer(nn.Module):
    """A convolution and what follows it: norm, activation, dropout, residual.

    Dropout is drawn by counter keys for the destinations' original ids, so it does not depend on
    how a batch is dealt to ranks. A residual is projected where the widths differ.
    """

    def __init__(
        self,
        conv: nn.Module,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        dropout: float,
        activation: str,
        norm: Norm | None,
        residual: bool,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.dropout = dropout
        self.norm: nn.Module | None = None
        self.activation: nn.Module | None = None
        self.shortcut: nn.Module | None = None
        if last:
            return
        self.norm = None if norm is None else NORMS[norm](out_features)
        self.activation = ACTIVATIONS[activation]()
        if residual:
            same = in_features == out_features
            self.shortcut = (
                nn.Identity() if same else nn.Linear(in_features, out_features, bias=False)
            )

    def forward(self, x: Tensor | FeatureRows, block: Block) -> Tensor:
        h = self.conv(x, block)
        if self.norm is not None:
            h = self.norm(h)
        if self.activation is None:
            return h
        h = self.activation(h)
        if self.training and self.dropout:
            h = keyed_dropout(h, self.dropout, block)
        return h if self.shortcut is None else h + self.shortcut(own_rows(x, block))


class GNN(nn.Module):
    """Layers over blocks.

    Attributes:
        layers: one module a block, each taking ``(x, block)``.
        input_dropout: of the input rows, in training.
        edge_tensors: names of edge tensors that the blocks must carry (the sampler's ``edge``).
    """

    edge_tensors: tuple[str, ...] = ()

    def __init__(self, layers: Sequence[nn.Module], input_dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.input_dropout = input_dropout

    def forward(self, x: Tensor | FeatureRows, blocks: Sequence[Block]) -> Tensor:
        self._check_number(blocks)
        h = x
        for i, block in enumerate(blocks):
            h = self.forward_layer(i, h, block)
        assert isinstance(h, Tensor)
        return h

    def _check_number(self, blocks: Sequence[Block]) -> None:
        if len(blocks) != len(self.layers):
            raise InputError(
                f"model: {len(self.layers)} layers for {len(blocks)} blocks; give the sampler as "
                "many fan-outs as the model has layers"
            )

    def forward_layer(self, i: int, x: Tensor | FeatureRows, block: Block) -> Tensor:
        """Layer ``i`` with all that follows it: the rows of the block's destinations."""
        if i == 0 and self.training and self.input_dropout:
            x = x if isinstance(x, Tensor) else x.materialise()
            x = keyed_dropout(x, self.input_dropout, block, salt=1)
        return self.layers[i](x, block)


class SAGE(GNN):
    """GraphSAGE. See ``SAGEConv`` and ``stack`` for the arguments.

    Layers of mean, ReLU and dropout run as one function on a CPU (see ``fused``), several times
    faster than one operator after the other; ``fused = False`` takes the operators.
    """

    fused = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int = 2,
        hidden: int = 256,
        *,
        aggregator: Reduce = "mean",
        normalize: bool = False,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        activation: str = "relu",
        norm: Norm | None = None,
        residual: bool = False,
    ) -> None:
        def conv(n: int, m: int, last: bool) -> nn.Module:
            return SAGEConv(n, m, aggregator=aggregator, normalize=normalize and not last)

        sizes = _sizes(in_features, hidden, out_features, num_layers)
        layers = stack(
            conv, sizes, dropout=dropout, activation=activation, norm=norm, residual=residual
        )
        super().__init__(layers, _probability("input_dropout", input_dropout))

    def forward(self, x: Tensor | FeatureRows, blocks: Sequence[Block]) -> Tensor:
        self._check_number(blocks)
        h, i = x, 0
        while i < len(blocks):  # runs of layers that can be fused, and others one by one
            run: list[SageLayer] = []
            while i + len(run) < len(blocks):
                layer = self._fusible(i + len(run), h, blocks[i + len(run)], first=not run)
                if layer is None:
                    break
                run.append(layer)
            h = self._run(i, h, run) if run else super().forward_layer(i, h, blocks[i])
            i += max(len(run), 1)
        assert isinstance(h, Tensor)
        return h

    def forward_layer(self, i: int, x: Tensor | FeatureRows, block: Block) -> Tensor:
        layer = self._fusible(i, x, block, first=True)
        return super().forward_layer(i, x, block) if layer is None else self._run(i, x, [layer])

    def _run(self, i: int, x: Tensor | FeatureRows, run: list[SageLayer]) -> Tensor:
        layers = [cast(GraphLayer, layer) for layer in self.layers[i : i + len(run)]]
        convs = [cast(SAGEConv, layer.conv) for layer in layers]
        weights = [conv.weight for conv in convs]
        biases = [cast(Tensor, conv.bias) for conv in convs]
        if isinstance(x, Tensor):
            return sage_stack(x, None, run, weights, biases)
        return sage_stack(x.tables[0], x.addresses(), run, weights, biases)

    def _fusible(
        self, i: int, x: Tensor | FeatureRows, block: Block, *, first: bool
    ) -> SageLayer | None:
        """Layer ``i`` as ``fused`` takes it, or None where it must be done by operators.

        ``x`` is the input of layer ``i`` where it is the ``first`` of a run.
        """
        layer = cast(GraphLayer, self.layers[i])
        conv, last = cast(SAGEConv, layer.conv), layer.activation is None
        drops_input = i == 0 and self.training and self.input_dropout > 0
        if (
            not self.fused
            or block.weight is not None
            or drops_input
            or (first and not _readable(x, conv.weight))
        ):
            return None
        simple = conv.aggregator == "mean" and not conv.normalize and layer.norm is None
        simple &= layer.shortcut is None and (last or type(layer.activation) is nn.ReLU)
        dense = isinstance(x, Tensor) or not first
        if not simple or (dense and transform_first(block, conv.in_features, conv.out_features)):
            return None
        dropout = layer.dropout if self.training and not last else 0.0
        key = dropout_key(block, block.num_dst) if dropout else 0
        return SageLayer(block, not last, dropout, key)


def _readable(x: Tensor | FeatureRows, weight: Tensor) -> bool:
    """Whether the kernels can read ``x`` for weights of this dtype and device."""
    known = weight.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype
    stored = isinstance(x, Tensor) or (
        (x.stored == x.dtype or (x.stored, x.dtype) == (torch.float16, torch.float32))
        and all(table.is_contiguous() for table in x.tables)
    )
    on_cpu = x.device.type == weight.device.type == "cpu"
    plain = len(x.shape) == 2 and not torch.is_autocast_enabled("cpu")
    return known and stored and on_cpu and plain


class GCN(GNN):
    """GCN. ``gcn_norm`` is ``both`` or ``right``, see ``GCNConv``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int = 2,
        hidden: int = 256,
        *,
        gcn_norm: Literal["both", "right"] = "both",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        activation: str = "relu",
        norm: Norm | None = None,
        residual: bool = False,
    ) -> None:
        def conv(n: int, m: int, last: bool) -> nn.Module:
            return GCNConv(n, m, norm=gcn_norm)

        sizes = _sizes(in_features, hidden, out_features, num_layers)
        layers = stack(
            conv, sizes, dropout=dropout, activation=activation, norm=norm, residual=residual
        )
        super().__init__(layers, _probability("input_dropout", input_dropout))
        self.edge_tensors = (GCN_EDGE_TENSOR,) if gcn_norm == "both" else ()


class GAT(GNN):
    """GAT. Hidden layers have ``heads`` heads of ``hidden / heads`` columns side by side; the last
    one averages ``out_heads`` heads."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int = 2,
        hidden: int = 256,
        *,
        heads: int = 4,
        out_heads: int = 1,
        self_loops: bool = True,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        activation: str = "elu",
        norm: Norm | None = None,
        residual: bool = False,
    ) -> None:
        if heads < 1 or hidden % heads:
            raise InputError(
                f"model.heads: {heads} heads cannot share {hidden} hidden columns; choose heads "
                "that divide hidden"
            )

        def conv(n: int, m: int, last: bool) -> nn.Module:
            return GATConv(
                n,
                m if last else m // heads,
                heads=out_heads if last else heads,
                concat=not last,
                self_loops=self_loops,
                attention_dropout=attention_dropout,
            )

        sizes = _sizes(in_features, hidden, out_features, num_layers)
        layers = stack(
            conv, sizes, dropout=dropout, activation=activation, norm=norm, residual=residual
        )
        super().__init__(layers, _probability("input_dropout", input_dropout))


class GIN(GNN):
    """GIN with two-layer perceptrons, ``Linear → ReLU → Linear``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int = 2,
        hidden: int = 256,
        *,
        train_eps: bool = False,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        activation: str = "relu",
        norm: Norm | None = None,
        residual: bool = False,
    ) -> None:
        def conv(n: int, m: int, last: bool) -> nn.Module:
            mlp = nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, m))
            return GINConv(mlp, train_eps=train_eps)

        sizes = _sizes(in_features, hidden, out_features, num_layers)
        layers = stack(
            conv, sizes, dropout=dropout, activation=activation, norm=norm, residual=residual
        )
        super().__init__(layers, _probability("input_dropout", input_dropout))


def stack(
    conv: Callable[[int, int, bool], nn.Module],
    sizes: Sequence[int],
    *,
    dropout: float,
    activation: str,
    norm: Norm | None,
    residual: bool,
) -> list[nn.Module]:
    """A layer for each step of ``sizes``; ``conv(in, out, last)`` makes the convolutions.

    Args:
        dropout: after each hidden layer, in [0, 1).
        activation: a name in ``ACTIVATIONS``.
        norm: None; ``layer``; or ``batch``, whose statistics are those of the rank's own share of
            a batch, so that results depend on the number of ranks.
        residual: add a hidden layer's input to its output.
    """
    _probability("dropout", dropout)
    if activation not in ACTIVATIONS:
        raise InputError(
            f"model.activation: {activation!r} is none of {', '.join(sorted(ACTIVATIONS))}"
        )
    if norm is not None and norm not in NORMS:
        raise InputError(f"model.norm: {norm!r} is none of {', '.join(NORMS)}; leave it out for no")
    layers: list[nn.Module] = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        last = i + 2 == len(sizes)
        layers.append(
            GraphLayer(
                conv(n, m, last),
                n,
                m,
                last=last,
                dropout=dropout,
                activation=activation,
                norm=norm,
                residual=residual,
            )
        )
    return layers


def _sizes(in_features: int, hidden: int, out_features: int, num_layers: int) -> list[int]:
    for name, value in (
        ("in_features", in_features),
        ("hidden", hidden),
        ("out_features", out_features),
        ("num_layers", num_layers),
    ):
        if value < 1:
            raise InputError(f"model.{name}: {value} is below 1; give at least 1")
    return [in_features, *[hidden] * (num_layers - 1), out_features]


def _probability(name: str, p: float) -> float:
    if not 0 <= p < 1:
        raise InputError(f"model.{name}: {p} is not a probability; give one in [0, 1)")
    return p
