"""Saved tensors in fewer bits: bf16, or int8 with a scale a row.

An int8 row is ``round(x / s)`` with ``s = max|x| / 127``: each value is off by at most s / 2, which
is max|x| / 254 of its row. What is computed forward is untouched; gradients are approximate.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SMALL = 4096  # elements below which nothing is gained


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 of x's shape, scales of one value a row along the last dimension)."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(x / safe).to(torch.int8), scale


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(scale.dtype) * scale


def _pack_bf16(x: Tensor) -> Any:
    return ("bf16", x.to(torch.bfloat16), x.dtype) if _worth(x) else x


def _pack_int8(x: Tensor) -> Any:
    return ("int8", *quantise(x)) if _worth(x) else x


def _worth(x: Tensor) -> bool:
    return x.is_floating_point() and x.dim() >= 2 and x.numel() >= _SMALL


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    kind, data, extra = packed
    return data.to(extra) if kind == "bf16" else dequantise(data, extra)


_PACK: dict[str, Callable[[Tensor], Any]] = {"bf16": _pack_bf16, "int8": _pack_int8}


def compressed(
    kind: str, saved: dict[int, int] | None = None
) -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which tensors that autograd saves are kept as ``bf16`` or ``int8``.

    saved: takes address and bytes of what is kept.
    """

    def pack(x: Tensor) -> Any:
        packed = _PACK[kind](x)
        if saved is not None:
            for part in (packed,) if isinstance(packed, Tensor) else packed:
                if isinstance(part, Tensor):
                    saved[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        return packed

    return torch.autograd.graph.saved_tensors_hooks(pack, _unpack)
