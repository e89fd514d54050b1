"""bf16 weights for matmuls, with a float32 master copy of each for the optimizer (1710.03740).

Under autocast alone every step casts each weight down and its gradient up, and the residual stream is float32, since
the token embedding is. Here layers that only multiply or look up are held in bf16: linear layers, convolutions and
embeddings. Everything else stays float32: norms, recurrences, filters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

NARROWED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)


class MasterWeights:
    """The parameters of a model that are bf16 during training. The `masters` are updated, evaluated and saved."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.parameters = list(narrowed_parameters(model))
        self.masters = [p.data for p in self.parameters]
        self.narrow = [p.data.to(dtype) for p in self.parameters]
        self.by_id = {id(p): master for p, master in zip(self.parameters, self.masters, strict=True)}
        self.place(self.narrow)

    def of(self, parameter: nn.Parameter) -> Tensor:
        """A parameter's full-precision tensor: its master copy, or its own data."""
        return self.by_id.get(id(parameter), parameter.data)

    def place(self, values: list[Tensor]) -> None:
        """Make the parameters point to these tensors."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.data = value

    @torch.no_grad()
    def widen(self) -> None:
        """Before an update: point parameters to their masters and cast gradients to float32."""
        grads = [p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None  # torch rejects a gradient of another dtype than its parameter
        self.place(self.masters)
        wide = [torch.empty_like(m) for m, grad in zip(self.masters, grads, strict=True) if grad is not None]
        torch._foreach_copy_(wide, [grad for grad in grads if grad is not None])
        rest = iter(wide)
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = None if grad is None else next(rest)

    @torch.no_grad()
    def refresh(self) -> None:
        """After an update or after loading a checkpoint: round the masters into the bf16 weights."""
        for parameter in self.parameters:
            parameter.grad = None
        torch._foreach_copy_(self.narrow, self.masters)
        self.place(self.narrow)

    def release(self) -> None:
        """Restore the model's float32 weights; it cannot be trained with these masters afterwards."""
        self.place(self.masters)


def narrowed_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The float32 parameters of layers that only multiply or look up, each once."""
    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, NARROWED):
            for parameter in module.parameters(recurse=False):
                if parameter.dtype == torch.float32 and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter
