"""Saved tensors in fewer bits: bf16, or int8 with a scale a row.

An int8 row is ``round(x / s)`` with ``s = max|x| / 127``: each value is off by at most s / 2, which
is max|x| / 254 of its row. What is computed forward is untouched; gradients are approximate.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gnn_dist.nn.deep.inner import storages

_SMALL = 4096  # elements below which nothing is gained


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 of x's shape, scales of one value a row along the last dimension)."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(x / safe).to(torch.int8), scale


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(scale.dtype) * scale


def pack(kind: str | None, x: Tensor) -> tuple[Tensor, ...]:
    """``x`` as (bf16,) or (int8, scales); (x,) where ``kind`` is None or nothing is gained."""
    if kind is None or not (x.is_floating_point() and x.dim() >= 2 and x.numel() >= _SMALL):
        return (x,)
    return (x.to(torch.bfloat16),) if kind == "bf16" else quantise(x)


def unpack(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """What ``pack`` was given, as near as its bits tell."""
    return dequantise(*parts) if len(parts) == 2 else parts[0].to(dtype)


def compressed(
    kind: str, parameters: Iterable[Tensor], saved: dict[int, int]
) -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which tensors that autograd saves are kept as ``bf16`` or ``int8``.

    parameters: left as they are, and views of them: they are there anyway, and gradients pass
        through them.
    saved: takes address and bytes of what is kept.
    """
    weights = {p.untyped_storage().data_ptr() for p in parameters}

    def keep(x: Tensor) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        if x.untyped_storage().data_ptr() in weights:
            return x.dtype, (x,)
        parts = pack(kind, x)
        saved.update(storages(parts))
        return x.dtype, parts

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: unpack(kept[1], kept[0]))
