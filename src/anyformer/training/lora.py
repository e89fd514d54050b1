"""LoRA: the pretrained weights are frozen, and each linear layer learns a low-rank update.

y = W x + (alpha / rank) B A x with A (rank, in), B (out, rank) (2106.09685). A layer that holds several projections,
such as queries, keys and values, has an A for each: an adapter can then be exported to formats that store them
separately, and `projections` can adapt only some of them.

With several processes: under fsdp adapters are sharded like all parameters. Under tensor they are replicated; each
process uses the rows of B or columns of A that belong to its part of the layer, and gradients are all-reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.checkpoints.adapters import Adapter
from anyformer.checkpoints.operations import GATE, KV, QKV
from anyformer.core.device_tables import Known, cached_table
from anyformer.core.linear import LinearLayer, is_plain_linear
from anyformer.core.own_init import Start, Starting, constant
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.feeds.mlp import MLPModule
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule
from anyformer.slots import Network
from anyformer.spec import Spec
from anyformer.training.distributed.parts import add_local, own_part, spread_like, whole
from anyformer.training.freezing import check_pattern, is_inside

WHERE = "training.lora"


class LoRA(Spec):
    """Adapters of rank `rank` for linear layers; apart from them only `trained` is trained. Needs a model to start
    from."""

    rank: int = 8
    """Rows of A and columns of B."""
    alpha: float = 16.0
    """Scale of the update: B A is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("*.blocks.*",)
    """Paths of the linear layers, or of modules that contain them; `*` matches anything."""
    projections: tuple[str, ...] | None = None
    """Which projections of those layers: q, k, v, gate, or a layer's own name, such as out; None: all."""
    dropout: float = 0.0
    """Dropout probability of the input of A."""
    trained: tuple[str, ...] | None = None
    """Paths of modules that are trained fully; newly initialised ones, such as a new head, if not given."""

    def check(self) -> None:
        check_at_least(WHERE, "rank", self.rank, 1, fix="use 8")
        if self.alpha <= 0:
            raise UserError(f"alpha {self.alpha} is not positive", where=WHERE, fix="use 16")
        check_fraction(WHERE, "dropout", self.dropout, fix="use 0.1")


class LoRALinear(LinearLayer, Starting):
    """A linear layer with an adapter. `slice_of` maps each output row to its adapted projection, -1 for rows without
    one."""

    def __init__(self, base: nn.Linear, slice_of: Tensor, lora: LoRA, generator: torch.Generator) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make another weight
        self.plain = type(base)  # the class restored when the adapter is removed
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = lora.alpha / lora.rank, lora.dropout
        self.count, self.rank = int(slice_of.max()) + 1, lora.rank
        self.rows = (slice_of >= 0).nonzero()[:, 0]  # those with an adapter
        self.projections = slice_of[self.rows]
        # A model that is built on meta and filled later draws these values again, not those of the model's init.
        self.starts: dict[str, Start] = {
            "lora_A": partial(draw_down, state=generator.get_state()), "lora_B": constant(0.0)
        }  # fmt: skip
        self.lora_A = nn.Parameter(base.weight.new_empty(self.count * lora.rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(len(self.rows), lora.rank))
        with torch.no_grad():
            self.lora_A.copy_(drawn(self.lora_A.shape, generator))
        # No buffers: a plain layer has none.
        self.known_own: Known = {}
        self.known_rows: Known = {}

    def forward(self, input: Tensor) -> Tensor:
        return add_local(super().forward(input), input, self.adapt)

    def adapt(self, input: Tensor) -> Tensor:
        """The adapter's update, for the inputs or outputs that this process holds."""
        a, b = own_part(self.lora_A, self.weight, 1), own_part(self.wide(self.lora_B), self.weight, 0)
        return self.scale * F.linear(F.linear(F.dropout(input, self.dropout, self.training), a), b)

    def wide(self, b: Tensor) -> Tensor:
        """Block-sparse B, zero for the A's of other projections: (rows, rank) to (out, count * rank)."""
        if self.count > 1:  # each row reads the A of its own projection only
            own = cached_table(self.known_own, b.dtype, b.device, lambda: self.own_columns().to(b.dtype))
            b = b.repeat(1, self.count) * own
        if len(self.rows) == self.out_features:
            return b
        rows = cached_table(self.known_rows, self.rows.dtype, b.device, lambda: self.rows)
        return all_rows(b, rows, self.out_features)

    def own_columns(self) -> Tensor:
        """Which columns of a wide B are of each row's own projection, (rows, count * rank) of 0 and 1."""
        return F.one_hot(self.projections, self.count).repeat_interleave(self.rank, 1)

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The weight with the adapter merged."""
        return weight + spread_like(self.scale * (self.wide(whole(b)) @ whole(a)), weight)


def drawn(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Initial values of an A."""
    return nn.init.kaiming_uniform_(torch.empty(shape), a=math.sqrt(5), generator=generator)


def draw_down(p: Tensor, generator: torch.Generator | None, *, state: Tensor) -> Tensor:
    """Fill an A with the numbers that a generator in this state draws."""
    return p.copy_(drawn(p.shape, torch.Generator().set_state(state)))


def all_rows(b: Tensor, rows: Tensor, count: int) -> Tensor:
    """Scatter rows of B (rows, n) into (count, n), zeros elsewhere."""
    return b.new_zeros(count, b.shape[1]).index_copy(0, rows, b)


def rows_by_projection(owner: nn.Module, name: str, linear: nn.Linear) -> dict[str, Tensor]:
    """Output rows of each projection in a linear layer; a layer that is a single projection goes by its own name."""
    rows = torch.arange(linear.out_features)
    if isinstance(owner, AttentionModule) and name == "qkv":
        return dict(zip("qkv", QKV.push(rows, owner), strict=True))
    if isinstance(owner, CrossModule) and name == "kv":
        return dict(zip("kv", KV.push(rows, owner), strict=True))
    if isinstance(owner, MLPModule) and name == "up" and owner.spec.gated:
        return dict(zip(("gate", "up"), GATE.push(rows, owner), strict=True))
    return {name: rows}


def slices_of(owner: nn.Module, name: str, linear: nn.Linear, lora: LoRA) -> Tensor:
    """Index of the adapted projection of each output row, (out,) from 0; -1 for rows without an adapter."""
    found = torch.full((linear.out_features,), -1)
    chosen = [rows for projection, rows in rows_by_projection(owner, name, linear).items()
              if lora.projections is None or projection in lora.projections]  # fmt: skip
    for number, rows in enumerate(chosen):
        found[rows] = number
    return found


def add_adapters(model: nn.Module, lora: LoRA | None, seed: int) -> None:
    """Freeze the model and add adapters to its linear layers; a seed makes their weights repeatable."""
    if lora is None:
        return
    linear = {path: module for path, module in model.named_modules() if is_plain_linear(module)}
    for pattern in lora.targets:
        check_pattern(pattern, [f"{path}.weight" for path in linear], f"{WHERE}.targets", "no linear layer is at")
    names = [name for name, _ in model.named_parameters()]
    for pattern in lora.trained or ():
        check_pattern(pattern, names, f"{WHERE}.trained")
    for name, parameter in model.named_parameters():
        if not is_inside(name, lora.trained or ()):
            parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    inside = {path: module for path, module in linear.items() if is_inside(path, lora.targets)}
    check_projections(model, inside, lora)
    for path, module in inside.items():
        above, _, name = path.rpartition(".")
        owner = model.get_submodule(above)
        slice_of = slices_of(owner, name, module, lora)
        if not is_inside(path, lora.trained or ()) and bool((slice_of >= 0).any()):
            setattr(owner, name, LoRALinear(module, slice_of, lora, generator))


def check_projections(model: nn.Module, inside: Mapping[str, nn.Linear], lora: LoRA) -> None:
    """Reject a projection that no target layer has."""
    there: dict[str, None] = {}
    for path, module in inside.items():
        above, _, name = path.rpartition(".")
        there |= dict.fromkeys(rows_by_projection(model.get_submodule(above), name, module))
    for name in lora.projections or ():
        if name not in there:
            raise UserError(f"no layer of the targets has a projection {name!r}", where=f"{WHERE}.projections",
                            fix=f"use {', '.join(there)}")  # fmt: skip


def remove_adapters(model: nn.Module) -> None:
    """Restore plain linear layers with the original weights; the adapters themselves are in the checkpoints."""
    for path, module in adapted_layers(model):
        above, _, name = path.rpartition(".")
        plain = module.plain(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        plain.weight, plain.bias = module.weight, module.bias
        setattr(model.get_submodule(above), name, plain)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """Every layer with an adapter, by its path."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, LoRALinear)]
    return iter(found)


def adapter_names(model: nn.Module) -> list[str]:
    """Names of the adapter parameters."""
    return [f"{path}.{name}" for path, _ in adapted_layers(model) for name in ("lora_A", "lora_B")]


def low_rank_adapters(spec: Network, lora: LoRA, held: Mapping[str, Tensor]) -> dict[str, Adapter]:
    """Adapters by layer path, from a checkpoint's adapter tensors."""
    model, found = spec.build(device="meta"), {}
    for name in held:
        path, _, letter = name.rpartition(".lora_")
        if letter == "A":
            above, _, last = path.rpartition(".")
            linear = model.get_submodule(path)
            assert isinstance(linear, nn.Linear)
            slice_of, b = slices_of(model.get_submodule(above), last, linear, lora), held[f"{path}.lora_B"]
            rows = (slice_of >= 0).nonzero()[:, 0]
            b = all_rows(b, rows.to(b.device), len(slice_of))
            found[path] = Adapter(held[name], b, slice_of, lora.alpha / lora.rank)
    return found


def merge(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge the adapters in `weights` into the weights of the equivalent plain network."""
    plain = dict(weights)
    for path, layer in adapted_layers(model):
        a, b = plain.pop(f"{path}.lora_A"), plain.pop(f"{path}.lora_B")
        plain[f"{path}.weight"] = layer.merged(plain[f"{path}.weight"], a, b)
    return plain
