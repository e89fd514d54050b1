"""Open an FT-Transformer of the package rtdl_revisiting_models, or write one for it (2106.11959).

    python recipes/rtdl_to_anyformer.py RTDL FOLDER            # rtdl to anyformer
    python recipes/rtdl_to_anyformer.py --back FOLDER RTDL     # anyformer to rtdl

RTDL is a folder with model.safetensors (the state_dict) and sizes.json (the arguments FTTransformer was called with):

    safetensors.torch.save_file(model.state_dict(), "RTDL/model.safetensors")
    json.dump(arguments, open("RTDL/sizes.json", "w"))         # n_cont_features, cat_cardinalities, d_block, ...

cost: seconds. expect: equal answers to 1e-9 in float64, both ways, and the same bytes after both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints import names, tensors
from anyformer.checkpoints.folder import common_dtype, fresh, open_folder, save_own
from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import QKV, Halves, Leading, Shaped, StackedTensors
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.table import Table
from anyformer.errors import UserError
from anyformer.families.config import FamilyConfig
from anyformer.feeds.mlp import MLP
from anyformer.heads import Pooled, Regress
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm
from anyformer.safe_files import inside, read_json

SIZES = "sizes.json"


def settings(c: FamilyConfig) -> Model:
    """FTTransformer's arguments as a spec."""
    c.skip("marks their default sizes", "_is_default")
    for name in ("linformer_kv_compression_ratio", "linformer_kv_compression_sharing"):
        c.only(name, None, why="(Linformer) is not implemented")
    width, depth = c.size("d_block", None), c.size("n_blocks", None)
    inner, factor = c.size("ffn_d_hidden", None), c.get("ffn_d_hidden_multiplier", None)
    activation, outputs = c.get("ffn_activation", "ReGLU"), c.size("d_out", None)
    heads = c.size("attention_n_heads", None)
    if width is None or depth is None or heads is None or (inner is None and factor is None):
        raise UserError(
            "sizes are missing", where=c.where, fix="give d_block, n_blocks, attention_n_heads, ffn_d_hidden"
        )
    if activation not in ("ReLU", "ReGLU"):
        raise UserError(f"ffn_activation is {activation!r}", where=c.where, fix="expected ReLU or ReGLU")
    counts = c.get("cat_cardinalities", [])
    embed = Table(numbers=c.get("n_cont_features", 0), categories=tuple(counts) or None)
    attention = Attention(heads=heads, dropout=c.get("attention_dropout", 0.0))
    feed = MLP(
        width=inner or int(width * factor), act="relu", gated=activation == "ReGLU", dropout=c.get("ffn_dropout", 0.0)
    )
    block = Block(mixer=attention, feed=feed, dropout=c.get("residual_dropout", 0.0))
    first = block.replace(mixer_norm=NoNorm())  # "crucial", as they say
    stack = Stack(width=width, depth=depth, block=(first, *[block] * (depth - 1)), final=NoNorm())
    head = Pooled() if outputs is None else Regress(outputs=outputs, norm=LayerNorm(), act="relu")
    if c.unread():
        raise UserError(f"{c.unread()[0]!r} is not an argument of FTTransformer", where=c.where, fix="remove it")
    return Model(embed=embed, stack=stack, head=head, init="table")


def sizes(spec: Model) -> dict[str, Any]:
    """A spec as FTTransformer's arguments; one that it has no words for is refused."""
    embed, stack, block = spec.embed, spec.stack, spec.stack.tiles[-1]
    fits = isinstance(embed, Table) and isinstance(block.mixer, Attention) and isinstance(block.feed, MLP)
    if fits and isinstance(embed, Table) and isinstance(block.mixer, Attention) and isinstance(block.feed, MLP):
        made: dict[str, Any] = {
            "n_cont_features": embed.numbers, "cat_cardinalities": list(embed.categories or ()),
            "n_blocks": stack.depth, "d_block": stack.width, "attention_n_heads": block.mixer.heads,
            "attention_dropout": block.mixer.dropout, "ffn_d_hidden": block.feed.width or 4 * stack.width,
            "ffn_d_hidden_multiplier": None, "ffn_dropout": block.feed.dropout,
            "ffn_activation": "ReGLU" if block.feed.gated else "ReLU", "residual_dropout": block.dropout,
            "d_out": spec.head.outputs if isinstance(spec.head, Regress) else None,
        }  # fmt: skip
        again = settings(FamilyConfig(made, SIZES))
        if again.replace(init=spec.init) == spec:
            return made
    raise UserError("this network is not an FT-Transformer of rtdl", where="spec", fix="keep it as an anyformer folder")


class Identity(Shaped):
    """A matrix that is not there: with one head, theirs has no output projection. Ours must not have learned one."""

    def __init__(self, axes: int) -> None:
        self.axes = axes

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        width = owner.out_features
        return torch.eye(width) if self.axes == 2 else torch.zeros(width)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        if not tensor.is_meta and not torch.equal(tensor, self.pull([], owner).to(tensor)):
            raise UserError(
                "with one head rtdl has no output projection, and this one has learned", fix="use two heads"
            )
        return []


BLOCK = "backbone.blocks.{i}"
LAYERS = (
    ("embed.lead", "cls_embedding.weight", Leading(1)),
    ("stack.blocks.{i}.around_mixer.before", f"{BLOCK}.attention_normalization"),
    ("stack.blocks.{i}.mixer.qkv", tuple(f"{BLOCK}.attention.W_{part}" for part in "qkv"), QKV),
    ("stack.blocks.{i}.around_feed.before", f"{BLOCK}.ffn_normalization"),
    ("stack.blocks.{i}.feed.down", f"{BLOCK}.ffn.linear2"),
    ("head.norm", "backbone.output.normalization"),
    ("head.out", "backbone.output.linear"),
)


def table(spec: Model) -> tuple[Row, ...]:
    """One row a module, read in both directions; the columns decide which names there are."""
    embed, block = spec.embed, spec.stack.tiles[-1]
    assert isinstance(embed, Table) and isinstance(block.mixer, Attention) and isinstance(block.feed, MLP)
    counts = embed.categories or ()
    biases = {"cont_embeddings.bias": embed.numbers, "cat_embeddings.bias": len(counts)}
    there = {name: count for name, count in biases.items() if count}
    columns = tuple(f"cat_embeddings.embeddings.{j}.weight" for j in range(len(counts)))
    made: list[tuple[Any, ...]] = [*LAYERS, ("embed.bias", tuple(there), StackedTensors(*there.values()))]
    made += [("embed.weight", "cont_embeddings.weight")] if embed.numbers else []
    made += [("embed.category.weight", columns, StackedTensors(*counts))] if counts else []
    up = ("stack.blocks.{i}.feed.up", f"{BLOCK}.ffn.linear1")
    made.append((*up, Halves(gate=1)) if block.feed.gated else up)  # their second half goes through the ReLU
    if block.mixer.heads > 1:
        made.append(("stack.blocks.{i}.mixer.out", f"{BLOCK}.attention.W_out"))
    else:
        made += [
            ("stack.blocks.{i}.mixer.out.weight", (), Identity(2)),
            ("stack.blocks.{i}.mixer.out.bias", (), Identity(1)),
        ]
    return rows(*made)


def open_rtdl(folder: str | Path) -> tuple[Model, Any]:
    """The spec and the network of a folder with model.safetensors and sizes.json."""
    folder = Path(folder)
    spec = settings(FamilyConfig(read_json(inside(folder, SIZES)), SIZES))
    entries = tensors.read_folder(folder)
    model = spec.build(device="meta", dtype=common_dtype(entries)).eval()
    names.check(model, table(spec), entries, where=folder.name)
    names.fill(model.to_empty(device="cpu"), table(spec), entries)
    return spec, model


def save_rtdl(folder: str | Path, spec: Model, model: torch.nn.Module) -> Path:
    """Write model.safetensors and sizes.json: FTTransformer(**sizes).load_state_dict(...) takes them."""
    made = sizes(spec)
    folder = fresh(folder)
    (folder / SIZES).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    tensors.write(folder / "model.safetensors", names.export(model, table(spec)))
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--back", action="store_true", help="from anyformer to rtdl")
    given = parser.parse_args(arguments)
    if given.back:
        opened = open_folder(given.source)
        save_rtdl(given.target, opened.spec, opened.model)  # type: ignore[arg-type]
    else:
        save_own(given.target, *open_rtdl(given.source))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
