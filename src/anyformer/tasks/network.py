"""Networks for data: a preset with the vocabulary, lengths, columns and pixels that the data dictates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.embeds import Frames, Joint, Maps, Patches, Table, Tokens
from anyformer.embeds.mel import bands
from anyformer.errors import UserError
from anyformer.heads import Pair, Pooled, Regress
from anyformer.positions import Grid, Learned
from anyformer.slots import Backbone, Embed, Head, Network
from anyformer.spec import fields_of

if TYPE_CHECKING:
    from anyformer.tasks.base import RowTask, Task


@dataclass
class Sizes:
    """What the data dictates; see `data.preprocess.sizes`."""

    parts: list[str]
    vocab: int = 0
    length: int | None = None
    pad: int | None = None
    segments: int = 0
    numbers: int = 0
    categories: list[int] | None = None
    image: int | tuple[int, int] | None = None
    channels: int = 3
    sample_rate: int = 16000
    samples: int = 16000
    loudness: list[float] | None = None
    classes: int = 0
    outputs: int = 0
    multi: bool = False
    start: int | None = None
    objects: int = 0


def preset_for_parts(parts: Sequence[str], *, gpu: bool) -> str:
    """The preset for rows of these parts when none is named."""
    if list(parts) == ["table"]:
        return "ft-transformer"
    kind = {"image": "vit", "sound": "sound"}.get(parts[0], "encoder") if len(parts) == 1 else "encoder"
    return f"{kind}-{size_for(gpu)}"


def size_for(gpu: bool) -> str:
    """The size of a default preset."""
    return "small" if gpu else "mini"


def fit_row_network(task: RowTask, spec: Network, name: str, sizes: Sizes) -> Network:
    """A spec for rows: an embedding of their parts, the stack as it is, and the head of the task."""
    if isinstance(spec, Streams):
        return two_streams(spec, name, sizes)
    made = require_model(spec, name, task, sizes)
    embed = embedding(made, name, sizes)
    return made.replace(embed=embed, head=task.head(made.head, pooling(made, embed), sizes))


def require_model(spec: Network, name: str, task: Task, sizes: Sizes) -> Model:
    """The spec, which must be one stack between an embedding and a head."""
    if isinstance(spec, Model):
        return spec
    kind = "an encoder-decoder" if isinstance(spec, Seq2Seq) else f"a {type(spec).__name__}"
    raise unfit(name, f"is {kind}, which does not {task.name}", task.default_preset(sizes, gpu=False))


def unfit(name: str, why: str, instead: str) -> UserError:
    return UserError(f"the preset {name} {why}", where="--preset", fix=f"use {instead}")


def two_streams(spec: Streams, name: str, sizes: Sizes) -> Streams:
    """Each part of the data in its own stream, the answer from both."""
    kinds = {Tokens: "text", Table: "table", Patches: "image"}
    reads = [kinds.get(type(side.embed), "nothing known") for side in (spec.first, spec.second)]
    if sizes.parts != reads:
        raise unfit(name, f"reads {reads[0]} beside {reads[1]}, for a class or numbers", "encoder-mini")
    one, two = (
        side.replace(embed=embedding(side, name, replace(sizes, parts=[part])))
        for side, part in zip((spec.first, spec.second), sizes.parts, strict=True)
    )
    own = spec.head if isinstance(spec.head, Pair) else Pair()
    return spec.replace(first=one, second=two, head=own.replace(classes=sizes.classes or sizes.outputs))


def words(embed: Tokens, sizes: Sizes) -> Tokens:
    """An embedding of text for this vocabulary and length."""
    changes: dict[str, Any] = {"vocab": sizes.vocab}
    if isinstance(embed.position, Learned) and sizes.length is not None:
        changes["position"] = embed.position.replace(length=max(sizes.length, 8))
    if sizes.segments and not embed.segments:
        changes["segments"] = sizes.segments
    return embed.replace(**changes)


def embedding(spec: Model, name: str, sizes: Sizes) -> Embed:
    """What takes in the data's parts; several of them become one sequence."""
    made: list[Embed] = []
    for part in sizes.parts:
        if part == "table":
            own_table = spec.embed if isinstance(spec.embed, Table) else Table(numbers=1)
            categories = tuple(sizes.categories or ()) or None
            made.append(own_table.replace(numbers=sizes.numbers, categories=categories, missing=True))
        elif part == "text":
            own = spec.embed if isinstance(spec.embed, Tokens) else Tokens(vocab=sizes.vocab, position=Learned(512))
            if not isinstance(spec.embed, Tokens) and len(sizes.parts) == 1:
                raise unfit(name, "does not read text", "encoder-mini")
            made.append(words(own, sizes))
        elif part == "sound":
            own_frames = spec.embed if isinstance(spec.embed, Frames) else Frames(sample_rate=16000, cls=False)
            if not isinstance(spec.embed, Frames) and len(sizes.parts) == 1:
                raise unfit(name, "does not read sound", "sound-mini")
            made.append(sounds(own_frames, sizes))
        elif isinstance(spec.embed, Maps):
            made.append(maps(spec.embed, sizes))
        else:
            own_patches = spec.embed if isinstance(spec.embed, Patches) else Patches(size=32, patch=4, cls=False)
            if not isinstance(spec.embed, Patches) and len(sizes.parts) == 1:
                raise unfit(name, "does not read images", "vit-mini")
            made.append(patches(own_patches, sizes))
    if sizes.parts == ["table"] and not isinstance(spec.embed, Table):
        raise unfit(name, "does not read tables", "ft-transformer")
    return made[0] if len(made) == 1 else Joint(parts=tuple(made))


def patches(embed: Patches, sizes: Sizes) -> Patches:
    """Patches for these images: the preset's where they divide the image into a sensible grid, else about 8 x 8."""
    size = sizes.image or 32
    high, wide = (size, size) if isinstance(size, int) else size
    cell = embed.cell[0]
    if high % cell or wide % cell or not 4 <= high // cell <= 32:
        fits = [n for n in range(1, min(high, wide) + 1) if high % n == 0 and wide % n == 0]
        cell = min(fits, key=lambda n: (abs(high / n - 8), n))
    position = Grid() if isinstance(embed.position, Grid) else embed.position
    return embed.replace(size=size, patch=cell, channels=sizes.channels, position=position)


def maps(embed: Maps, sizes: Sizes) -> Maps:
    """Maps of these images: the preset's backbone for the data's colours."""
    size = sizes.image or embed.size
    position = Grid() if isinstance(embed.position, Grid) else embed.position
    return embed.replace(size=size, backbone=coloured(embed.backbone, size, sizes.channels), position=position)


def coloured(backbone: Backbone, size: int | tuple[int, int], colours: int) -> Backbone:
    """The backbone for images of that many colours; fewer than 4 x 4 cells ask for the stem of small images."""
    names, changes = fields_of(type(backbone)), dict[str, Any]()
    if "backbone" in names:  # one around another, such as visual tokens over a ResNet
        changes["backbone"] = coloured(backbone.backbone, size, colours)  # type: ignore[attr-defined]
    if "colours" in names:
        changes["colours"] = colours
    if "stem" in names and (size if isinstance(size, int) else min(size)) < 4 * backbone.stride:
        changes["stem"] = "small"
    return backbone.replace(**changes)


def sounds(embed: Frames, sizes: Sizes) -> Frames:
    """Spectra of these clips; a patch as high as the preset's spectrum is as high as the data's."""
    mels, (high, wide), (down, along) = bands(sizes.sample_rate), embed.cell, embed.apart
    whole = high == embed.mels
    reach, step = round(embed.window * sizes.sample_rate), max(1, round(embed.hop * sizes.sample_rate))
    frames = 1 + max(0, -((reach - sizes.samples) // step))  # rounded up: the last samples are heard
    mean, std = sizes.loudness or (embed.mean, embed.std)
    return embed.replace(
        sample_rate=sizes.sample_rate, mels=mels, frames=max(wide, frames), mean=mean, std=std,
        patch=(mels if whole else min(high, mels), wide), stride=(mels if whole else min(down, mels), along),
        position=Grid() if isinstance(embed.position, Grid) else embed.position,
    )  # fmt: skip


def pooling(spec: Model, embed: Embed) -> str:
    """How the rows of a model become one vector each: as its own head does, else as its tokens suggest."""
    own = spec.head
    led = isinstance(embed, Table | Patches | Maps | Frames) and embed.cls
    how = own.pool if isinstance(own, Pooled | Regress) else "first" if led else "last" if spec.stack.causal else "mean"
    return "mean" if isinstance(embed, Joint) and how in ("first", "lead") else how


def pooled_style(own: Head | None, pool: str) -> dict[str, Any]:
    """Settings of a pooled head in the style of the preset's own, where it has one."""
    if not isinstance(own, Pooled | Regress):
        return {"pool": pool}
    return {"pool": pool, "norm": own.norm, "dense": bool(own.dense), "act": own.act, "dropout": own.dropout}


def longest(spec: Network) -> int | None:
    """The longest text a network can place, or None for any; of a pair both sides must hold their text."""
    if isinstance(spec, Streams):
        return spec.first.embed.limit
    if isinstance(spec, Seq2Seq):
        limits = [spec.encoder.embed.limit, spec.decoder.embed.limit]
        return min((limit for limit in limits if limit is not None), default=None)
    return spec.embed.limit if isinstance(spec, Model) else None
