"""Model folders: our own (anyformer.json + model.safetensors) and Hugging Face's (config.json + safetensors)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from anyformer.checkpoints import names, tensors
from anyformer.checkpoints.target import check_target
from anyformer.core.building import check_buffers, with_memory
from anyformer.errors import UserError, did_you_mean
from anyformer.families import FAMILIES
from anyformer.families.config import ACTS, IRRELEVANT, LAYERS, FamilyConfig
from anyformer.families.family import BARE, BODY, REPLACED, Family
from anyformer.families.timm_vit import MODEL_TYPE as TIMM
from anyformer.kernels.quantise import check_whole
from anyformer.safe_files import inside, read_json, read_text, short
from anyformer.slots import Network
from anyformer.spec import Spec

log = logging.getLogger("anyformer")
SPEC_FILE, CONFIG_FILE = "anyformer.json", "config.json"
WAYS = "use --to anyformer, or train with a preset of a family, such as gpt2 or bert-base"
SHARD_BYTES = 5 * 10**9  # as in other libraries


@dataclass
class Opened:
    """A model opened from a folder."""

    spec: Network
    model: Any
    family: Family | None = None  # None for our own folders
    head: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)  # unknown options of config.json
    dtype: torch.dtype = torch.float32  # on disk
    folder: Path | None = None  # where it was opened from; None: built in Python

    @property
    def labels(self) -> list[str] | None:
        """Class names, if the folder has them."""
        named, listed = self.config.get("id2label"), self.config.get("label_names")  # the second is timm's
        if not isinstance(named, dict):
            return [str(name) for name in listed] if isinstance(listed, list) else None
        if not all(key.isdecimal() for key in named):
            raise UserError(
                "id2label has keys that are not numbers", where=CONFIG_FILE, fix='expected {"0": "name", ...}'
            )
        return [str(named[key]) for key in sorted(named, key=int)]


def open_folder(
    folder: str | Path, *, head: str | None = None, device: Any = "cpu", dtype: torch.dtype | None = None
) -> Opened:
    """Open the model of a folder; weights are checked by name, shape and type and copied to the given device and dtype.

    `head` opens a Hugging Face folder with another head than its config names ("bare": no head).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            "no such folder", where=str(folder), fix="give the path of a model folder; nothing is downloaded"
        )
    if (folder / SPEC_FILE).is_file():
        return replace(open_own(folder, device, dtype), folder=folder)
    if (folder / CONFIG_FILE).is_file():
        return replace(open_foreign(folder, head, device, dtype), folder=folder)
    raise UserError(
        f"neither {SPEC_FILE} nor {CONFIG_FILE} is in the folder",
        where=folder.name or str(folder),
        fix="give a model folder",
    )


def open_own(folder: Path, device: Any, dtype: torch.dtype | None) -> Opened:
    path = inside(folder, SPEC_FILE)
    entries = tensors.read_folder(folder)
    check_counts(read_json(path), len(entries), SPEC_FILE)
    try:
        with refused_sizes():
            spec = Spec.from_json(read_text(path))
    except UserError as error:
        raise error.inside(SPEC_FILE) from None
    if not isinstance(spec, Network):
        raise UserError(
            f"{type(spec).__name__} is a part, not a whole model", where=SPEC_FILE, fix="save a Model or Seq2Seq"
        )
    model = without_memory(spec, dtype or common_dtype(entries), entries, folder)
    table = tuple(names.Row(name, name) for name, _ in model.named_parameters())
    names.check(model, table, entries, where=folder.name)
    model = with_memory(spec, model, device, next(model.parameters()).dtype).eval()
    names.fill(model, table, entries)
    return Opened(spec, model, dtype=common_dtype(entries))


def open_foreign(folder: Path, head: str | None, device: Any, dtype: torch.dtype | None) -> Opened:
    config = read_json(inside(folder, CONFIG_FILE))
    family = family_of(config)
    head = head or head_of(config, family)
    if head not in family.kinds:
        raise UserError(f"{family.model_type} has no head {head!r}", fix=did_you_mean(head, family.kinds))
    entries = tensors.read_folder(folder)
    reader = FamilyConfig(config, tensors=entries)
    with refused_sizes():
        spec = family.settings(reader, head)
        if head == BARE and family.pooled and not has_head(family, spec, entries):
            log.info("%s: there is no pooler in the file; opened without one", folder.name)
            head = BODY
            spec = family.settings(reader, head)
    unread = reader.unread()
    for name in unread:
        log.warning("%s: option %r is not known and was left alone", folder.name, name)
    model = without_memory(spec, dtype or common_dtype(entries), entries, folder)
    table = family.table(spec, head)
    wanted = {name for pair in names.pair_up(model, table) for name in pair.theirs}
    entries, foreign = under_prefix(entries, wanted, family, head)
    spare = family.spare.get(head, ()) if isinstance(family.spare, Mapping) else family.spare
    harmless = [re.compile(pattern) for pattern in (*family.buffers, *spare)]
    check_static(entries, family, lambda: family.static(spec, BARE, config))
    copies = family.tied(spec, head)
    if isinstance(copies, Mapping):
        entries = from_copies(entries, wanted, copies)
    tied = set(copies) | foreign
    names.check(model, table, entries, where=folder.name,
                ignore=lambda name: name in tied or any(p.fullmatch(name) for p in harmless))  # fmt: skip
    model = with_memory(spec, model, device, next(model.parameters()).dtype).eval()
    names.fill(model, table, entries)
    said = {**config, "model_type": family.model_type}  # timm's folders do not have it, and are exported unchanged
    return Opened(spec, model, family, head, said, unread, common_dtype(entries))


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config.json; timm's configs have an architecture instead of a model_type."""
    kind = config.get("model_type")
    if kind is None and isinstance(config.get("architecture"), str):
        kind = TIMM
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"model_type {kind!r} is not a known family", where=CONFIG_FILE, fix=did_you_mean(str(kind), FAMILIES)
        )
    if config.get("quantization_config"):
        raise UserError(
            "the weights are quantised, which is not implemented",
            where=CONFIG_FILE,
            fix="use the full-precision folder",
        )
    if config.get("pruned_heads"):
        raise UserError("pruned_heads is not implemented", where=CONFIG_FILE, fix="use the unpruned folder")
    return FAMILIES[kind]


def head_of(config: Mapping[str, Any], family: Family) -> str:
    """The kind of head in a config.json; without one, the bare model, or the family's first head."""
    if not config.get("architectures") and family.head_without_a_name is not None:
        return family.head_without_a_name(config)
    found = config.get("architectures") or [
        family.architecture(BARE) if BARE in family.kinds else next(iter(family.heads))
    ]
    named = found[0] if isinstance(found, list) and isinstance(found[0], str) else None
    if named is None:
        raise UserError(
            f"architectures is {str(found)[:60]}", where=CONFIG_FILE, fix="expected a list with one class name"
        )
    if named not in family.heads:
        near = did_you_mean(named, family.heads)
        raise UserError(
            f"architecture {named!r} is not implemented", where=CONFIG_FILE, fix=f"{near} Or use head='bare'"
        )
    return family.heads[named]


def has_head(family: Family, spec: Network, entries: Mapping[str, tensors.Entry]) -> bool:
    """Whether the file has any tensor of the head."""
    starts = tuple(f"{name}." for row in family.table(spec, BARE) if row.ours.startswith("head.") for name in row.names)
    return any(name.removeprefix(family.prefix).startswith(starts) for name in entries)


def from_copies(
    entries: dict[str, tensors.Entry], wanted: set[str], copies: Mapping[str, str]
) -> dict[str, tensors.Entry]:
    """A tied tensor may be in the file under its second name only; if under both, they must be equal."""
    found = dict(entries)
    for copy, original in copies.items():
        if copy in wanted or copy not in entries or original not in wanted:
            continue
        if original not in entries:
            found[original] = found.pop(copy)
        elif not torch.equal(entries[copy].read(), entries[original].read()):
            raise UserError(f"{copy} differs from {original}, to which the settings tie it", where=CONFIG_FILE,
                            fix="set tie_word_embeddings to false there")  # fmt: skip
    return found


def check_static(
    entries: Mapping[str, tensors.Entry], family: Family, compute: Callable[[], Mapping[str, torch.Tensor]]
) -> None:
    """Tensors in the file that our model computes must equal the computed values, up to their dtype's precision."""
    with torch.device("meta"):  # check shapes first: a malicious size must not cost more memory than the file
        shapes = {name: tuple(tensor.shape) for name, tensor in compute().items()}
    held = {
        short: (name, entry) for name, entry in entries.items() if (short := name.removeprefix(family.prefix)) in shapes
    }
    fitting = all(entry.shape == shapes[short] for short, (_, entry) in held.items())
    expected = compute() if held and fitting else {}
    for short, (name, entry) in held.items():
        near = 1e-5 if entry.dtype.itemsize >= 4 else 1e-2
        if not fitting or not torch.allclose(entry.read().float(), expected[short].float(), rtol=0, atol=near):
            raise UserError(f"{name} does not hold the values that {family.model_type} computes", where=CONFIG_FILE,
                            fix="this is another model; trained values there are not implemented")  # fmt: skip


def under_prefix(
    entries: dict[str, tensors.Entry], wanted: set[str], family: Family, head: str
) -> tuple[dict[str, tensors.Entry], set[str]]:
    """Entries renamed to the table's names, and names that belong to another head.

    Files of models with a head have the body under a prefix, files of bare models do not; both open as either.
    """
    renamed = {}
    for spelled, entry in entries.items():
        name = family.respelled(spelled)
        stem, _, last = name.rpartition(".")
        renamed[f"{stem}.{family.renamed[last]}" if family.renamed and last in family.renamed else name] = entry
    prefix = family.prefix
    headed = bool(prefix) and any(name.startswith(prefix) for name in renamed)
    if not prefix or headed == (head not in (BARE, BODY)):
        return renamed, set()
    if headed:
        body = {name.removeprefix(prefix): entry for name, entry in renamed.items() if name.startswith(prefix)}
        return body, set()
    return {prefix + name if prefix + name in wanted else name: entry for name, entry in renamed.items()}, set()


def bounded(model: nn.Module, entries: Mapping[str, tensors.Entry], folder: Path) -> None:
    """Reject settings that need far more memory than the weights in the files."""
    held = sum(entry.stop - entry.start for entry in entries.values())
    asked = sum(parameter.numel() for parameter in model.parameters())
    if asked > 64 + 4 * held:
        raise UserError(f"the settings ask for {asked:,} parameters, the files hold {held:,} bytes", where=folder.name,
                        fix="the folder's parts do not belong together")  # fmt: skip


def common_dtype(entries: Mapping[str, tensors.Entry]) -> torch.dtype:
    """The dtype of most weight bytes on disk."""
    bytes_of: dict[torch.dtype, int] = {}
    for entry in entries.values():
        if entry.dtype.is_floating_point:
            bytes_of[entry.dtype] = bytes_of.get(entry.dtype, 0) + entry.stop - entry.start
    return max(bytes_of, key=lambda kind: bytes_of[kind]) if bytes_of else torch.float32


def without_memory(spec: Network, dtype: torch.dtype, entries: Mapping[str, tensors.Entry], folder: Path) -> nn.Module:
    """The network on `meta`, to compare names and shapes with the files before anything is allocated."""
    with refused_sizes():
        model = spec.build(device="meta", dtype=dtype)
    bounded(model, entries, folder)
    return model.eval()


@contextmanager
def refused_sizes() -> Iterator[None]:
    """Turn sizes that overflow in torch (beyond 64 bits) into a user error about the folder."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(f"the settings ask for sizes that no machine has ({short(error)})",
                        fix="the folder's parts do not belong together") from None  # fmt: skip


# Fields of saved specs that determine the number of modules: of any part, and of specific ones.
LARGEST_SIZE = 2**31 - 1
MODULE_COUNTS = ("depth", "depths", "filter_depth")
MODULE_COUNTS_OF = {"Experts": "count", "Hyena": "order"}


def check_counts(tree: Any, tensors_held: int, where: str) -> None:
    """Reject a saved spec with more modules than the files have tensors, before building any.

    Numbers beyond 32 bits are rejected, too: no model size is that large, and torch would fail on them.
    """
    for part in parts_in(tree):
        for name, value in part.items():
            if is_count(value) and abs(value) > LARGEST_SIZE:
                raise UserError(f"{name} is {value}", where=where, fix=f"expected a number up to {LARGEST_SIZE}")
        kind = str(part.get("type"))
        for name in (*MODULE_COUNTS, MODULE_COUNTS_OF.get(kind, "")):
            value = part.get(name)
            counts: list[Any] = value if isinstance(value, list) else [value]
            if name == "depth" and part.get("share") == "all" and is_count(part.get("groups")):
                counts = [part["groups"]] if is_count(value) and value <= LAYERS else counts  # shared by all
            for count in counts:
                if is_count(count) and count > max(tensors_held, 1):
                    raise UserError(f"{kind}.{name} is {count}, the files hold {tensors_held} tensors",
                                    where=where, fix="the folder's parts do not belong together")  # fmt: skip


def is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def parts_in(tree: Any) -> Iterator[dict[str, Any]]:
    """Every part and list of a saved spec; iterative, since a file may be nested very deeply."""
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            yield {f"[{i}]": value for i, value in enumerate(found)}
            waiting += found


# ---------------------------------------------------------------- writing


def save_own(folder: str | Path, spec: Network, model: nn.Module, *, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write anyformer.json and the weights; the folder must not hold another model."""
    check_whole(model, folder)
    check_buffers(spec, model, folder)
    folder = fresh(folder)
    spec.save(folder / SPEC_FILE)
    tensors.write_shards(folder, dict(model.named_parameters()), shard_bytes=shard_bytes)
    return folder


def save_foreign(
    folder: str | Path,
    spec: Network,
    model: nn.Module,
    *,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> tuple[Path, Family, str]:
    """Write a folder that transformers opens; a model that no family can express is rejected with the reason.

    `config` has further fields to keep: labels, token ids, and those of the original folder.
    """
    check_whole(model, folder)
    family, head, made = as_family(spec, config or {})
    folder = fresh(folder)
    reader = FamilyConfig(config or {})
    family.settings(reader, head)  # fields that our spec does not have (such as the training length) are kept
    kept = {name: value for name, value in reader.data.items() if name in IRRELEVANT or name in reader.read}
    made = {name: same_act(kept.get(name), value) for name, value in made.items()}
    for name in ("quantization_config", "auto_map", "torch_dtype", "_name_or_path", "transformers_version"):
        kept.pop(name, None)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    whole = (
        kept | made | {"model_type": family.model_type, "architectures": [family.architecture(head)], "dtype": dtype}
    )
    (folder / CONFIG_FILE).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    named = names.export(model, family.table(spec, head))
    for name, tensor in family.static(spec, head, whole).items():
        named[name] = tensor.to(next(model.parameters()).dtype)
    tensors.write_shards(folder, named, shard_bytes=shard_bytes)
    return folder, family, head


def same_act(before: Any, now: Any) -> Any:
    """The folder's own name of an activation that has several names in transformers."""
    names = isinstance(before, str) and isinstance(now, str) and before in ACTS and now in ACTS
    return before if names and ACTS[before] == ACTS[now] else now


def as_family(spec: Network, hints: Mapping[str, Any]) -> tuple[Family, str, dict[str, Any]]:
    """The family, head kind and config that describe exactly this spec.

    A family expresses a spec if writing its config and reading it back gives the spec again, except for dropout and
    initialisation, which do not affect a trained model.
    """
    known = [hints["model_type"]] if hints.get("model_type") in FAMILIES else []
    reasons: dict[str, str] = {}
    tried = [(kind, head) for kind, family in FAMILIES.items() for head in family.kinds]
    tried.sort(key=lambda pair: (pair[0] not in known, pair[1] == BODY))  # BODY last
    for kind, head in tried:
        family = FAMILIES[kind]
        try:
            made = family.config(spec, head) | {
                k: v for k, v in hints.items() if k in ("id2label", "label2id", "num_labels")
            }
            made = made if head == REPLACED else with_labels(made, spec)
            again = family.settings(FamilyConfig(made), head)
        except (AssertionError, AttributeError, LookupError, UserError, TypeError, ValueError):
            continue  # another kind of network
        if neutral(again) == neutral(spec):
            return family, head, made
        why = difference(neutral(spec), neutral(again))
        reasons[kind] = min(reasons.get(kind, why), why, key=distance)
    reasons = dict(sorted(reasons.items(), key=lambda item: distance(item[1])))
    nearest = next((f"; the nearest, {kind}, does not fit: {why}" for kind, why in reasons.items()), "")
    raise UserError(f"no family there has this network{nearest}"[:200], where="export", fix=WAYS,
                    details=[f"{kind}: {why}" for kind, why in reasons.items()])  # fmt: skip


def distance(reason: str) -> int:
    """Rank a family's first difference from a spec: a head setting (0), the head's kind (1), the body (2)."""
    in_head = reason.startswith("head")
    return 0 if in_head and not reason.startswith(("head.type", "head is")) else 1 if in_head else 2


def with_labels(made: dict[str, Any], spec: Network) -> dict[str, Any]:
    """Generate class names for a classifier without any, since they carry the number of classes."""
    head = spec.settings().get("head")
    classes = None if head is None else head.settings().get("classes", head.settings().get("outputs"))
    if classes is None or len(made.get("id2label") or ()) == classes:
        return made
    named = {str(i): f"LABEL_{i}" for i in range(classes)}
    return made | {"id2label": named, "label2id": {name: int(i) for i, name in named.items()}}


def neutral(spec: Network) -> dict[str, Any]:
    """A spec without training-only settings, and with default sizes filled in."""

    def strip(value: Any, width: int = 0) -> Any:
        if isinstance(value, dict):
            width = value["width"] if value.get("type") == "Stack" else width
            made = {
                k: strip(v, width)
                for k, v in value.items()
                if k not in ("dropout", "input_dropout", "init", "drop_path", "recompute", "frozen")
            }
            if made.get("type") == "MLP" and made["width"] is None:
                made["width"] = 4 * width
            if made.get("type") == "Attention" and made["kv_heads"] == made["heads"]:
                made["kv_heads"] = None
            return made
        return [strip(item, width) for item in value] if isinstance(value, list) else value

    return strip(spec.to_dict())


def difference(a: Any, b: Any, path: str = "") -> str:
    """The first difference of two trees, in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                return difference(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((difference(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), "")
    return f"{path} is {a!r}, the family has {b!r}"


def fresh(folder: str | Path) -> Path:
    """A new or empty folder to write into; nothing is overwritten."""
    folder = check_target(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
