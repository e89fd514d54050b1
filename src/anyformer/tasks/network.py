"""Networks fitted to data: a preset with vocabulary, lengths, columns and pixels as the data requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.data.columns.kinds import modality_named, modality_reading, only_modality
from anyformer.data.columns.text import embed_tokens
from anyformer.data.sizes import Sizes
from anyformer.embeds import ConvStem, Frames, Joint, Maps, Patches, Table, Tokens
from anyformer.errors import UnfitNetwork, UserError
from anyformer.heads import LM, LMWithPair, Pair, Pooled, Regress, WideAndDeep
from anyformer.nets.electra import Electra
from anyformer.slots import Embed, Head, Network
from anyformer.spec import comes_from_outside

if TYPE_CHECKING:
    from anyformer.tasks.base import Task
    from anyformer.tasks.row_task import RowTask


# Fitted n-grams need no optimizer state, so there is memory for many buckets with few collisions. With many classes
# there are fewer buckets; below the minimum most n-grams collide, and gradient steps on short rows do better.
MOST_BUCKETS, LEAST_BUCKETS, MOST_WEIGHTS = 2**20, 2**13, 2**23
FEW_TEXTS = 20_000  # training rows below which texts get the CPU preset on a GPU too


def preset_for_parts(parts: Sequence[str], *, gpu: bool, rows: int | None = None) -> str:
    """The default preset for `rows` training rows of these parts."""
    alone = only_modality(parts)
    own = "" if alone is None else alone.preset_for(rows, gpu=gpu)
    return own or f"encoder-{size_for(gpu)}"


def preset_for_rows(sizes: Sizes, *, gpu: bool) -> str:
    """The default preset for rows with one target each: on few texts the smaller one is as good and overfits less."""
    is_text = any(issubclass(Tokens, modality_named(part).embeds) for part in sizes.parts)
    few = sizes.rows is not None and sizes.rows < FEW_TEXTS
    return preset_for_parts(sizes.parts, gpu=gpu and not (is_text and few), rows=sizes.rows)


def size_for(gpu: bool) -> str:
    """The size of a default preset."""
    return "small" if gpu else "mini"


def fit_row_network(task: RowTask, spec: Network, name: str, sizes: Sizes) -> Network:
    """A spec for rows: an embedding of their parts, the stack unchanged, and the task's head."""
    if isinstance(spec, Streams):
        return two_streams(spec, name, sizes)
    made = require_model(spec, name, task, sizes)
    embed = embedding(made, name, sizes)
    own = made.head.pair if isinstance(made.head, LMWithPair) else made.head  # what reads a whole row
    deep = own.deep if isinstance(own, WideAndDeep) else own
    head = task.head(deep, pooling(made.replace(head=deep), embed), sizes)
    if isinstance(own, WideAndDeep):
        head = widen(head, own, embed, sizes, fitted=task.has_plain_logits)
    ensemble = made.ensemble if task.has_plain_logits else None
    ensemble = None if ensemble is None else ensemble.replace(multi_label=sizes.multi)
    return made.replace(embed=embed, head=head, ensemble=ensemble)


def fit_encoder_decoder(spec: Network, name: str, sizes: Sizes, instead: str) -> Seq2Seq:
    """A spec from a text or an image to a text with this vocabulary; `instead` names a suitable preset."""
    if not isinstance(spec, Seq2Seq):
        raise unfit(name, "has no encoder and decoder: one reads, the other writes a text", instead)
    source, target = spec.encoder.embed, spec.decoder.embed
    if not isinstance(target, Tokens) or (sizes.image is None and not isinstance(source, Tokens)):
        raise unfit(name, "does not read words", instead)
    if len(sizes.parts) == 1 and sizes.image is not None and not isinstance(source, ConvStem | Patches | Maps):
        raise unfit(name, "does not read images", instead)
    # The decoder's input begins with a start token, which takes a position; BART has equally many on both sides.
    sizes = sizes if sizes.length is None else replace(sizes, length=sizes.length + 1)
    if isinstance(source, Tokens) and sizes.image is None:
        read: Embed = embed_tokens(source, sizes)
    else:
        read = embedding(spec.encoder, name, sizes)
    return spec.replace(
        encoder=spec.encoder.replace(embed=read),
        decoder=spec.decoder.replace(embed=embed_tokens(target, sizes)),
        head=spec.head or LM(tied=True),
    )


def adapt_encoder_decoder(fitted: Network, trained: Network, sizes: Sizes) -> Seq2Seq:
    """A pretrained encoder-decoder unchanged, with a head if it had none; images have the size of the data."""
    assert isinstance(fitted, Seq2Seq) and isinstance(trained, Seq2Seq)
    if sizes.image is None:
        return trained.replace(head=trained.head or fitted.head)
    read = keep_trained_embedding(fitted.encoder.embed, trained.encoder.embed)
    return trained.replace(encoder=fitted.encoder.replace(embed=read), head=trained.head or fitted.head)


def keep_trained_embedding(fitted: Embed, trained: Embed) -> Embed:
    """The embedding for the data with the pretrained token table, positions and way of joining parts.

    Images and tables keep the form that the data requires; weights of the same shape are loaded.
    """
    own = next((part for part in parts_of(trained) if isinstance(part, Tokens)), None)
    if own is None:
        return fitted
    parts = tuple(keep_words(part, own) if isinstance(part, Tokens) else part for part in parts_of(fitted))
    if isinstance(fitted, Joint):
        return trained.replace(parts=parts) if isinstance(trained, Joint) else fitted.replace(parts=parts)
    (alone,) = parts
    if isinstance(trained, Joint) and isinstance(alone, Tokens) and trained.norm is not None and alone.norm is None:
        return alone.replace(norm=trained.norm, dropout=trained.dropout)  # the norm after joining becomes its own
    return alone


def keep_words(fitted: Tokens, own: Tokens) -> Tokens:
    """The pretrained token table and positions, checked to hold the data's vocabulary."""
    if own.vocab < fitted.vocab:
        what = f"the tokenizer has {fitted.vocab:,} tokens, the trained table {own.vocab:,} rows"
        raise UserError(what, where="--from", fix="give the model's own tokenizer: --set data.tokenizer.folder=FOLDER")
    return own.replace(segments=own.segments or fitted.segments)


def require_model(spec: Network, name: str, task: Task, sizes: Sizes) -> Model:
    """The spec, which must be one stack between an embedding and a head; of an ELECTRA, its discriminator."""
    if isinstance(spec, Electra):
        return spec.discriminator
    if isinstance(spec, Model):
        return spec
    kind = "an encoder-decoder" if isinstance(spec, Seq2Seq) else f"a {type(spec).__name__}"
    raise unfit(name, f"is {kind}, which does not {task.name}", task.default_preset(sizes, gpu=False))


def unfit(name: str, why: str, instead: str) -> UnfitNetwork:
    return UnfitNetwork(f"the preset {name} {why}", where="--preset", fix=f"use {instead}")


def two_streams(spec: Streams, name: str, sizes: Sizes) -> Streams:
    """Each part of the data in its own stream, one prediction from both."""
    read = [modality_reading(side.embed) for side in (spec.first, spec.second)]
    reads = ["nothing known" if modality is None else modality.name for modality in read]
    if sizes.parts != reads:
        raise unfit(name, f"reads {reads[0]} beside {reads[1]}, for a class or numbers", "encoder-mini")
    one, two = (
        side.replace(embed=embedding(side, name, replace(sizes, parts=[part])))
        for side, part in zip((spec.first, spec.second), sizes.parts, strict=True)
    )
    own = spec.head if isinstance(spec.head, Pair) else Pair()
    return spec.replace(first=one, second=two, head=own.replace(classes=sizes.classes or sizes.outputs))


def embedding(spec: Model, name: str, sizes: Sizes) -> Embed:
    """The embedding of the data's parts; several of them become one sequence."""
    if is_own(spec.embed, sizes):
        return spec.embed.fit_data(sizes)
    made: list[Embed] = []
    for part in sizes.parts:
        modality = modality_named(part)
        own = next((part for part in parts_of(spec.embed) if isinstance(part, modality.embeds)), None)
        if own is None and modality.presets and len(sizes.parts) == 1:
            raise unfit(name, f"does not read {modality.plural}", modality.presets[0])
        made.append(modality.embed(own, sizes))
    return made[0] if len(made) == 1 else Joint(parts=tuple(made))


def parts_of(embed: Embed) -> tuple[Embed, ...]:
    """The embeddings whose tokens are concatenated to one sequence."""
    return embed.parts if isinstance(embed, Joint) else (embed,)


def is_own(embed: Embed, sizes: Sizes) -> bool:
    """Whether an embedding is user-defined, of a kind that no modality of the data can fit."""
    known = any(isinstance(embed, modality_named(part).embeds) for part in sizes.parts)
    return comes_from_outside(type(embed)) and not known


def pooling(spec: Model, embed: Embed) -> str:
    """The pooling of a row to one vector: that of the model's own head, else as its embedding suggests."""
    own = spec.head
    led = isinstance(embed, Table | Patches | Maps | Frames) and embed.cls
    how = own.pool if isinstance(own, Pooled | Regress) else "first" if led else "last" if spec.stack.causal else "mean"
    return "mean" if isinstance(embed, Joint) and how in ("first", "lead") else how


def widen(deep: Head, own: WideAndDeep, embed: Embed, sizes: Sizes, *, fitted: bool) -> Head:
    """A wide-and-deep head in the preset's style, with n-grams beside `deep`, if rows have one target and a text."""
    has_logits = isinstance(deep, Regress) or (isinstance(deep, Pooled) and deep.classes is not None)
    if embed.vocabulary is None or not has_logits:
        return deep
    made = own.replace(deep=deep, pair=sizes.segments > 0 and isinstance(embed, Tokens))
    room = MOST_WEIGHTS // (made.outputs or 1)
    if not fitted or not any(isinstance(part, Tokens) for part in parts_of(embed)) or room < LEAST_BUCKETS:
        return made.replace(fitted=False)
    return made.replace(fitted=True, buckets=min(MOST_BUCKETS, room))


def pooled_style(own: Head | None, pool: str) -> dict[str, Any]:
    """Settings of a pooled head taken from the preset's own, if it has one."""
    if not isinstance(own, Pooled | Regress):
        return {"pool": pool}
    return {"pool": pool, "norm": own.norm, "dense": bool(own.dense), "act": own.act, "dropout": own.dropout}


def compares_texts(spec: Network) -> bool:
    """Whether a network compares the two texts of a row, whether or not its tokenizer has token types."""
    return isinstance(spec, Model) and isinstance(spec.head, WideAndDeep) and spec.head.pair


def longest(spec: Network) -> int | None:
    """The longest text that a network has positions for, or None for any; of a pair, both sides must hold it."""
    if isinstance(spec, Streams):
        return spec.first.embed.limit
    if isinstance(spec, Seq2Seq):
        limits = [spec.encoder.embed.limit, spec.decoder.embed.limit]
        return min((limit for limit in limits if limit is not None), default=None)
    if isinstance(spec, Model):
        return min((part.limit for part in parts_of(spec.embed) if part.limit is not None), default=None)
    return spec.embed.limit if isinstance(spec, Electra) else None


def reads_words(spec: Network) -> bool:
    """Whether a network has a token embedding, for the text that it reads or generates."""
    if isinstance(spec, Seq2Seq | Streams):
        sides = (spec.encoder, spec.decoder) if isinstance(spec, Seq2Seq) else (spec.first, spec.second)
        return any(reads_words(side) for side in sides)
    return isinstance(spec, Model | Electra) and any(isinstance(part, Tokens) for part in parts_of(spec.embed))
