"""The inner function of a block on CPU, ``f(u) = conv(topk(norm(u)))``, and its gradient.

Every step is a kernel over rows or one product of matrices into a buffer that exists, so that a
block allocates nothing. All sums over neighbours are over CSR rows: f is a function of its input's
bits, which is what lets a residual stream on a grid be undone exactly.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from gnn_dist.kernels import grid, group_sparse, parallel, topk
from gnn_dist.kernels.lanes import EXPANSIONS
from gnn_dist.nn.deep.config import DeepConfig
from gnn_dist.nn.deep.parameters import StackTensors
from gnn_dist.nn.deep.topology import DeepTopology
from gnn_dist.nn.deep.workspace import Tape, Workspace
from gnn_dist.rng import Stream, fold


class GridRangeError(ArithmeticError):
    """The residual stream left the range in which additions on the grid are exact."""


def storages(tensors: Iterable[Tensor | None]) -> dict[int, int]:
    """Address and bytes of each storage once."""
    found = (t.untyped_storage() for t in tensors if t is not None)
    return {s.data_ptr(): s.nbytes() for s in found}


class Inner:
    """f of every block of a stack, over one micro-batch.

    ``first_layer`` is the number, in the whole model, of the stack's first block. ``drop`` is off
    in evaluation. ``deferred``, when a list, takes ``(layer, group, z, gradient)`` instead of
    computing the gradients of weight and bias.
    """

    def __init__(
        self,
        config: DeepConfig,
        topology: DeepTopology,
        workspace: Workspace,
        dtype: torch.dtype,
        *,
        first_layer: int = 0,
        drop: bool = False,
    ) -> None:
        self.config = config
        self.topology = topology
        self.workspace = workspace
        self.dtype = dtype
        self.first_layer = first_layer
        self.drop = round(config.dropout * 65536) if drop else 0
        self.deferred: list[tuple[int, int, Tensor, Tensor]] | None = None
        self.saved: dict[int, int] = {}  # what is kept for the backward pass: address, bytes
        self.reconstructed: Tensor | None = None  # the input as the last backward pass found it
        self.edges = [s.indices.size for s in topology.sweeps]
        self._norm = topk.NORMS[config.norm]
        self._scalar = np.float32 if dtype == torch.float32 else np.float64
        bits = config.grid
        self._scale = self._scalar(0 if bits is None else 2.0**bits)
        self._back = self._scalar(1 if bits is None else 2.0**-bits)
        self._limit = self._scalar(
            np.inf if bits is None else grid.bound(np.dtype(self._scalar), bits)
        )
        self._keep_scale = self._scalar(1.0 / (1.0 - self.drop / 65536))

    def shared_tape(self, n: int) -> Tape:
        """The workspace's tape, overwritten by the next evaluation."""
        return self.workspace.tape(self.config, n, self.edges, self.dtype)

    def columns(
        self,
        layer: int,
        group: int,
        u: Tensor,
        initial: Tensor | None,
        p: StackTensors,
        tape: Tape,
        chosen: np.ndarray | None = None,
    ) -> None:
        """What ``product`` multiplies, into ``tape.z``; the tape then has all a gradient reads.

        layer: local number. u: [N, d] contiguous. initial: [N, d] of GCNII or None.
        p: parameters of this group of this block. chosen: a mask to use instead of selecting.
        """
        if chosen is not None:
            tape.mask[...] = chosen
        key = fold(self.topology.key, Stream.DROPOUT, self.first_layer + layer, group)
        parallel.run(
            topk.select,
            u.shape[0],
            u.numpy(),
            self._norm,
            self._scalar(self.config.norm_eps),
            p.gain.numpy(),
            p.shift.numpy(),
            self.config.kept,
            np.uint64(key),
            self.topology.ids,
            self.drop,
            self._keep_scale,
            chosen is not None,
            tape.stats.numpy(),
            self._rows(tape),
            tape.mask,
        )
        self.aggregate(initial, p, tape)

    def product(self, p: StackTensors, tape: Tape) -> Tensor:
        """``f(u)`` without its bias, after ``columns``: [N, d], in a buffer that the next call
        overwrites."""
        shape = tape.z.shape[0], p.weight.shape[1]
        return torch.mm(tape.z, p.weight, out=self.workspace.take("f", shape, self.dtype))

    def aggregate(self, initial: Tensor | None, p: StackTensors, tape: Tape) -> None:
        """Fill ``tape.z`` from the selected rows."""
        config, (n, columns) = self.config, tape.z.shape
        d = config.group_width
        z, values, mask = tape.z.view(-1).numpy(), tape.values.numpy(), tape.mask
        dense, stride = z, columns
        if not (config.packed and not config.own_column):
            if not config.own_column:
                dense, stride = self._dense(n, d).view(-1).numpy(), d
            parallel.run(topk.unpack, n, self._rows(tape), mask, dense, stride, 0, d)
        column = d if config.own_column else 0
        for s, sweep in enumerate(self.topology.sweeps):
            weight, own = sweep.weight, sweep.own
            if config.conv == "attention":
                weight, own = self._attend(s, p, tape)
            rows = (sweep.indptr, sweep.indices, weight, own)
            if not config.packed:
                parallel.run_rows(
                    group_sparse.aggregate, sweep.indptr, *rows,
                    dense, stride, 0, dense, stride, 0, False, z, columns, column, d,
                )  # fmt: skip
            elif d % 32 == 0 and self.dtype == torch.float32:
                parallel.run_rows(
                    group_sparse.aggregate_packed, sweep.indptr, *rows,
                    values, mask, z, columns, column, d, EXPANSIONS,
                )  # fmt: skip
            else:
                parallel.run_rows(
                    group_sparse.aggregate_packed_any, sweep.indptr, *rows,
                    values, mask, z, columns, column, d,
                )  # fmt: skip
            if initial is not None:
                alpha = config.initial_residual
                tape.z[:, column : column + d].mul_(1 - alpha).add_(initial, alpha=alpha)
            column += d

    def add(self, x: Tensor, f: Tensor, bias: Tensor, sign: int, layer: int, group: int) -> None:
        """``x += sign * snap(f + bias)`` in place. Raises ``GridRangeError`` past the range."""
        n = x.shape[0]
        outside = self.workspace.take("outside", (n,), torch.int32)
        parallel.run(
            grid.add, n, x.numpy(), f.numpy(), bias.numpy(),
            self._scale, self._back, self._scalar(sign), self._limit, outside.numpy(),
        )  # fmt: skip
        if self.config.grid is not None or sign > 0:
            self.check_range(x, outside, layer, group)

    def check_range(self, x: Tensor, outside: Tensor, layer: int, group: int) -> None:
        if self.config.grid is None or not outside.any():
            return
        node = int(outside.argmax())
        raise GridRangeError(
            f"block {self.first_layer + layer}, group {group}: the residual stream of node "
            f"{int(self.topology.ids[node])} reached {float(x[node].abs().max()):.4g}, past "
            f"+-{float(self._limit):g}, where additions in {self._scalar.__name__} are exact on "
            f"the grid 2^-{self.config.grid}; lower model.grid or the learning rate, or clip "
            "gradients"
        )

    def backward(
        self,
        layer: int,
        group: int,
        u: Tensor,
        p: StackTensors,
        tape: Tape,
        grad: Tensor,
        grad_u: Tensor,
        grads: StackTensors,
        grad_initial: Tensor | None,
    ) -> None:
        """Through the evaluation that left ``tape``.

        grad: [N, d] of f(u). grad_u: [N, d], added to. grads: of this group of this block, added
        to. grad_initial: [N, d], added to, or None.
        """
        config, (n, d), columns = self.config, u.shape, tape.z.shape[1]
        if self.deferred is None:
            grads.weight.addmm_(tape.z.t(), grad)
            grads.bias.add_(grad.sum(0))
        else:
            self.deferred.append((layer, group, tape.z.clone(), grad.clone()))
        grad_z = self.workspace.take("grad_z", (n, columns), self.dtype)
        torch.mm(grad, p.weight.t(), out=grad_z)
        grad_s = self.workspace.take("grad_s", (n, d), self.dtype)
        gz, gs = grad_z.view(-1).numpy(), grad_s.view(-1).numpy()
        column = d if config.own_column else 0
        start, stride, begin = gz, columns, config.own_column
        for s, sweep in enumerate(self.topology.sweeps):
            if grad_initial is not None:
                part = grad_z[:, column : column + d]
                grad_initial.add_(part, alpha=config.initial_residual)
                part.mul_(1 - config.initial_residual)
            weight, own = sweep.back_weight, sweep.own
            if config.conv == "attention":
                alpha, alpha_own = tape.alpha[s]
                weight, own = alpha.numpy()[sweep.back_position], alpha_own.numpy()
            parallel.run_rows(
                group_sparse.aggregate, sweep.back_indptr,
                sweep.back_indptr, sweep.back_indices, weight, own,
                gz, columns, column, start, stride, 0, begin, gs, d, 0, d,
            )  # fmt: skip
            start, stride, begin = gs, d, True
            if config.conv == "attention":
                self._attend_backward(s, p, tape, gz, columns, column, grad_s, grads)
            column += d
        partial = self.workspace.partial("norm_sums", n, (2, d), self.dtype)
        parallel.run(
            topk.select_backward, partial.shape[0], u.numpy(), self._norm, p.gain.numpy(),
            self._keep_scale, tape.stats.numpy(), tape.mask, grad_s.numpy(), grad_u.numpy(),
            partial.numpy(), work=n,
        )  # fmt: skip
        sums = partial.sum(0)
        grads.gain.add_(sums[0])
        grads.shift.add_(sums[1])

    def _rows(self, tape: Tape) -> np.ndarray:
        n = tape.stats.shape[0]
        return tape.values[: n * self.config.kept].view(n, -1).numpy()

    def _dense(self, n: int, d: int) -> Tensor:
        return self.workspace.take("dense", (n, d), self.dtype)

    def _attend(self, s: int, p: StackTensors, tape: Tape) -> tuple[np.ndarray, np.ndarray]:
        sweep, n = self.topology.sweeps[s], self.topology.num_nodes
        assert tape.scores is not None
        scores = self.workspace.take("pair", (n, 2), self.dtype)
        parallel.run(
            group_sparse.packed_dots, n,
            tape.values.numpy(), tape.mask, p.attention[s].numpy(), scores.numpy(),
        )  # fmt: skip
        tape.scores[:, 2 * s : 2 * s + 2] = scores
        alpha, own = (t.numpy() for t in tape.alpha[s])
        parallel.run_rows(
            group_sparse.attention, sweep.indptr, sweep.indptr, sweep.indices,
            *self._scores(s, tape), self._scalar(self.config.attention_slope), alpha, own,
        )  # fmt: skip
        return alpha, own

    def _scores(self, s: int, tape: Tape) -> tuple[np.ndarray, np.ndarray]:
        assert tape.scores is not None
        columns = tape.scores.numpy()[:, 2 * s : 2 * s + 2]
        return np.ascontiguousarray(columns[:, 0]), np.ascontiguousarray(columns[:, 1])

    def _attend_backward(
        self, s: int, p: StackTensors, tape: Tape, gz: np.ndarray, stride: int, column: int,
        grad_s: Tensor, grads: StackTensors,
    ) -> None:  # fmt: skip
        sweep, n = self.topology.sweeps[s], self.topology.num_nodes
        d = self.config.group_width
        score = self.workspace.take("grad_score", (sweep.indices.size,), self.dtype).numpy()
        own = self.workspace.take("grad_own", (n,), self.dtype).numpy()
        alpha, alpha_own = (t.numpy() for t in tape.alpha[s])
        parallel.run_rows(
            group_sparse.attention_backward, sweep.indptr, sweep.indptr, sweep.indices,
            *self._scores(s, tape), self._scalar(self.config.attention_slope), alpha, alpha_own,
            tape.values.numpy(), tape.mask, gz, stride, column, score, own,
        )  # fmt: skip
        ends = np.empty((2, n), own.dtype)
        identity = np.arange(score.size)
        for out, indptr, position in (
            (ends[0], sweep.back_indptr, sweep.back_position),
            (ends[1], sweep.indptr, identity),
        ):
            parallel.run_rows(group_sparse.edge_sums, indptr, indptr, position, score, own, out)
        pair = torch.from_numpy(np.ascontiguousarray(ends.T))
        grad_s.addmm_(pair, p.attention[s])
        partial = self.workspace.partial("score_sums", n, (2, d), self.dtype)
        parallel.run(
            group_sparse.packed_sums, partial.shape[0],
            tape.values.numpy(), tape.mask, pair.numpy(), topk.BLOCK, partial.numpy(), work=n,
        )  # fmt: skip
        grads.attention[s].add_(partial.sum(0))
