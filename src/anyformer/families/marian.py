"""Marian (1804.00344), the translation models of OPUS-MT: BART with sinusoids and no embedding norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints.names import Row, rows
from anyformer.core.model import Seq2Seq
from anyformer.embeds.tokens import Tokens
from anyformer.families import bart
from anyformer.families.bart import HEADS, PREFIX, SIDES, body, common, half, halves
from anyformer.families.config import FamilyConfig
from anyformer.families.family import BARE, LM_HEAD, Family
from anyformer.heads import LM
from anyformer.positions.sinusoid import Sinusoid, sinusoid


def settings(c: FamilyConfig, head: str) -> Seq2Seq:
    """Marian's config.json as a spec."""
    common(c)
    c.size("max_position_embeddings", 1024, most=2**16)  # rows of the stored table; sinusoids have no limit
    c.skip("of a head that is not Marian's", "classifier_dropout")
    vocab = c.size("vocab_size", 58101)
    other = c.size("decoder_vocab_size", None) or vocab
    shared, tied = c.get("share_encoder_decoder_embeddings", True), c.get("tie_word_embeddings", True)
    if shared and other != vocab:
        c.only("decoder_vocab_size", vocab, why="with one table for both sides is not implemented")
    embeds = [
        Tokens(vocab=size, position=Sinusoid(layout="half"), scale=c.get("scale_embedding", False),
               dropout=c.get("dropout", 0.1))
        for size in (vocab, other)
    ]  # fmt: skip
    encoder, decoder = (body(c, side, embed) for side, embed in zip(SIDES, embeds, strict=True))
    return Seq2Seq(
        encoder=encoder,
        decoder=decoder,
        head=LM(tied=tied, bias=True) if head == LM_HEAD else None,
        share="table" if shared and tied else "none",  # untied also separates the two embeddings
        init="bert",
    )


def config(spec: Seq2Seq, head: str) -> dict[str, Any]:
    """A spec as Marian's config.json."""
    source, target = spec.encoder.embed, spec.decoder.embed
    assert isinstance(source, Tokens) and isinstance(target, Tokens)
    return {
        **halves(spec), "vocab_size": source.vocab, "decoder_vocab_size": target.vocab,
        "share_encoder_decoder_embeddings": spec.share == "table",
        "tie_word_embeddings": not isinstance(spec.head, LM) or spec.head.tied,
    }  # fmt: skip


def table(spec: Seq2Seq, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head == BARE else PREFIX
    tables = [("encoder.embed.table", f"{prefix}shared")]
    if spec.share == "none":
        tables = [(f"{side}.embed.table", f"{prefix}{side}.embed_tokens") for side in SIDES]
    return rows(*tables, *half("encoder", prefix), *half("decoder", prefix), *HEADS[head])


def tied(spec: Seq2Seq, head: str) -> dict[str, str]:
    """Second names of an embedding."""
    if spec.share == "table":
        return bart.tied(spec, head)
    return {"lm_head.weight": f"{PREFIX}decoder.embed_tokens.weight"} if head == LM_HEAD else {}


def static(spec: Seq2Seq, head: str, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The sinusoids, which are stored in files of the bare model but not of models with a head."""
    if head != BARE:
        return {}
    positions = torch.arange(config.get("max_position_embeddings") or 1024)[None]
    made = sinusoid(positions, spec.encoder.stack.width, torch.float64, layout="half")[0].float()
    return {f"{side}.embed_positions.weight": made.clone() for side in SIDES}


FAMILIES = (
    Family(
        model_type="marian",
        heads={"MarianModel": BARE, "MarianMTModel": LM_HEAD},
        settings=settings, config=config, table=table, prefix=PREFIX, tied=tied, static=static,
        buffers=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),  # compared with `static`
        # With separate embeddings, one of these is unused.
        spare=(r"(model\.)?shared\.weight", r"(encoder|decoder)\.embed_tokens\.weight"),
    ),
)  # fmt: skip
