"""LoRA: the trained weights stay as they are, and each linear layer learns a product of two thin matrices beside them.

y = W x + (alpha / rank) B A x with A (rank, in), B (out, rank) (2106.09685). A layer that holds several projections,
such as queries, keys and values, has an A for each: an adapter can then be written for who keeps them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.checkpoints.adapters import Adapter
from anyformer.checkpoints.operations import GATE, KV, QKV
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.feeds.mlp import MLPModule
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule
from anyformer.slots import Network
from anyformer.spec import Spec
from anyformer.training.freezing import check_pattern, is_inside

WHERE = "training.lora"


class LoRA(Spec):
    """Adapters of rank `rank` for linear layers; beside them only `trained` learns. It needs a model to start from."""

    rank: int = 8
    """Rows of A and columns of B."""
    alpha: float = 16.0
    """What B A is multiplied by, times `rank`."""
    targets: tuple[str, ...] = ("*.blocks.*",)
    """Paths of the linear layers, or of modules that they are in; `*` stands for anything."""
    dropout: float = 0.0
    """Dropout probability of what A reads."""
    trained: tuple[str, ...] | None = None
    """Paths of modules that learn whole; what starts anew, such as another head, if not given."""

    def check(self) -> None:
        check_at_least(WHERE, "rank", self.rank, 1, fix="use 8")
        if self.alpha <= 0:
            raise UserError(f"alpha {self.alpha} is not positive", where=WHERE, fix="use 16")
        check_fraction(WHERE, "dropout", self.dropout, fix="use 0.1")


class LoRALinear(nn.Linear):
    """A linear layer with an adapter beside its weight. `slice_of` says which projection each of its rows is of."""

    def __init__(self, base: nn.Linear, slice_of: Tensor, lora: LoRA, generator: torch.Generator) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make another weight
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = lora.alpha / lora.rank, lora.dropout
        count, weight = int(slice_of.max()) + 1, base.weight
        down = torch.empty(count * lora.rank, base.in_features)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.lora_A = nn.Parameter(down.to(weight))
        self.lora_B = nn.Parameter(weight.new_zeros(base.out_features, lora.rank))
        # Each row reads the A of its own projection only. No buffer: a plain layer has none.
        own = F.one_hot(slice_of, count).repeat_interleave(lora.rank, 1)  # (out, count * rank)
        self.own = own.to(weight) if count > 1 else None

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(F.dropout(input, self.dropout, self.training), self.lora_A)
        return super().forward(input) + self.scale * F.linear(low, self.wide(self.lora_B))

    def wide(self, b: Tensor) -> Tensor:
        """B with zeros for the A's of other projections, (out, rank) to (out, count * rank)."""
        return b if self.own is None else b.repeat(1, self.own.shape[1] // b.shape[1]) * self.own

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The weight of a plain layer that computes the same."""
        return weight + self.scale * (self.wide(b) @ a)


def slices_of(owner: nn.Module, name: str, linear: nn.Linear) -> Tensor:
    """Which projection each row of a linear layer belongs to, (out,); 0 for all where it is one."""
    rows = torch.arange(linear.out_features)
    if isinstance(owner, AttentionModule) and name == "qkv":
        parts = QKV.push(rows, owner)
    elif isinstance(owner, CrossModule) and name == "kv":
        parts = KV.push(rows, owner)
    elif isinstance(owner, MLPModule) and name == "up" and owner.spec.gated:
        parts = GATE.push(rows, owner)
    else:
        parts = [rows]
    found = torch.empty_like(rows)
    for number, part in enumerate(parts):
        found[part] = number
    return found


def add_adapters(model: nn.Module, lora: LoRA | None, seed: int) -> None:
    """Freeze the model and put adapters beside its linear layers; the same numbers for the same seed."""
    if lora is None:
        return
    linear = {path: module for path, module in model.named_modules() if type(module) is nn.Linear}
    for pattern in lora.targets:
        check_pattern(pattern, [f"{path}.weight" for path in linear], f"{WHERE}.targets", "no linear layer is at")
    names = [name for name, _ in model.named_parameters()]
    for pattern in lora.trained or ():
        check_pattern(pattern, names, f"{WHERE}.trained")
    for name, parameter in model.named_parameters():
        if not is_inside(name, lora.trained or ()):
            parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for path, module in linear.items():
        if is_inside(path, lora.targets) and not is_inside(path, lora.trained or ()):
            above, _, name = path.rpartition(".")
            owner = model.get_submodule(above)
            setattr(owner, name, LoRALinear(module, slices_of(owner, name, module), lora, generator))


def remove_adapters(model: nn.Module) -> None:
    """Plain linear layers again, with the weights from before; what adapters learned is in the checkpoints."""
    for path, module in adapted_layers(model):
        above, _, name = path.rpartition(".")
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        plain.weight, plain.bias = module.weight, module.bias
        setattr(model.get_submodule(above), name, plain)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """Every layer with an adapter, by its path."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, LoRALinear)]
    return iter(found)


def adapter_names(model: nn.Module) -> list[str]:
    """The parameters of adapters, by name."""
    return [f"{path}.{name}" for path, _ in adapted_layers(model) for name in ("lora_A", "lora_B")]


def low_rank_adapters(spec: Network, lora: LoRA, held: Mapping[str, Tensor]) -> dict[str, Adapter]:
    """Adapters by the paths of their layers, from the tensors that a checkpoint holds by name."""
    model, found = spec.build(device="meta"), {}
    for name in held:
        path, _, letter = name.rpartition(".lora_")
        if letter == "A":
            above, _, last = path.rpartition(".")
            linear = model.get_submodule(path)
            assert isinstance(linear, nn.Linear)
            slice_of = slices_of(model.get_submodule(above), last, linear)
            found[path] = Adapter(held[name], held[f"{path}.lora_B"], slice_of, lora.alpha / lora.rank)
    return found


def merge(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the plain network that computes what `weights`, adapters included, make this model compute."""
    plain = dict(weights)
    for path, layer in adapted_layers(model):
        a, b = plain.pop(f"{path}.lora_A"), plain.pop(f"{path}.lora_B")
        plain[f"{path}.weight"] = layer.merged(plain[f"{path}.weight"], a, b)
    return plain
