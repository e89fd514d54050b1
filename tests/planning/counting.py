"""The same figures by running a real network: torch's own counter, autograd's own hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer import Network, preset
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.trace import answers_of
from anyformer.presets import PRESETS

# One of each distinct tiny spec: larger siblings point to the same.
TINY = sorted({preset(n): n for n in sorted(PRESETS, key=len, reverse=True) if n.endswith("-tiny")}.values())


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Attention and recurrences as products that torch's counter knows; it has no formula for a CPU's fused ones."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def counted(net: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, int]:
    """FLOPs of a real forward and backward pass by torch's counter."""
    with plain_kernels():
        with FlopCounterMode(display=False) as forward:
            out = net(*args, **named)
        answers = [x for x in answers_of(out) if x.requires_grad]
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(answers, [torch.ones_like(x) for x in answers])
    return forward.get_total_flops(), backward.get_total_flops()


def real_inputs(spec: Network, batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs with content, so that experts get different tokens."""
    generator = torch.Generator().manual_seed(0)

    def fill(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(fill(part) for part in x)
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator)
        return torch.randint(0, 2, x.shape, generator=generator) if x.shape[-1] < 8 else token_ids(x, generator)

    given = blank_inputs(spec, batch, length, device="cpu")
    return tuple(fill(x) for x in given.args), given.named


def token_ids(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 64, x.shape, generator=generator)


def kept_bytes(net: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Bytes that autograd keeps for the backward pass of a real network, each storage once."""
    held: dict[int, Tensor] = {}
    fixed = {p.untyped_storage().data_ptr() for p in net.parameters()}
    fixed |= {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}

    def keep(x: Tensor) -> Tensor:
        place = x.untyped_storage().data_ptr()
        if place not in fixed:
            held.setdefault(place, x.detach())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = net(*args, **named)
        total = sum(x.untyped_storage().nbytes() for x in held.values())
    del out
    return total
