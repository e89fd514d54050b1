"""Which network a data set gets: a preset by name or by default, with the sizes that the data dictates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.embeds import Frames, Joint, Maps, Patches, Queries, Series, Table, Tokens
from anyformer.errors import UserError
from anyformer.heads import LM, Boxes, Distilled, Pair, Pooled, Regress, TokenHead
from anyformer.positions import Grid, Learned
from anyformer.presets import preset
from anyformer.slots import Backbone, Embed, Head, Network
from anyformer.spec import fields_of, replace_in
from anyformer.training.setup.network_signals import forecaster, sounds

LARGE = 200_000  # tokens, rows or images from which a GPU is worth the larger default
NAMES = {"lm": "decoder", "classify": "encoder", "regress": "encoder", "tag": "encoder", "translate": "translator"}


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


def default_preset(task: str, sizes: Sizes, *, gpu: bool) -> str:
    """The preset for a task and kind of data when none is named."""
    if task == "detect":
        return "detr-r50-tiny"
    if sizes.parts in (["table"], ["series"]):
        return "ft-transformer" if sizes.parts == ["table"] else "patchtst-small"
    kind = {"image": "vit", "sound": "sound"}.get(sizes.parts[0], "") if len(sizes.parts) == 1 else ""
    kind = kind or NAMES[task]
    return f"{kind}-{'small' if gpu else 'mini'}"


def network(name: str, task: str, sizes: Sizes) -> Network:
    """The preset's spec with vocabulary, lengths, columns, pixels and head as the data needs them."""
    return fitted(preset(name), name, task, sizes)


def fitted(spec: Network, name: str, task: str, sizes: Sizes) -> Network:
    """A spec with the sizes of the data; one that cannot do the task is refused by name."""
    if task == "translate":
        if not isinstance(spec, Seq2Seq):
            raise unfit(name, "has no encoder and decoder, which translation needs", "translator-mini")
        return pair_of(spec, sizes)
    if isinstance(spec, Streams):
        return two_streams(spec, name, task, sizes)
    if task == "detect":
        return detector(spec, name, sizes)
    if not isinstance(spec, Model):
        kind = "an encoder-decoder" if isinstance(spec, Seq2Seq) else f"a {type(spec).__name__}"
        raise unfit(name, f"is {kind}, which does not {task}", default_preset(task, sizes, gpu=False))
    if task == "lm":
        return language(spec, name, sizes)
    if task == "forecast":
        if not isinstance(spec.embed, Series):
            raise unfit(name, "does not read time series", "patchtst-small")
        return forecaster(spec, sizes)
    embed = embedding(spec, name, sizes)
    return spec.replace(embed=embed, head=head_for(spec, embed, task, sizes))


def unfit(name: str, why: str, instead: str) -> UserError:
    return UserError(f"the preset {name} {why}", where="--preset", fix=f"use {instead}")


def language(spec: Model, name: str, sizes: Sizes) -> Model:
    if not spec.stack.causal or not isinstance(spec.embed, Tokens):
        raise unfit(name, "does not read text from left to right, which a language model must", "decoder-mini")
    head = spec.head if isinstance(spec.head, LM) else LM(tied=True)
    return spec.replace(embed=words(spec.embed, sizes), head=head)


def pair_of(spec: Seq2Seq, sizes: Sizes) -> Seq2Seq:
    source, target = spec.encoder.embed, spec.decoder.embed
    if not isinstance(source, Tokens) or not isinstance(target, Tokens):
        raise unfit("given", "does not read words", "translator-mini")
    # What is written stands behind a start token, which takes a position of its own; BART has as many on both sides.
    sizes = sizes if sizes.length is None else replace(sizes, length=sizes.length + 1)
    return spec.replace(
        encoder=spec.encoder.replace(embed=words(source, sizes)),
        decoder=spec.decoder.replace(embed=words(target, sizes)),
        head=spec.head or LM(tied=True),
    )


def two_streams(spec: Streams, name: str, task: str, sizes: Sizes) -> Streams:
    """Each part of the data in its own stream, the answer from both."""
    kinds = {Tokens: "text", Table: "table", Patches: "image"}
    reads = [kinds.get(type(side.embed), "nothing known") for side in (spec.first, spec.second)]
    if task not in ("classify", "regress") or sizes.parts != reads:
        raise unfit(name, f"reads {reads[0]} beside {reads[1]}, for a class or numbers", "encoder-mini")
    one, two = (
        side.replace(embed=embedding(side, name, replace(sizes, parts=[part])))
        for side, part in zip((spec.first, spec.second), sizes.parts, strict=True)
    )
    own = spec.head if isinstance(spec.head, Pair) else Pair()
    return spec.replace(first=one, second=two, head=own.replace(classes=sizes.classes or sizes.outputs))


def detector(spec: Network, name: str, sizes: Sizes) -> Seq2Seq:
    """An encoder of images and a decoder of queries, with the data's classes and queries enough for its objects."""
    if not isinstance(spec, Seq2Seq) or not isinstance(spec.encoder.embed, Maps):
        raise unfit(name, "has no decoder that asks an image for its objects", "detr-r50-tiny")
    cells, asked = spec.encoder.embed, spec.decoder.embed
    if not isinstance(asked, Queries):
        raise unfit(name, "has no decoder that asks an image for its objects", "detr-r50-tiny")
    colours = {"colours": sizes.channels} if "colours" in fields_of(type(cells.backbone)) else {}
    cells = cells.replace(size=sizes.image or cells.size, backbone=cells.backbone.replace(**colours))
    count = asked.count if sizes.objects <= asked.count else 2 * sizes.objects
    return spec.replace(
        encoder=spec.encoder.replace(embed=cells), decoder=spec.decoder.replace(embed=asked.replace(count=count)),
        head=Boxes(classes=sizes.classes),
    )  # fmt: skip


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


def head_for(spec: Model, embed: Embed, task: str, sizes: Sizes) -> Head:
    """The head of the task, in the style of the preset's own where it has one."""
    own = spec.head
    if task == "tag":
        return TokenHead(classes=sizes.classes, dropout=getattr(own, "dropout", 0.0))
    led = isinstance(embed, Table | Patches | Maps | Frames) and embed.cls
    how = own.pool if isinstance(own, Pooled | Regress) else "first" if led else "last" if spec.stack.causal else "mean"
    if isinstance(embed, Joint) and how in ("first", "lead"):
        how = "mean"
    style: dict[str, Any] = {"pool": how}
    if isinstance(own, Pooled | Regress):
        style |= {"norm": own.norm, "dense": bool(own.dense), "act": own.act, "dropout": own.dropout}
    if task == "regress":
        return Regress(outputs=sizes.outputs, **style)
    if isinstance(own, Distilled):
        return Distilled(classes=sizes.classes)
    return Pooled(classes=sizes.classes, **style)


def longest(spec: Network) -> int | None:
    """The longest text a network can place, or None for any; of a pair both sides must hold their text."""
    if isinstance(spec, Streams):
        return spec.first.embed.limit
    if isinstance(spec, Seq2Seq):
        limits = [spec.encoder.embed.limit, spec.decoder.embed.limit]
        return min((limit for limit in limits if limit is not None), default=None)
    return spec.embed.limit if isinstance(spec, Model) else None


def with_changes(spec: Network, changes: dict[str, Any]) -> Network:
    """The spec after `--set model.…`."""
    return replace_in(spec, changes) if changes else spec  # type: ignore[return-value]
