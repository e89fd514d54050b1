"""All weight initialisation, in one place: which published scheme fills which kind of parameter.

| scheme | linear weights              | embedding tables    | last layer of a branch         | from               |
|--------|-----------------------------|---------------------|--------------------------------|--------------------|
| gpt2   | normal .02                  | normal .02          | .02 / sqrt(number of branches) | GPT-2              |
| bert   | normal .02                  | normal .02          | as the others                  | 1810.04805         |
| xavier | uniform, fan-in and fan-out | normal D^-1/2       | as the others                  | 1706.03762         |
| t5     | normal fan-in^-1/2          | normal 1            | as the others                  | 1910.10683         |
| table  | uniform +-fan-in^-1/2       | uniform +-D^-1/2    | as the others                  | 2106.11959         |

T5's query weights are also divided by sqrt(C). Biases start at 0 (table: as its weights), norms at 1 and 0, layer-scale
at its setting, class tokens and registers as tables. The same under every scheme: convolutions normal by fan-out
(1502.01852), and parameters that a part initialises itself (`core/own_init.py`). Modules from outside the library keep
the values their constructors set (`core/building.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core.own_init import Starting
from anyformer.core.residual import Residual
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule

Hold = Callable[[Tensor], AbstractContextManager[Tensor]]
Init = Literal["gpt2", "bert", "xavier", "t5", "table"]
STD = 0.02
AFTER_SUM = ("out", "down")  # the last layer of a branch: its output is added to the residual stream


def allocate(module: nn.Module, device: Any) -> nn.Module:
    """Allocate memory for a module built on `meta`, uninitialised.

    Like torch's `to_empty`, which imports the compiler for this and takes a second to do so.
    """
    made: dict[int, nn.Parameter] = {}  # a parameter shared by two modules stays shared
    for child in module.modules():
        for name, old in child._parameters.items():
            if old is None:
                continue
            if id(old) not in made:
                room = torch.empty(old.shape, dtype=old.dtype, device=device)
                made[id(old)] = nn.Parameter(room, requires_grad=old.requires_grad)
            child._parameters[name] = made[id(old)]
    return module


def initialise(
    module: nn.Module, scheme: Init, seed: int | None = None, kept: Set[int] = frozenset(), hold: Hold = nullcontext
) -> None:
    """Initialise every parameter of a freshly allocated model; a seed makes it repeatable.

    Modules whose ids are in `kept` keep their values, except parameters named in `Starting.starts`. `hold` yields the
    tensor to fill for a parameter, for parameters that are not plain tensors (sharded).
    """
    device = next(module.parameters()).device
    generator = None if seed is None else torch.Generator(device=device).manual_seed(seed)
    depth = sum(1 for child in module.modules() if isinstance(child, Residual))  # branches that end in a sum
    queries = query_sizes(module) if scheme == "t5" else {}
    filled: set[int] = set()
    with torch.no_grad():
        for path, owner in module.named_modules():
            for name, parameter in owner.named_parameters(recurse=False):
                if id(parameter) not in filled and (id(owner) not in kept or is_named(owner, name)):
                    filled.add(id(parameter))
                    with hold(parameter) as values:
                        fill(values, name, path.rpartition(".")[2], owner, scheme, depth, generator)
                        if id(parameter) in queries:
                            shrink_queries(values, *queries[id(parameter)])


def is_named(owner: nn.Module, name: str) -> bool:
    """Whether a module initialises this parameter itself."""
    return isinstance(owner, Starting) and name in owner.starts


def fill(
    p: Tensor,
    name: str,
    owner_name: str,
    owner: nn.Module,
    scheme: Init,
    branches: int,
    generator: torch.Generator | None,
) -> None:
    """Fill one parameter, by its owner's type, its name and the scheme."""
    if is_named(owner, name):
        owner.starts[name](p, generator)  # type: ignore[index, operator]
    elif isinstance(owner, nn.LayerNorm | nn.RMSNorm):
        p.fill_(1.0 if name == "weight" else 0.0)
    elif isinstance(owner, nn.Conv1d | nn.Conv2d) and name == "weight":
        fan_out = owner.out_channels // owner.groups * math.prod(owner.kernel_size)
        p.normal_(0.0, math.sqrt(2 / fan_out), generator=generator)
    elif isinstance(owner, Residual):
        p.fill_(owner.scale_start or 0.0)
    elif isinstance(owner, nn.Linear):
        linear(p, name, owner_name, owner, scheme, branches, generator)
    elif name == "bias" and p.dim() == 1:
        p.zero_()
    else:  # tables, class tokens, registers, feature vectors, an untied head
        table(p, scheme, generator)


def linear(
    p: Tensor,
    name: str,
    owner_name: str,
    owner: nn.Linear,
    scheme: Init,
    branches: int,
    generator: torch.Generator | None,
) -> None:
    fan_in, fan_out = owner.in_features, owner.out_features
    if scheme == "table":
        bound = fan_in**-0.5
        p.uniform_(-bound, bound, generator=generator)
    elif name == "bias":
        p.zero_()
    elif scheme == "xavier":
        bound = math.sqrt(6 / (fan_in + fan_out))
        p.uniform_(-bound, bound, generator=generator)
    elif scheme == "t5":
        p.normal_(0.0, fan_in**-0.5, generator=generator)
    else:
        scaled = scheme == "gpt2" and owner_name in AFTER_SUM and branches
        p.normal_(0.0, STD / math.sqrt(branches) if scaled else STD, generator=generator)


def table(p: Tensor, scheme: Init, generator: torch.Generator | None) -> None:
    width = p.shape[-1]
    if scheme == "table":
        p.uniform_(-(width**-0.5), width**-0.5, generator=generator)
    else:
        p.normal_(0.0, {"gpt2": STD, "bert": STD, "xavier": width**-0.5, "t5": 1.0}[scheme], generator=generator)


def query_sizes(module: nn.Module) -> dict[int, tuple[int, int, int]]:
    """(groups, query rows in each group, head channels) by id of every parameter that projects to queries."""
    found = {}
    for child in module.modules():
        if isinstance(child, AttentionModule):
            sizes = child.sizes
            found[id(child.qkv.weight)] = (sizes.groups, sizes.per_group * sizes.channels, sizes.channels)
        elif isinstance(child, CrossModule):
            found[id(child.q.weight)] = (1, child.q.out_features, child.sizes.channels)
    return found


def shrink_queries(weight: Tensor, groups: int, rows: int, channels: int) -> None:
    """T5 does not scale its scores by 1/sqrt(C); it scales the initial query weights instead."""
    weight.view(groups, -1, weight.shape[-1])[:, :rows] *= channels**-0.5
