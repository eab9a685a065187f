"""Grouped residual blocks, their inverse, and three ways to differentiate through many of them.

    Y_0 = sum_{i >= 2} X_i;  Y_i = X_i + f_i(Y_{i-1})            forward
    X_i = Y_i - f_i(Y_{i-1}),  i = C ... 1                       inverse

A state is [C, N, d], the groups one after another. ``plain`` keeps what every f leaves,
``checkpoint`` the states before and after every block, which hold the input of every f;
``reversible`` the state after the last: going back it evaluates f once, undoes the addition with
the result and back-propagates through that same evaluation.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.nn.deep.compression import compressed, pack, unpack
from gnn_dist.nn.deep.inner import Inner, storages
from gnn_dist.nn.deep.parameters import StackTensors
from gnn_dist.nn.deep.workspace import Tape, fresh_tape


def run_stack(
    inner: Inner, state: Tensor, initial: Tensor | None, parameters: StackTensors
) -> Tensor:
    """The state after all blocks: [C, N, d], differentiable. ``state`` is left as it is."""
    mode = inner.config.mode
    if mode == "reversible" or not torch.is_grad_enabled():
        return _Reversible.apply(inner, state, initial, *parameters)
    if mode == "checkpoint":
        return _Checkpoint.apply(inner, state, initial, *parameters)
    tensors = [t.flatten(0, 1).unbind(0) for t in parameters]  # one gradient each, stacked once
    kind = inner.config.compression
    groups = inner.config.groups
    with nullcontext() if kind is None else compressed(kind, parameters, inner.saved):
        parts = list(state.unbind(0))
        for layer in range(parameters.gain.shape[0]):
            for i in range(groups):
                u = parts[i - 1] if i else _sum(parts)
                row = [t[layer * groups + i] for t in tensors]
                start = None if initial is None else initial[i]
                parts[i] = _Plain.apply(inner, layer, i, u, parts[i], start, *row)
    return torch.stack(parts)


def forward_block(
    inner: Inner,
    layer: int,
    state: Tensor,
    initial: Tensor | None,
    block: Sequence[StackTensors],
    tape: Tape,
    keep_masks: np.ndarray | None = None,
) -> None:
    """One block in place. ``block``: a tensor set a group. ``keep_masks``: [C, N, words] out."""
    for i, p in enumerate(block):
        inner.columns(layer, i, _input(inner, state, i), _row(initial, i), p, tape)
        f = inner.product(p, tape)
        if keep_masks is not None:
            keep_masks[i] = tape.mask
        inner.add(state[i], f, p.bias, 1, layer, i)


def backward_block(
    inner: Inner,
    layer: int,
    state: Tensor,
    initial: Tensor | None,
    block: Sequence[StackTensors],
    tape: Tape,
    grad: Tensor,
    grad_initial: Tensor | None,
    grads: Sequence[StackTensors],
    masks: np.ndarray | None = None,
) -> None:
    """Turn the state after a block and its gradient into those before it, in place."""
    for i in reversed(range(len(block))):
        u, p = _input(inner, state, i), block[i]
        chosen = None if masks is None else masks[i]
        inner.columns(layer, i, u, _row(initial, i), p, tape, chosen)
        f = inner.product(p, tape)
        inner.add(state[i], f, p.bias, -1, layer, i)
        _through(inner, layer, i, u, p, tape, grad, grad_initial, grads[i])


def _through(
    inner: Inner,
    layer: int,
    i: int,
    u: Tensor,
    p: StackTensors,
    tape: Tape,
    grad: Tensor,
    grad_initial: Tensor | None,
    grads: StackTensors,
) -> None:
    """Through group ``i`` of a block: ``grad`` [C, N, d] of the state gains what comes by f."""
    if i:
        target = grad[i - 1]
    elif grad.shape[0] == 2:
        target = grad[1]
    else:
        target = inner.workspace.take("grad_sum", tuple(u.shape), inner.dtype).zero_()
    inner.backward(layer, i, u, p, tape, grad[i], target, grads, _row(grad_initial, i))
    if not i and grad.shape[0] > 2:
        grad[1:] += target


def _input(inner: Inner, state: Tensor, i: int) -> Tensor:
    """``Y_{i-1}``; for the first group the sum of the others."""
    if i:
        return state[i - 1]
    if state.shape[0] == 2:
        return state[1]
    out = inner.workspace.take("y0", tuple(state.shape[1:]), inner.dtype)
    return torch.sum(state[1:], 0, out=out)


def _row(tensor: Tensor | None, i: int) -> Tensor | None:
    return None if tensor is None else tensor[i]


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[1] if len(parts) == 2 else torch.stack(parts[1:]).sum(0)


class _Reversible(torch.autograd.Function):
    """The whole stack: keeps its output (and GCNII's initial rows)."""

    @staticmethod
    def forward(
        ctx: Any, inner: Inner, state: Tensor, initial: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        parameters = StackTensors(*(t.detach() for t in tensors))
        out = state.detach().clone()
        start = None if initial is None else initial.detach()
        tape = inner.shared_tape(out.shape[1])
        layers, groups = parameters.gain.shape[:2]
        masks = None
        if inner.config.saved_indices and any(ctx.needs_input_grad):
            masks = np.empty((layers, groups, *tape.mask.shape), np.uint32)
        for layer in range(layers):
            block = [parameters.block(layer, i) for i in range(groups)]
            kept = None if masks is None else masks[layer]
            forward_block(inner, layer, out, start, block, tape, kept)
        ctx.inner, ctx.masks = inner, masks
        ctx.save_for_backward(out, initial, *tensors)
        if any(ctx.needs_input_grad):
            inner.saved.update(storages((out, initial)))
            if masks is not None:
                inner.saved[masks.ctypes.data] = masks.nbytes
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        out, initial, *tensors = ctx.saved_tensors
        inner: Inner = ctx.inner
        parameters = StackTensors(*(t.detach() for t in tensors))
        grads = parameters.zeros_like()
        state = inner.workspace.take("state", tuple(out.shape), inner.dtype)
        state.copy_(out.detach())
        grad = grad_out.clone(memory_format=torch.contiguous_format)
        start = None if initial is None else initial.detach()
        grad_start = None if start is None else torch.zeros_like(start)
        tape = inner.shared_tape(out.shape[1])
        layers, groups = parameters.gain.shape[:2]
        for layer in reversed(range(layers)):
            backward_block(
                inner,
                layer,
                state,
                start,
                [parameters.block(layer, i) for i in range(groups)],
                tape,
                grad,
                grad_start,
                [grads.block(layer, i) for i in range(groups)],
                None if ctx.masks is None else ctx.masks[layer],
            )
        inner.reconstructed = state
        return None, grad, grad_start, *grads


class _Checkpoint(torch.autograd.Function):
    """The whole stack: keeps the L + 1 states between blocks (and GCNII's initial rows).

    The state after a block has the inputs of all its groups but the first, the state before it has
    that one: going back nothing is computed again but what each f leaves.
    """

    @staticmethod
    def forward(
        ctx: Any, inner: Inner, state: Tensor, initial: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        parameters = StackTensors(*(t.detach() for t in tensors))
        kind = inner.config.compression
        out = state.detach().contiguous()
        kept = [pack(kind, out)]
        start = None if initial is None else initial.detach()
        tape = inner.shared_tape(out.shape[1])
        layers, groups = parameters.gain.shape[:2]
        for layer in range(layers):
            out = out.clone()
            block = [parameters.block(layer, i) for i in range(groups)]
            forward_block(inner, layer, out, start, block, tape)
            kept.append(pack(kind, out))
        states = [part for parts in kept for part in parts]
        ctx.inner, ctx.pieces = inner, len(kept[0])
        ctx.save_for_backward(initial, *tensors, *states)
        inner.saved.update(storages((initial, *states)))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        width, pieces = len(StackTensors._fields), ctx.pieces
        initial, *rest = ctx.saved_tensors
        tensors, states = rest[:width], [t.detach() for t in rest[width:]]
        inner: Inner = ctx.inner
        parameters = StackTensors(*(t.detach() for t in tensors))
        grads = parameters.zeros_like()
        grad = grad_out.clone(memory_format=torch.contiguous_format)
        start = None if initial is None else initial.detach()
        grad_start = None if start is None else torch.zeros_like(start)
        tape = inner.shared_tape(grad.shape[1])
        layers, groups = parameters.gain.shape[:2]
        after = unpack(states[layers * pieces :], inner.dtype)
        for layer in reversed(range(layers)):
            before = unpack(states[layer * pieces : (layer + 1) * pieces], inner.dtype)
            for i in reversed(range(groups)):
                u = after[i - 1] if i else _input(inner, before, 0)
                p = parameters.block(layer, i)
                inner.columns(layer, i, u, _row(start, i), p, tape)
                to = grads.block(layer, i)
                _through(inner, layer, i, u, p, tape, grad, grad_start, to)
            after = before
        return None, grad, grad_start, *grads


class _Plain(torch.autograd.Function):
    """``x + f(u)`` of one group: keeps all that f leaves; with packed rows, only these."""

    @staticmethod
    def forward(
        ctx: Any,
        inner: Inner,
        layer: int,
        group: int,
        u: Tensor,
        x: Tensor,
        initial: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        p = StackTensors(*(t.detach() for t in tensors))
        tape = fresh_tape(inner.config, u.shape[0], inner.edges, inner.dtype)
        if inner.config.packed:
            tape.z = inner.shared_tape(u.shape[0]).z
        start = None if initial is None else initial.detach()
        inner.columns(layer, group, u.detach().contiguous(), start, p, tape)
        f = inner.product(p, tape)
        out = x.detach().clone(memory_format=torch.contiguous_format)
        inner.add(out, f, p.bias, 1, layer, group)
        ctx.inner, ctx.layer, ctx.group, ctx.alphas = inner, layer, group, len(tape.alpha)
        alpha = [t for pair in tape.alpha for t in pair]
        z = None if inner.config.packed else tape.z
        mask = torch.from_numpy(tape.mask.view(np.int32))
        rows = (u, initial, tape.stats, tape.values, mask, z, tape.scores, *alpha)
        ctx.save_for_backward(*rows, *tensors)
        if inner.config.compression is None:
            inner.saved.update(storages(rows))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        u, initial, stats, values, mask, z, scores, *rest = ctx.saved_tensors
        inner: Inner = ctx.inner
        alpha, tensors = rest[: 2 * ctx.alphas], rest[2 * ctx.alphas :]
        p = StackTensors(*(t.detach() for t in tensors))
        u = u.detach().contiguous()
        start = None if initial is None else initial.detach()
        tape = Tape(
            stats,
            values,
            mask.numpy().view(np.uint32),
            inner.shared_tape(u.shape[0]).z if z is None else z,
            scores,
            list(zip(alpha[::2], alpha[1::2], strict=True)),
        )
        if z is None:
            inner.aggregate(start, p, tape)
        grad_u = torch.zeros_like(u)
        grad_start = None if start is None else torch.zeros_like(start)
        grads = StackTensors(*(torch.zeros_like(t) for t in p))
        grad = grad_out.contiguous()
        inner.backward(ctx.layer, ctx.group, u, p, tape, grad, grad_u, grads, grad_start)
        return None, None, None, grad_u, grad_out, grad_start, *grads
