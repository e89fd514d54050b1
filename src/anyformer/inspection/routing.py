"""Expert routing of the tokens of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.feeds.experts import ExpertsModule
from anyformer.slots import Losses

Counts = dict[str, list[Tensor]]  # by module path, one entry per call


@dataclass
class Routing:
    """Routing statistics: how many real tokens each expert gets (count,), and the load balancing losses."""

    counts: Counts = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """For the log: the mean balancing loss, and each expert's fraction of choices by path (1 / count if even)."""
        totals = {path: torch.stack(counts).sum(0).double() for path, counts in self.counts.items()}
        even = {path: [round(share, 4) for share in (t / t.sum()).tolist()] for path, t in totals.items()}
        balance = {"balance": round(torch.stack(self.losses).mean().item(), 6)} if self.losses else {}
        return balance | {"experts": even} if even else {}


@contextmanager
def routed(model: nn.Module) -> Iterator[Routing]:
    """Record the routing of a model's experts in a `with` block."""
    found = Routing()

    def note(path: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], out: tuple[Tensor, Losses]) -> None:
            assert isinstance(module, ExpertsModule)
            found.counts.setdefault(path, []).append(module.tokens(*given))
            found.losses += [loss.detach() for loss in out[1].values()]

        return hook

    modules = {path: module for path, module in model.named_modules() if isinstance(module, ExpertsModule)}
    handles = [module.register_forward_hook(note(path)) for path, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def tokens_per_expert(
    model: nn.Module, *inputs: Any, mask: Tensor | None = None, options: dict[str, Any] | None = None
) -> Counts:
    """How many real tokens were routed to each expert (count,), by module path: `tokens_per_expert(model, tokens)`.

    A module shared by several layers has one entry for each. `options` are further arguments of the model.
    """
    with routed(model) as found:
        model(*inputs, mask=mask, **(options or {}))
    return found.counts
