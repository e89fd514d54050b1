"""Muon with matrices of the same shape batched: a few batched matmuls instead of many small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.training.distributed.parts import is_distributed, local, locals_of, work_on_wholes

# Five rounds of p(s) = a s + b s^3 + c s^5 bring every singular value near 1 (https://kellerjordan.github.io/posts/muon).
COEFFICIENTS, ROUNDS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7


class BatchedMuon(torch.optim.Optimizer):
    """Orthogonalised momentum updates of matrices; the same rule as torch.optim.Muon.

    `match_adamw` scales updates to the size of AdamW's, so that its learning rates fit; otherwise tall matrices take
    larger steps. Nothing synchronises with the GPU: `lr` may be a tensor, and if `found_inf` is 1 the update is zero.
    Each sharded matrix is gathered in one process, which sends the others their part of the update.
    """

    found_inf: Tensor | None = None

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, weight_decay: float, momentum: float, match_adamw: bool
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "capturable": True})
        self.match_adamw = match_adamw

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[tuple[torch.Size, torch.Size], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:  # two of one shape may be cut in two ways
                    shapes.setdefault((parameter.shape, local(parameter).shape), []).append(parameter)
            for matrices in shapes.values():
                self.move(group, matrices)

    def move(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        """One update of matrices of one shape."""
        grads = [p.grad for p in matrices if p.grad is not None]
        buffers = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in matrices]
        torch._foreach_lerp_(locals_of(buffers), locals_of(grads), 1 - group["momentum"])
        updates = self.updates(grads, buffers, group["momentum"])
        rate = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
        if self.found_inf is not None:
            updates = torch.where(self.found_inf > 0, 0.0, updates)
        rows, columns = matrices[0].shape
        scale = 0.2 * max(rows, columns) ** 0.5 if self.match_adamw else max(1, rows / columns) ** 0.5
        weights = locals_of(matrices)
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(weights, list((updates * (rate * scale)).to(weights[0].dtype).unbind()))

    def updates(self, grads: list[Tensor], buffers: list[Tensor], momentum: float) -> Tensor:
        """The direction of each step, (N,R,C) or this process's part of it, with Nesterov's look ahead."""
        if not is_distributed(grads[0]):
            return orthogonalise(torch.stack(torch._foreach_lerp(grads, buffers, momentum)))
        torch._foreach_lerp_(locals_of(grads), locals_of(buffers), momentum)  # gradients are dropped after the step
        return torch.stack(work_on_wholes(grads, lambda ahead: orthogonalise(ahead[None])[0]))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Orthogonalise each matrix of (N,R,C) (singular values near 1) by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    # The iteration tolerates bf16, which is fast on a GPU; most CPUs have no bf16 matmul.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
