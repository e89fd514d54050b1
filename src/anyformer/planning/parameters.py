"""How many numbers a model has, by part; of experts also how many a token meets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anyformer.feeds.experts import ExpertsModule
from anyformer.planning.trace import PARTS, parts_of


@dataclass(frozen=True)
class ParameterCount:
    """All parameters, those that learn, and those that one token goes through."""

    total: int
    learning: int
    active: int
    by_part: dict[str, int]
    tensors: int = 0  # that learn: an optimizer goes through them one by one


def count_parameters(net: nn.Module) -> ParameterCount:
    """The parameters of a network, which may be on `meta`; one that two places use is counted where it is stored.

    >>> from anyformer import preset
    >>> count_parameters(preset("gpt2").build(device="meta")).total
    124439808
    """
    seen: set[int] = set()
    found = dict.fromkeys(PARTS, 0)
    for part, module in parts_of(net):
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[part] += parameter.numel()
    everything = list(net.parameters())
    total = sum(p.numel() for p in everything)
    found["other"] += total - sum(found.values())
    idle = sum(idle_parameters(module) for module in net.modules() if isinstance(module, ExpertsModule))
    learn = [p for p in everything if p.requires_grad]
    return ParameterCount(total, sum(p.numel() for p in learn), total - idle, found, len(learn))


def idle_parameters(module: ExpertsModule) -> int:
    """Those of the experts that a token does not choose."""
    each = sum(p.numel() for p in module.experts[0].parameters())
    return (module.spec.count - module.spec.top) * each
