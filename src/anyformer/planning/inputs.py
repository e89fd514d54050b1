"""Inputs of zeros with the right shapes, for a pass on the meta device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.core.towers import Towers
from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.frames import Frames
from anyformer.embeds.joint import Joint
from anyformer.embeds.maps import Maps
from anyformer.embeds.patches import Patches
from anyformer.embeds.queries import Queries
from anyformer.embeds.regions import Regions
from anyformer.embeds.series import Series
from anyformer.embeds.table import Table
from anyformer.embeds.tokens import Tokens
from anyformer.embeds.words import Words
from anyformer.errors import UserError
from anyformer.nets.sagan import SAGAN
from anyformer.slots import Embed, Network

LENGTH = 1024  # default length of a text, if the model has no smaller limit
REGIONS = 36  # of an image, from a detector (1908.02265)
HASHES, LETTERS = 8, 16  # of a word: affixes with its shape, letters


@dataclass(frozen=True)
class BlankInputs:
    """The arguments of `model(*args, **named)`."""

    args: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


def blank_inputs(
    spec: Network, batch: int, length: int | None = None, *, device: Any = "meta",
    dtype: torch.dtype = torch.float32,
) -> BlankInputs:  # fmt: skip
    """The inputs of a spec's network, as zeros.

    `length` is the number of tokens of a text; images, tables and audio have the size in the spec.

    >>> from anyformer import preset
    >>> blank_inputs(preset("vit-b16"), 2).args[0].shape
    torch.Size([2, 3, 224, 224])
    """
    if isinstance(spec, Model):
        return BlankInputs(of_embed(spec.embed, batch, length, device, dtype))
    if isinstance(spec, Seq2Seq):
        source = of_embed(spec.encoder.embed, batch, length, device, dtype)
        target = of_embed(spec.decoder.embed, batch, length, device, dtype)
        return BlankInputs((source if len(source) > 1 else source[0],
                            None if isinstance(spec.decoder.embed, Queries) else target[0]))  # fmt: skip
    if isinstance(spec, Towers | Streams):
        sides = [of_embed(side.embed, batch, length, device, dtype) for side in (spec.first, spec.second)]
        return BlankInputs(tuple(side if len(side) > 1 else side[0] for side in sides))
    if isinstance(spec, SAGAN):
        labels = torch.zeros(batch, dtype=torch.long, device=device) if spec.classes > 1 else None
        return BlankInputs((torch.zeros(batch, spec.noise, device=device, dtype=dtype), labels))
    raise UserError(f"what a {type(spec).__name__} is called with is not known", where="plan", fix="give inputs=(...)")


def of_embed(embed: Embed, batch: int, length: int | None, device: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    """Inputs of an embedding, as zeros."""

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(batch, *shape, device=device, dtype=dtype)

    def ids(*shape: int) -> Tensor:
        return torch.zeros(batch, *shape, dtype=torch.long, device=device)

    if isinstance(embed, Tokens):
        return (ids(text_length(embed, length)),)
    if isinstance(embed, Words):
        tokens = text_length(embed, length)
        return ids(tokens), ids(tokens, HASHES), ids(tokens, LETTERS)
    if isinstance(embed, Patches | ConvStem):
        return (numbers(embed.channels, *embed.pixels),)
    if isinstance(embed, Maps):
        return (numbers(embed.backbone.inputs, *embed.pixels),)
    if isinstance(embed, Frames):
        return (numbers(embed.samples),)
    if isinstance(embed, Series):
        return (numbers(embed.length, embed.channels or 1),)
    if isinstance(embed, Table):
        categories = len(embed.categories or ())
        return numbers(embed.numbers) if embed.numbers else None, ids(categories) if categories else None
    if isinstance(embed, Regions):
        return (numbers(REGIONS, embed.features),)
    if isinstance(embed, Queries):
        return (numbers(embed.count),)
    if isinstance(embed, Joint):
        parts = [of_embed(part, batch, length, device, dtype) for part in embed.parts]
        return tuple(part if len(part) > 1 else part[0] for part in parts)
    raise UserError(f"what {type(embed).__name__} reads is not known", where="plan", fix="give inputs=(...)")


def text_length(embed: Embed, length: int | None) -> int:
    """The given length, or the model's maximum, at most LENGTH."""
    most = embed.limit
    if length is None:
        return min(most or LENGTH, LENGTH)
    if length < 1:
        raise UserError(f"length {length} is below 1", where="plan", fix="use --length 1024")
    if most is not None and length > most:
        raise UserError(f"length {length} is more than the {most} positions of the model", where="plan",
                        fix=f"use --length {most}")  # fmt: skip
    return length


def tokens_of(spec: Network, batch: int, length: int) -> int:
    """Tokens of a batch: the tokens of a text, the patches of an image, the columns of a row.

    For an encoder-decoder both sides are counted.
    """
    models = [part for _, part in spec.walk() if isinstance(part, Model)]
    return batch * (sum(tokens_of_embed(model.embed, length, model.stack.width) for model in models) or 1)


def tokens_of_embed(embed: Embed, length: int, width: int) -> int:
    """Sequence length of one row after an embedding."""
    if isinstance(embed, Tokens | Words):
        return text_length(embed, length)
    if isinstance(embed, Joint):
        return sum(tokens_of_embed(part, length, width) for part in embed.parts)
    if isinstance(embed, Queries):
        return embed.count
    if isinstance(embed, Regions):
        return REGIONS
    with torch.device("meta"):
        module: Any = embed.build(width)
    given = of_embed(embed, 1, length, "meta", torch.float32)
    context = module.layout(*given)
    return int(context.positions.shape[-1])
