"""T-GCN, MPNN-LSTM, EvolveGCN-O and -H, GConvGRU, cut as ``protocol`` says."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gnn_dist.dynamic.normalise import Kind
from gnn_dist.errors import InputError
from gnn_dist.nn.recurrent.functional import gru, lstm2
from gnn_dist.nn.recurrent.protocol import Scope, State, Temporal
from gnn_dist.nn.recurrent.rowwise import project_carry


def _glorot(*shape: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(*shape))
    nn.init.xavier_uniform_(weight)
    return weight


def _check_sizes(name: str, **sizes: int) -> None:
    for field, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise InputError(f"model.{field}: is {value!r} for {name}; give an integer above 0")


class TGCN(nn.Module):
    """T-GCN (Zhao et al., IEEE T-ITS 2020): a graph convolution inside each gate of a GRU.

    Each gate is ``act([Â x W + b | h] V + d)``. Since ``Â`` comes first and ``W`` is followed by
    the upper half of ``V`` without a non-linearity between, ``Â x`` is computed once and the two
    matrices are multiplied first: the input half of all gates is ``Â x · (W V_top)``.
    """

    temporal: ClassVar[Temporal] = "nodes"
    kinds: ClassVar[tuple[Kind, ...]] = ("gcn",)

    def __init__(self, in_features: int, hidden: int = 32) -> None:
        super().__init__()
        _check_sizes("tgcn", in_features=in_features, hidden=hidden)
        self.hidden = self.out_features = hidden
        self.in_features = in_features
        self.conv = nn.ParameterList([_glorot(in_features, hidden) for _ in range(3)])
        self.conv_bias = nn.ParameterList([nn.Parameter(torch.zeros(hidden)) for _ in range(3)])
        self.gates = nn.ModuleList([nn.Linear(2 * hidden, hidden) for _ in range(3)])  # z, r, c

    def prepare(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        return scope.aggregate(x, snapshots, "gcn")

    def prepare_calls(self) -> int:
        return 1

    def spatial(self, prepared: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        return prepared

    def spatial_calls(self) -> int:
        return 0

    def spatial_width(self) -> int:
        return self.in_features

    def recur_calls(self) -> int:
        return 0

    def project(self, spatial: Tensor) -> Tensor:
        weights = [conv @ top for conv, top in zip(self.conv, self._tops(), strict=True)]
        return spatial @ torch.cat(weights, 1)

    def _tops(self) -> list[Tensor]:
        return [g.weight[:, : self.hidden].t() for g in self.gates if isinstance(g, nn.Linear)]

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
        gates = [g for g in self.gates if isinstance(g, nn.Linear)]
        z, r, c = (g.weight[:, self.hidden :].t() for g in gates)
        inner = zip(self.conv_bias, self._tops(), gates, strict=True)
        bias = torch.cat([b @ top + g.bias for b, top, g in inner])
        start = None if state is None else state.tensors[0]
        out = gru(
            projected, start, torch.cat((z, r), 1), c, bias, slots, every=every,
            checkpoint=checkpoint,
        )  # fmt: skip
        return out, State((out[-1],))


class MPNNLSTM(nn.Module):
    """MPNN-LSTM (Panagopoulos et al., AAAI 2021): two graph convolutions, then two LSTMs.

    A convolution is followed by ReLU, standardisation over the nodes of the snapshot with a learned
    scale and shift (batch normalisation that sees one snapshot at a time and keeps no running
    statistics, so that a snapshot's rows do not depend on which windows it is in), and dropout. The
    LSTMs read both convolutions' rows; the output is both LSTMs' last states and the features of
    every snapshot of the window (``skip``).
    """

    temporal: ClassVar[Temporal] = "nodes"
    kinds: ClassVar[tuple[Kind, ...]] = ("gcn",)

    def __init__(
        self, in_features: int, hidden: int = 32, window: int = 1, dropout: float = 0.0,
        skip: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_sizes("mpnn_lstm", in_features=in_features, hidden=hidden, window=window)
        if not 0 <= dropout < 1:
            raise InputError(f"model.dropout: is {dropout}; give a probability in [0, 1)")
        self.in_features, self.hidden, self.dropout, self.skip = in_features, hidden, dropout, skip
        self.out_features = 2 * hidden + (window * in_features if skip else 0)
        self.conv = nn.ParameterList([_glorot(in_features, hidden), _glorot(hidden, hidden)])
        self.conv_bias = nn.ParameterList([nn.Parameter(torch.zeros(hidden)) for _ in range(2)])
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(hidden)) for _ in range(2)])
        self.shift = nn.ParameterList([nn.Parameter(torch.zeros(hidden)) for _ in range(2)])
        bound = 1 / math.sqrt(hidden)
        self.lstm = nn.ParameterList()  # per layer: input weight, hidden weight, bias
        for _ in range(2):
            for shape in ((4 * hidden, 2 * hidden), (4 * hidden, hidden), (4 * hidden,)):
                self.lstm.append(nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))
        with torch.no_grad():  # the second layer reads the first's states, H wide
            self.lstm[3] = nn.Parameter(self.lstm[3][:, :hidden].clone())

    def prepare(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        aggregated = scope.aggregate(x, snapshots, "gcn")
        return torch.cat((aggregated, x), dim=2) if self.skip else aggregated

    def prepare_calls(self) -> int:
        return 1

    def spatial(self, prepared: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        a = prepared[..., : self.in_features] if self.skip else prepared
        first = self._layer(0, a @ self.conv[0], snapshots, scope)
        # The narrower side of the second convolution is aggregated: both are H wide.
        second = scope.aggregate(first @ self.conv[1], snapshots, "gcn")
        second = self._layer(1, second, snapshots, scope)
        parts = [first, second]
        if self.skip:
            parts.append(prepared[..., self.in_features :])
        return scope.mask(torch.cat(parts, dim=2), snapshots)

    def _layer(self, i: int, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        x = scope.standardise(x, snapshots, self.scale[i], self.shift[i], self.conv_bias[i])
        return scope.dropout(x, snapshots, i, self.dropout)

    def spatial_calls(self) -> int:
        return 1

    def spatial_width(self) -> int:
        return 2 * self.hidden + (self.in_features if self.skip else 0)

    def recur_calls(self) -> int:
        return 0

    def project(self, spatial: Tensor) -> Tensor:
        return project_carry(spatial, self.lstm[0])

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
        second = torch.cat((self.lstm[3], self.lstm[4]), dim=1).t()
        start = None if state is None else state.tensors[0]
        out, cells = lstm2(
            projected, start, self.lstm[1].t(), second, torch.stack((self.lstm[2], self.lstm[5])),
            slots, every=every, checkpoint=checkpoint,
        )  # fmt: skip
        last = out[-1]
        final = torch.cat((last[None, ..., : self.hidden], last[None, ..., self.hidden :], cells))
        if not self.skip:
            return out, State((final,))
        if every:
            raise InputError(
                "model.skip: an output after every step has no window of features to add; set "
                "skip: false for truncated back-propagation"
            )
        features = projected[..., 4 * self.hidden :].detach()  # no parameter lies behind them
        window = features[:, torch.from_numpy(slots.T).to(features.device)].flatten(2)
        return torch.cat((out, window[None]), dim=3), State((final,))


class GConvGRU(nn.Module):
    """GConvGRU (Seo et al., ICONIP 2018): a GRU whose products are Chebyshev convolutions.

    The convolutions of the features are computed once a snapshot; those of the state read
    neighbours at every step (for ``K`` = 1 there are none).
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("chebyshev",)

    def __init__(self, in_features: int, hidden: int = 32, K: int = 2) -> None:
        super().__init__()
        _check_sizes("gconv_gru", in_features=in_features, hidden=hidden, K=K)
        self.in_features, self.hidden, self.K = in_features, hidden, K
        self.out_features = hidden
        self.input = nn.ParameterList([_glorot(K * in_features, hidden) for _ in range(3)])
        self.state = nn.ParameterList([_glorot(K * hidden, hidden) for _ in range(3)])
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(hidden)) for _ in range(3)])
        self.temporal: Temporal = "nodes" if K == 1 else "graph"

    def _chebyshev(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        """[T_0(L) x | T_1(L) x | ...]: T_k = 2 L T_{k-1} - T_{k-2}."""
        terms = [x]
        for k in range(1, self.K):
            now = scope.aggregate(terms[-1], snapshots, "chebyshev")
            terms.append(now if k == 1 else 2 * now - terms[-2])
        return torch.cat(terms, dim=2) if len(terms) > 1 else x

    def prepare(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        return self._chebyshev(x, snapshots, scope)

    def prepare_calls(self) -> int:
        return self.K - 1

    def spatial(self, prepared: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        return prepared

    def spatial_calls(self) -> int:
        return 0

    def spatial_width(self) -> int:
        return self.K * self.in_features

    def recur_calls(self) -> int:
        return 2 * (self.K - 1)

    def project(self, spatial: Tensor) -> Tensor:
        bias = None if self.K == 1 else torch.cat(tuple(self.bias))  # or the recurrence adds it
        return torch.nn.functional.linear(spatial, torch.cat(tuple(self.input), 1).t(), bias)

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
        z, r, c = self.state
        w_zr = torch.cat((z, r), 1)
        start = None if state is None else state.tensors[0]
        if self.K == 1:
            bias = torch.cat(tuple(self.bias))
            out = gru(projected, start, w_zr, c, bias, slots, every=every, checkpoint=checkpoint)
            return out, State((out[-1],))
        shape = (projected.shape[0], slots.shape[1], self.hidden)
        h = projected.new_zeros(shape) if start is None else start
        outputs = []
        for k, row in enumerate(slots):
            now = tuple(snapshots[s] for s in row)
            p = projected[:, torch.from_numpy(row).to(projected.device)]
            if k == 0 and start is None:
                gates = torch.sigmoid(p[..., : 2 * self.hidden])
                inner = p[..., 2 * self.hidden :]
            else:
                gates = p[..., : 2 * self.hidden] + self._chebyshev(h, now, scope) @ w_zr
                gates = torch.sigmoid(gates)
                gated = gates[..., self.hidden :] * h
                inner = p[..., 2 * self.hidden :] + self._chebyshev(gated, now, scope) @ c
            update = gates[..., : self.hidden]
            h = update * h + (1 - update) * torch.tanh(inner)
            outputs.append(h)
        return torch.stack(outputs if every else outputs[-1:]), State((h,))


class EvolveGCN(nn.Module):
    """EvolveGCN (Pareja et al., AAAI 2020): the weights of a graph convolution evolve by a GRU.

    ``variant`` ``"O"``: the GRU's input is the weight itself, so all windows of a step share one
    sequence of weights. ``"H"``: its input are the ``in_features`` rows of highest score in each
    snapshot, which are chosen once a snapshot for all windows. The convolution of a window's last
    snapshot alone is its output: ``Â x W``.
    """

    temporal: ClassVar[Temporal] = "weights"
    kinds: ClassVar[tuple[Kind, ...]] = ("gcn",)

    def __init__(self, in_features: int, hidden: int | None = None, variant: str = "O") -> None:
        super().__init__()
        hidden = in_features if hidden is None else hidden
        _check_sizes("evolve_gcn", in_features=in_features, hidden=hidden)
        if variant not in ("O", "H"):
            raise InputError(f"model.variant: is {variant!r}; use O or H")
        self.in_features, self.hidden, self.variant = in_features, hidden, variant
        self.out_features = hidden
        self.weight = _glorot(in_features, hidden)
        self.cell = nn.GRUCell(in_features if variant == "H" else hidden, hidden)
        if variant == "H":
            bound = 1 / math.sqrt(in_features)
            self.score = nn.Parameter(torch.empty(in_features).uniform_(-bound, bound))

    def prepare(self, x: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        aggregated = scope.aggregate(x, snapshots, "gcn")
        return torch.cat((aggregated, x), dim=2) if self.variant == "H" else aggregated

    def prepare_calls(self) -> int:
        return 1

    def spatial(self, prepared: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor:
        return prepared

    def spatial_calls(self) -> int:
        return 0

    def spatial_width(self) -> int:
        return self.in_features * (2 if self.variant == "H" else 1)

    def recur_calls(self) -> int:
        return 0

    def project(self, spatial: Tensor) -> Tensor:
        return spatial

    def summary(self, spatial: Tensor, snapshots: tuple[int, ...], scope: Scope) -> Tensor | None:
        """What the weights' recurrence reads of each snapshot: float[S, in, in], or None."""
        if self.variant == "O":
            return None
        x = spatial[..., self.in_features :]
        score = (x @ self.score) / self.score.norm()
        return scope.top_rows(x, score, snapshots, self.in_features)

    def evolve(
        self, summary: Tensor | None, slots: np.ndarray, state: State | None, every: bool
    ) -> tuple[list[Tensor], State]:
        """The weights after each step (only the last unless ``every``): float[B or 1, in, out]."""
        weight = self.weight[None] if state is None else state.tensors[0]
        windows = slots.shape[1]
        if summary is not None and weight.shape[0] == 1:
            weight = weight.expand(windows, -1, -1)
        found = []
        for row in slots:
            now = weight.reshape(-1, self.hidden)
            if summary is not None:
                read = summary[torch.from_numpy(row).to(summary.device)]
                now = self.cell(read.reshape(-1, self.in_features), now)
            else:
                now = self.cell(now, now)
            weight = now.view(weight.shape)
            found.append(weight)
        return (found if every else found[-1:]), State((weight,))

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
        summary = self.summary(projected, snapshots, scope)
        weights, final = self.evolve(summary, slots, state, every)
        rows = slots if every else slots[-1:]
        outputs = [
            self.apply_weights(projected, row, w) for row, w in zip(rows, weights, strict=True)
        ]
        return torch.stack(outputs), final

    def apply_weights(self, projected: Tensor, row: np.ndarray, weight: Tensor) -> Tensor:
        """The convolution of one snapshot a window: float[rows, B, out]."""
        a = projected[:, torch.from_numpy(row).to(projected.device), : self.in_features]
        if weight.shape[0] == 1:
            return a @ weight[0]
        return torch.einsum("nbf,bfo->nbo", a, weight)


def evolve_gcn_o(in_features: int, hidden: int | None = None) -> EvolveGCN:
    """EvolveGCN-O."""
    return EvolveGCN(in_features, hidden, "O")


def evolve_gcn_h(in_features: int, hidden: int | None = None) -> EvolveGCN:
    """EvolveGCN-H."""
    return EvolveGCN(in_features, hidden, "H")


MODELS = {
    "tgcn": "gnn_dist.nn.recurrent.models.TGCN",
    "mpnn_lstm": "gnn_dist.nn.recurrent.models.MPNNLSTM",
    "gconv_gru": "gnn_dist.nn.recurrent.models.GConvGRU",
    "evolve_gcn_o": "gnn_dist.nn.recurrent.models.evolve_gcn_o",
    "evolve_gcn_h": "gnn_dist.nn.recurrent.models.evolve_gcn_h",
}
"""Short names of the models, for ``plugins.build``."""
