"""Adapter folders in peft's format: adapter_config.json and adapter_model.safetensors for a base model.

Names are those of the network's Hugging Face family. One linear layer here may correspond to several modules there
(queries, keys and values): an adapter is written for each of those modules, with its rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.checkpoints import names, tensors
from anyformer.checkpoints.folder import Opened, as_family, check_counts, refused_sizes
from anyformer.checkpoints.operations import Transpose, TransposedThirds
from anyformer.errors import UserError
from anyformer.families.family import Family
from anyformer.safe_files import inside, read_json, read_text
from anyformer.slots import Network
from anyformer.spec import Spec

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
NETWORK_FILE = "adapter_network.json"  # our addition: the adapted network, whose head the base may lack
ABOVE = "base_model.model."  # peft's prefix of every name
OTHER = "give the model that the adapter was trained on"
REFUSED = ("use_dora", "layer_replication", "target_parameters", "trainable_token_indices")


@dataclass(frozen=True)
class Adapter:
    """The adapter of one linear layer: W + scale B A, with a separate A for each slice of the rows."""

    a: Tensor  # (slices * rank, in)
    b: Tensor  # (out, rank)
    slice_of: Tensor  # (out,): the slice of each row, -1 if it has no adapter
    scale: float

    @property
    def rank(self) -> int:
        return self.b.shape[1]

    def of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """A and B for a subset of rows; rows of several slices need their ranks combined. None without an adapter."""
        slices = self.slice_of[rows].unique()
        slices = slices[slices >= 0]
        if not len(slices):
            return None
        a = torch.cat([self.a[number * self.rank : (number + 1) * self.rank] for number in slices.tolist()])
        own = (self.slice_of[rows][:, None] == slices).repeat_interleave(self.rank, 1)  # (rows, slices * rank)
        return a, self.b[rows].repeat(1, len(slices)) * own


@dataclass(frozen=True)
class NamedModule:
    """A module in the family's code that holds rows of one of our linear layers."""

    name: str
    rows: Tensor
    transposed: bool


def family_of(spec: Network, model_type: str) -> tuple[Family, str] | None:
    """The family and head kind of a network, preferring `model_type`; None if no family can express it."""
    try:
        family, head, _ = as_family(spec, {"model_type": model_type})
    except UserError:
        return None
    return family, head


def pairs_of(spec: Network, model_type: str) -> list[names.NamePair]:
    """Every parameter of a network with its names in an adapter folder: its family's, or ours without a family."""
    model, found = spec.build(device="meta"), family_of(spec, model_type)
    if found is None:
        return names.pair_up(model, tuple(names.Row(name, name) for name, _ in model.named_parameters()))
    family, head = found
    pairs = names.pair_up(model, family.table(spec, head))
    return [replace(pair, theirs=tuple(map(family.module_name, pair.theirs))) for pair in pairs]


def modules_of(pair: names.NamePair, rows: int) -> Iterator[NamedModule]:
    """The family's modules that make up one of our weights. Operations move the rows of a bias like those of a
    weight."""
    parts = pair.operation.push(torch.arange(rows), pair.owner)
    transposed = isinstance(pair.operation, Transpose | TransposedThirds)
    for name, part in zip(pair.theirs, parts, strict=True):
        yield NamedModule(name.removesuffix(".weight"), part, transposed)


# ---------------------------------------------------------------- writing


def write_adapter(
    folder: Path, spec: Network, adapters: Mapping[str, Adapter], whole: Mapping[str, Tensor], *,
    base: str, model_type: str = "", dropout: float = 0.0,
) -> None:  # fmt: skip
    """Write adapters by the paths of their linear layers, and fully trained parameters (`whole`) by name.

    `base` is the folder of the adapted model, `model_type` its family, if any.
    """
    pairs = {pair.ours: pair for pair in pairs_of(spec, model_type)}
    held: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    transposed = False
    for path, adapter in adapters.items():
        for module in modules_of(pairs[f"{path}.weight"], len(adapter.slice_of)):
            found = adapter.of_rows(module.rows.to(adapter.b.device))
            if found is None:
                continue
            a, b = found
            held[f"{ABOVE}{module.name}.lora_A.weight"], held[f"{ABOVE}{module.name}.lora_B.weight"] = a, b
            ranks[module.name], alphas[module.name] = len(a), adapter.scale * len(a)
            transposed = transposed or module.transposed
    saved = []
    for name, value in whole.items():
        pair = pairs[name]
        parts = pair.operation.push(value, pair.owner)
        held |= {f"{ABOVE}{theirs}": part for theirs, part in zip(pair.theirs, parts, strict=True)}
        saved += [theirs.rpartition(".")[0] for theirs in pair.theirs]
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    config = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": base, "inference_mode": True, "bias": "none",
        "r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "target_modules": sorted(ranks),
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "modules_to_save": sorted(set(saved)) or None, "fan_in_fan_out": transposed,
    }  # fmt: skip
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    spec.save(folder / NETWORK_FILE)
    tensors.write(folder / WEIGHTS_FILE, held)


# ---------------------------------------------------------------- reading


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a model."""
    return inside(folder, CONFIG_FILE).is_file()


def base_of(folder: Path) -> Path:
    """The folder of an adapter's base model, which may be another adapter."""
    base = named_base(folder)
    if base is None or not base.is_dir():
        raise UserError(f"the model it was trained on ({base}) is not there", where=f"{folder.name}/{CONFIG_FILE}",
                        fix="give its folder: load(BASE, adapter=FOLDER)")  # fmt: skip
    seen: set[Path] = {folder.resolve()}
    below: Path | None = base
    while below is not None and below.is_dir() and is_adapter(below):
        if below.resolve() in seen:
            raise UserError("the adapter is its own base", where=f"{folder.name}/{CONFIG_FILE}", fix="name a model")
        seen.add(below.resolve())
        below = named_base(below)
    return base


def named_base(folder: Path) -> Path | None:
    """The base that an adapter names; relative to its folder."""
    base = read_json(inside(folder, CONFIG_FILE)).get("base_model_name_or_path")
    return folder / base if isinstance(base, str) and base and "\0" not in base else None


def network_of(folder: Path, tensors_held: int) -> Network | None:
    """The adapted network, if the folder was written here; its size is checked against the number of tensors."""
    path = inside(folder, NETWORK_FILE)
    if not path.is_file():
        return None
    check_counts(read_json(path), tensors_held, NETWORK_FILE)
    with refused_sizes():
        spec = Spec.from_json(read_text(path))
    if not isinstance(spec, Network):
        raise UserError(f"{type(spec).__name__} is a part, not a whole model", where=NETWORK_FILE, fix="save it again")
    return spec


def open_adapted(base: Opened, folder: Path) -> Opened:
    """A base model with a folder's adapter merged; the head is that of the adapter's network."""
    trained = dict(base.model.named_parameters())
    spec = network_of(folder, 2 * len(trained)) or base.spec
    adapter = AdapterFile.open(folder, spec, "" if base.family is None else base.family.model_type)
    if spec == base.spec:
        adapter.merge_into(base.model)
        return base
    with refused_sizes():
        shapes = {name: p.shape for name, p in spec.build(device="meta").named_parameters()}
    shared = [name for name, shape in shapes.items() if name in trained and trained[name].shape == shape]
    lost = [name for name in shapes if name not in shared and name not in adapter.whole]
    if lost:
        raise UserError(f"the model has no {lost[0]} of shape {tuple(shapes[lost[0]])}", where=folder.name, fix=OTHER)
    like = next(iter(trained.values()))
    model = spec.build(seed=0, device=like.device, dtype=like.dtype).eval()
    with torch.no_grad():
        for name in shared:
            model.get_parameter(name).copy_(trained[name])
    adapter.merge_into(model)
    return Opened(spec, model, dtype=base.dtype)


@dataclass(frozen=True)
class AdapterFile:
    """The tensors of an adapter folder, by the names in a network's pairs."""

    folder: Path
    config: Mapping[str, Any]
    entries: Mapping[str, tensors.Entry]
    pairs: Sequence[names.NamePair]

    @classmethod
    def open(cls, folder: Path, spec: Network, model_type: str) -> AdapterFile:
        """Open an adapter for a network; `model_type` is the family of its base, if any."""
        config, path = checked_config(folder), inside(folder, WEIGHTS_FILE)
        if not path.is_file():
            raise UserError(f"{WEIGHTS_FILE} is not there", where=folder.name, fix="save the adapter as safetensors")
        found = family_of(spec, model_type)
        spelled = str if found is None else found[0].module_name  # older versions used the names in the files
        held = {spelled(name.removeprefix(ABOVE)): entry for name, entry in tensors.read_header(path).items()}
        return cls(folder, config, held, pairs_of(spec, model_type))

    @property
    def whole(self) -> set[str]:
        """Our names of the fully trained parameters."""
        return {pair.ours for pair in self.pairs if all(name in self.entries for name in pair.theirs)}

    def merge_into(self, model: nn.Module) -> None:
        """Merge the adapters into the model's weights, and copy fully trained parameters."""
        parameters, used, whole = dict(model.named_parameters()), set[str](), self.whole
        with torch.no_grad():
            for pair in self.pairs:
                parameter = parameters[pair.ours]
                if pair.ours in whole:
                    made = pair.operation.pull([self.entries[name].read() for name in pair.theirs], pair.owner)
                    parameter.copy_(fitting(made, parameter, pair.ours, self.folder))
                    used |= set(pair.theirs)
                elif pair.ours.endswith(".weight") and parameter.dim() == 2:
                    change = change_of(pair, parameter, self.entries, self.config, used)
                    if change is not None:
                        parameter.add_(change.to(parameter))
        left = sorted(set(self.entries) - used)
        if left:
            what = f"{left[0]} belongs to no layer of the model"
            raise UserError(what, where=self.folder.name, fix=OTHER, details=left[:20])


def fitting(made: Tensor, parameter: Tensor, name: str, folder: Path) -> Tensor:
    """A tensor to copy into a parameter, with its shape checked."""
    if made.shape != parameter.shape:
        raise UserError(f"{name} has shape {tuple(parameter.shape)}, the adapter {tuple(made.shape)}",
                        where=folder.name, fix=OTHER)  # fmt: skip
    return made.to(parameter)


def change_of(
    pair: names.NamePair, parameter: Tensor, entries: Mapping[str, tensors.Entry], config: Mapping[str, Any],
    used: set[str],
) -> Tensor | None:  # fmt: skip
    """The update of one of our weights from its modules' adapters; None if there are none."""
    found, parts = False, []
    for module in modules_of(pair, parameter.shape[0]):
        a, b = (f"{module.name}.lora_{letter}.weight" for letter in "AB")
        part = torch.zeros(len(module.rows), parameter.shape[1])
        if a in entries and b in entries:
            rank = entries[a].shape[0] if entries[a].shape else 0
            wanted = ((rank, parameter.shape[1]), (len(module.rows), rank))
            if rank < 1 or (entries[a].shape, entries[b].shape) != wanted:
                raise UserError(f"{module.name} has adapters of {entries[a].shape} and {entries[b].shape}",
                                where=WEIGHTS_FILE, fix=f"expected {wanted[0]} and {wanted[1]}")  # fmt: skip
            product = entries[b].read().float() @ entries[a].read().float()
            part, found = scale_of(module.name, rank, config) * product, True
            used |= {a, b}
        parts.append(part.T if module.transposed else part)
    return pair.operation.pull(parts, pair.owner) if found else None


def scale_of(name: str, rank: int, config: Mapping[str, Any]) -> float:
    """The scale of one module's adapter."""
    patterns = config.get("alpha_pattern")
    own = patterns if isinstance(patterns, dict) else {}
    alpha = next((value for key, value in own.items() if name == key or name.endswith(f".{key}")),
                 config.get("lora_alpha", rank))  # fmt: skip
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise UserError(f"lora_alpha {str(alpha)[:40]!r} is not a number", where=CONFIG_FILE, fix="write one")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def checked_config(folder: Path) -> dict[str, Any]:
    """The config of an adapter folder; unsupported kinds of adapters are rejected."""
    config: dict[str, Any] = read_json(inside(folder, CONFIG_FILE))
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UserError(f"an adapter of type {kind!r} is not implemented", where=CONFIG_FILE, fix="only LORA is read")
    for name in REFUSED:
        if config.get(name):
            raise UserError(f"{name} is not implemented", where=CONFIG_FILE, fix="merge it with peft first")
    if config.get("bias", "none") != "none":
        raise UserError(f"trained biases ({config['bias']!r}) are not implemented", where=CONFIG_FILE,
                        fix="merge it with peft first")  # fmt: skip
    return config
