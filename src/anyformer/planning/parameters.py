"""Parameter counts by part; for mixtures of experts also the active parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anyformer.feeds.experts import ExpertsModule
from anyformer.planning.trace import PARTS, parts_of


@dataclass(frozen=True)
class ParameterCount:
    """All parameters, the trainable ones, and those active for one token."""

    total: int
    learning: int
    active: int
    by_part: dict[str, int]
    tensors: int = 0  # trainable ones: the optimizer has an overhead per tensor


def count_parameters(net: nn.Module) -> ParameterCount:
    """The parameters of a network, which may be on `meta`; shared ones are counted once, where they are stored.

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
    """Parameters of the experts to which a token is not routed."""
    each = sum(p.numel() for p in module.experts[0].parameters())
    return (module.spec.count - module.spec.top) * each
