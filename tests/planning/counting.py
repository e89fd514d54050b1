"""The same figures by running a real network: torch's own counter, autograd's own hooks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from anyformer import LM, Network, preset
from anyformer.core import attend
from anyformer.objectives import Batch
from anyformer.objectives.words import word_loss
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.trace import answers_of
from anyformer.presets import PRESETS

# One of each distinct tiny spec: larger siblings point to the same.
TINY = sorted({preset(n): n for n in sorted(PRESETS, key=len, reverse=True) if n.endswith("-tiny")}.values())


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Attention and recurrences as products that torch's counter knows; it has no formula for a CPU's fused ones, and
    for our one operation on `meta` it would use ours."""
    before, shapes = torch._C._get_mkldnn_enabled(), attend.ENGINES["shapes"]
    torch._C._set_mkldnn_enabled(False)
    attend.ENGINES["shapes"] = attend.sdpa
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)
        attend.ENGINES["shapes"] = shapes


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


class LiveStorages(TorchDispatchMode):
    """Bytes of every storage that is alive, and their peak; those of `held` are there from the beginning."""

    def __init__(self, *held: Tensor) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()
        for x in held:
            self.watch(x)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self.watch(x)
        return out

    def watch(self, x: Tensor) -> None:
        """Count a storage from its first sight to its end."""
        storage = x.untyped_storage()
        number = storage._cdata
        if number in self.known:
            return
        self.known.add(number)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.forget, number, size)

    def forget(self, number: int, size: int) -> None:
        self.known.discard(number)
        self.live -= size


def peak_bytes(spec: Network, batch: int, length: int) -> int:
    """The most bytes that a real step of training holds at once: forward, backward and AdamW, which has its means."""
    net = spec.build(seed=0).train()
    args, named = real_inputs(spec, batch, length)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, fused=True)
    train_once(net, args, named, optimizer)
    states = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    with LiveStorages(*net.parameters(), *net.buffers(), *states) as storages:
        train_once(net, args, named, optimizer)
    return storages.peak


def train_once(net: nn.Module, args: tuple[Any, ...], named: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """One step as the trainer makes it: of a language model the logits are never held all at once."""
    model: Any = net
    words = args[-1]
    if isinstance(getattr(model.spec, "head", None), LM):
        given = Batch(inputs=args, targets=words, rows=torch.arange(len(words)), named=named)
        loss = word_loss(model, given)
    else:
        loss = sum((x.float().square().mean() for x in answers_of(net(*args, **named))), torch.zeros(()))
    loss.backward()
    del loss
    optimizer.step()
    optimizer.zero_grad()
