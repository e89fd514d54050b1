"""Which network a data set gets: a preset by name or by default, with the sizes that the data dictates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.data.columns.kinds import modality_named, modality_reading, only_modality
from anyformer.data.columns.text import embed_tokens
from anyformer.data.sizes import Sizes
from anyformer.embeds import Frames, Joint, Maps, Patches, Queries, Series, Table, Tokens
from anyformer.errors import UserError
from anyformer.heads import LM, Boxes, Distilled, Pair, Pooled, Regress, TokenHead
from anyformer.presets import preset
from anyformer.slots import Embed, Head, Network
from anyformer.spec import fields_of, replace_in
from anyformer.training.setup.network_signals import forecaster

LARGE = 200_000  # tokens, rows or images from which a GPU is worth the larger default
WRITERS = {"lm": "decoder", "translate": "translator"}


def default_preset(task: str, sizes: Sizes, *, gpu: bool) -> str:
    """The preset for a task and kind of data when none is named."""
    if task == "detect":
        return "detr-r50-tiny"
    if sizes.parts == ["series"]:
        return "patchtst-small"
    alone = only_modality(sizes.parts)
    if alone is not None and alone.presets and task not in WRITERS:
        return alone.presets[gpu]
    return f"{WRITERS.get(task, 'encoder')}-{'small' if gpu else 'mini'}"


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
    return spec.replace(embed=embed_tokens(spec.embed, sizes), head=head)


def pair_of(spec: Seq2Seq, sizes: Sizes) -> Seq2Seq:
    source, target = spec.encoder.embed, spec.decoder.embed
    if not isinstance(source, Tokens) or not isinstance(target, Tokens):
        raise unfit("given", "does not read words", "translator-mini")
    # What is written stands behind a start token, which takes a position of its own; BART has as many on both sides.
    sizes = sizes if sizes.length is None else replace(sizes, length=sizes.length + 1)
    return spec.replace(
        encoder=spec.encoder.replace(embed=embed_tokens(source, sizes)),
        decoder=spec.decoder.replace(embed=embed_tokens(target, sizes)),
        head=spec.head or LM(tied=True),
    )


def two_streams(spec: Streams, name: str, task: str, sizes: Sizes) -> Streams:
    """Each part of the data in its own stream, the answer from both."""
    read = [modality_reading(side.embed) for side in (spec.first, spec.second)]
    reads = ["nothing known" if modality is None else modality.name for modality in read]
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


def embedding(spec: Model, name: str, sizes: Sizes) -> Embed:
    """What takes in the data's parts; several of them become one sequence."""
    made: list[Embed] = []
    for part in sizes.parts:
        modality = modality_named(part)
        own = spec.embed if isinstance(spec.embed, modality.embeds) else None
        if own is None and modality.presets and len(sizes.parts) == 1:
            raise unfit(name, f"does not read {modality.plural}", modality.presets[0])
        made.append(modality.embed(own, sizes))
    return made[0] if len(made) == 1 else Joint(parts=tuple(made))


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
