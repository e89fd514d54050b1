"""Multi-tensor AdamW on fp32 master weights: one kernel reads bf16 gradients, clips, and writes bf16 weights.

Torch's fused AdamW needs gradients in the dtype of the master weights, so casting, clipping and casting back are
separate passes. The update rule and the optimizer state are torch's, so checkpoints are interchangeable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.kernels.trying import agrees

BLOCK, WARPS = 1024, 8  # 3.4 TB/s of 4.8 on an H200; blocks of 2,048 reach 2.1 to 3.3
ALIGNED = 16  # bytes of a vectorised load
CLOSE = 2e-5  # relative tolerance in fp32


class Field(NamedTuple):
    """One row of the kernel's pointer table: device addresses and the size. The kernel relies on this order."""

    master: int
    grad: int
    exp_avg: int
    exp_avg_sq: int
    step: int
    size: int
    narrow: int


def gradient_norm(grads: Sequence[Tensor]) -> Tensor:
    """The global gradient norm, accumulated in fp32 whatever the dtypes."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for grad in grads:
        by_type.setdefault(grad.dtype, []).append(grad)
    norms = [norm for part in by_type.values() for norm in torch._foreach_norm(part, 2.0, dtype=torch.float32)]
    return torch.stack(norms).norm()


@torch.no_grad()
def update(
    optimizer: torch.optim.AdamW, masters: dict[int, Tensor], clip: Tensor, bad: Tensor,
    recorded: RecordedPointers | None = None,
) -> None:  # fmt: skip
    """One step of `optimizer`; parameters with an fp32 master weight in `masters` (by id) are bf16.

    The learning rate of each group is a tensor on the device; `clip` multiplies the gradients. The step is skipped if
    `bad` is not 0. CUDA graph capture needs `recorded` for the pointer tables.
    """
    moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not moved:
        return
    for parameter in moved:
        if not optimizer.state[parameter]:
            like = masters.get(id(parameter), parameter.data)
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=like.device),
                "exp_avg": torch.zeros_like(like), "exp_avg_sq": torch.zeros_like(like),
            }  # fmt: skip
    more = 1.0 - bad  # repeated per tensor: as a single tensor its value would be copied to the host, with a sync
    torch._foreach_add_([optimizer.state[p]["step"] for p in moved], [more] * len(moved))
    for group in optimizer.param_groups:
        for narrow in (True, False):
            fields = [field_of(p, optimizer.state[p], masters) for p in group["params"]
                      if p.grad is not None and (id(p) in masters) is narrow]  # fmt: skip
            if fields:
                launch(upload(fields, clip.device, recorded), fields, group, clip, bad, narrow=narrow)


def field_of(parameter: nn.Parameter, state: dict[str, Tensor], masters: dict[int, Tensor]) -> Field:
    """The pointers of a parameter, its gradient and its optimizer state."""
    assert parameter.grad is not None
    master, grad = masters.get(id(parameter), parameter.data), parameter.grad
    for tensor in (master, grad, parameter.data, state["exp_avg"], state["exp_avg_sq"]):
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not contiguous and aligned")
    return Field(
        master.data_ptr(), grad.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr(),
        state["step"].data_ptr(), master.numel(), parameter.data_ptr(),
    )  # fmt: skip


class RecordedPointers:
    """Pointer tables for one CUDA graph capture of the update, one for each launch.

    Every replay copies them from the same host memory, which must therefore stay allocated and unmodified, and be
    allocated before the capture begins. `sizes` are the numbers of tensors in each parameter group.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        shapes = [(size, len(Field._fields)) for size in sizes for _ in range(2)]  # bf16 parameters and the others
        self.free = [
            (torch.empty(shape, dtype=torch.int64).pin_memory(), torch.empty(shape, dtype=torch.int64, device=device))
            for shape in sorted(shapes)
        ]
        self.used: list[Tensor] = []

    def upload(self, fields: list[Field]) -> Tensor:
        """The pointer table on the device, copied again at every replay."""
        found = next((number for number, (host, _) in enumerate(self.free) if len(host) >= len(fields)), None)
        if found is None:
            raise RuntimeError("the pointers of an update can be recorded once")
        host, there = self.free.pop(found)
        host[: len(fields)] = torch.tensor(fields, dtype=torch.int64)
        self.used.append(host)
        return there.copy_(host, non_blocking=True)


def upload(fields: list[Field], device: torch.device, recorded: RecordedPointers | None) -> Tensor:
    """The pointer table on the device."""
    if recorded is not None and torch.cuda.is_current_stream_capturing():
        return recorded.upload(fields)
    # Pinned: a copy from pageable memory would first synchronize with the queued kernels.
    return torch.tensor(fields, dtype=torch.int64).pin_memory().to(device, non_blocking=True)


def launch(
    pointers: Tensor, fields: list[Field], group: dict[str, Any], clip: Tensor, bad: Tensor, *, narrow: bool
) -> None:
    from anyformer.kernels.adamw_triton import adamw_update

    beta1, beta2 = group["betas"]
    blocks = blocks_of(tuple(field.size for field in fields), clip.device)
    adamw_update[(len(blocks),)](
        pointers, blocks, clip, group["lr"], bad, group["weight_decay"], beta1, beta2, math.log(beta1), math.log(beta2),
        group["eps"], NARROW=narrow, FIELDS=len(Field._fields), BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip


@cache
def blocks_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The tensor and the block within it that each program of the kernel updates, (programs, 2)."""
    counts = [-(-size // BLOCK) for size in sizes]
    which = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(counts))
    inside = torch.cat([torch.arange(count) for count in counts])
    return torch.stack([which, inside], 1).to(device)


@cache
def enable(device: torch.device) -> bool:
    """Whether the kernel runs on this device and agrees with torch there."""
    return agrees(device, "the update", lambda: compare(device), CLOSE)


def compare(device: torch.device) -> float:
    """Largest difference from torch after three steps on a small sample, relative to the change of the weights."""
    draw = torch.Generator(device).manual_seed(0)
    starts = [torch.randn(shape, device=device, generator=draw) for shape in ((70, 90), (3000,))]
    grads = [[torch.randn_like(s).bfloat16().float() for s in starts] for _ in range(3)]
    ours, theirs = ([nn.Parameter(s.clone()) for s in starts] for _ in range(2))
    masters = {id(ours[0]): starts[0].clone()}
    ours[0].data = ours[0].data.bfloat16()
    mine = torch.optim.AdamW(ours, lr=torch.tensor(1e-2, device=device), weight_decay=0.1, fused=True)
    reference = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1)
    one, zero = torch.ones((), device=device), torch.zeros((), device=device)
    for found in grads:
        for parameter, like, grad in zip(ours, theirs, found, strict=True):
            parameter.grad, like.grad = grad.to(parameter.dtype), 0.5 * grad
        update(mine, masters, 0.5 * one, zero)
        reference.step()
    ends = [masters[id(ours[0])], ours[1].data]
    wanted = [p.data for p in theirs]
    return max(float((a - b).norm() / (b - s).norm()) for a, b, s in zip(ends, wanted, starts, strict=True))
