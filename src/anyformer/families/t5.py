"""T5, versions 1.0 and 1.1 (1910.10683, 2002.05202)."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import GATE, KV, QKV
from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.families.config import ACTS, THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, ENCODER, LM_HEAD, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.norms.rms import RMSNorm
from anyformer.positions.buckets import Buckets
from anyformer.slots import Head, Network

ALONE = (ENCODER, TAG)  # heads on the encoder, without a decoder


def settings(c: FamilyConfig, head: str) -> Network:
    """T5's config.json as a spec."""
    c.also(hidden_size="d_model", num_attention_heads="num_heads", num_hidden_layers="num_layers", head_dim="d_kv")
    c.skip("each half says it for itself", "is_decoder")
    c.skip("a limit of training; relative positions have none", "n_positions")
    c.skip("an older version's word for use_cache", "output_past")
    width, heads, size = c.size("d_model", 512), c.size("num_heads", 8), c.size("d_kv", 64)
    dropout = c.get("dropout_rate", 0.1)
    attention = Attention(heads=heads, key_size=size, bias=False, scale="none", dropout=dropout)
    relative = Buckets(
        buckets=c.size("relative_attention_num_buckets", 32), distance=c.size("relative_attention_max_distance", 128)
    )
    norm = RMSNorm(eps=c.get("layer_norm_epsilon", 1e-6))
    block = Block(mixer=attention, relative=relative, feed=feed(c, width, dropout), norm=norm, dropout=dropout)
    embed = Tokens(vocab=c.size("vocab_size", 32128), dropout=dropout)
    depth = c.count("num_layers", 6)
    deep = c.count("num_decoder_layers", None) or depth
    made = answer(c, head, width)
    encoder = Model(embed=embed, stack=Stack(width=width, depth=depth, block=block), init="t5")
    if head in ALONE:
        return encoder.replace(head=made)
    across = block.replace(cross=Cross(heads=heads, key_size=size, bias=False, scale="none", dropout=dropout))
    decoder = Model(embed=embed, stack=Stack(width=width, depth=deep, block=across, causal=True), init="t5")
    return Seq2Seq(encoder=encoder, decoder=decoder, head=made, share="table", init="t5")


def feed(c: FamilyConfig, width: int, dropout: float) -> MLP:
    """`feed_forward_proj` is an activation or gated-<activation>; "gated-gelu" has always meant the tanh form."""
    name = c.get("feed_forward_proj", "relu")
    gated, act = name.startswith("gated-"), name.removeprefix("gated-")
    act = c.get("dense_act_fn", "gelu_new" if name == "gated-gelu" else act)
    gated = c.get("is_gated_act", gated)
    if act not in ACTS or (gated != name.startswith("gated-")):
        raise UserError(
            f"feed_forward_proj = {name!r} with activation {act!r} is not implemented",
            where=c.where,
            fix="use relu or gated-gelu",
        )
    inner = c.size("d_ff", 2048)
    return MLP(width=None if inner == 4 * width else inner, act=ACTS[act], gated=gated, bias=False, dropout=dropout)


def answer(c: FamilyConfig, head: str, width: int) -> Head | None:
    """The head. Version 1.1 is untied and unscaled; the file, not the config, determines whether it is tied."""
    tied = c.get("tie_word_embeddings", True)
    scaled = c.get("scale_decoder_outputs", tied)
    apart = c.differ("lm_head.weight", "shared.weight")
    tied = tied if apart is None else not apart
    dropout = c.get("classifier_dropout", 0.0)
    if head == SPAN and c.labels() != 2:
        raise UserError(f"num_labels {c.labels()} of a span head is not implemented", where=c.where, fix="only 2 is")
    pooled = Pooled(
        classes=c.labels(), pool="last", dense=True, act="tanh", dropout=dropout, input_dropout=dropout
    )  # fmt: skip
    heads: dict[str, Head | None] = {
        BARE: None, ENCODER: None, LM_HEAD: LM(tied=tied, scale=width**-0.5 if scaled else None),
        CLASSIFY: pooled, TAG: TokenHead(classes=c.labels(), dropout=dropout), SPAN: Span(),
    }  # fmt: skip
    return heads[head]


def config(spec: Any, head: str) -> dict[str, Any]:
    """A spec as T5's config.json."""
    assert isinstance(spec, Model if head in ALONE else Seq2Seq)
    encoder = spec if isinstance(spec, Model) else spec.encoder
    stack, first = encoder.plain_stack, encoder.plain_stack.tiles[0]
    assert isinstance(encoder.embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(first.norm, RMSNorm) and isinstance(first.relative, Buckets)
    act, gated = THEIR_ACTS[first.feed.act], first.feed.gated
    # "gated-gelu" means the tanh form in transformers, so the exact form needs its other name.
    act = "gelu_python" if gated and act == "gelu" else act
    named = "gated-gelu" if gated and act == "gelu_new" else f"gated-{act}" if gated else act
    lm = spec.head if isinstance(spec.head, LM) else None
    return {
        "vocab_size": encoder.embed.vocab, "d_model": stack.width, "d_kv": first.mixer.sizes(stack.width).channels,
        "d_ff": first.feed.width or 4 * stack.width, "num_layers": stack.depth, "num_heads": first.mixer.heads,
        "num_decoder_layers": stack.depth if isinstance(spec, Model) else spec.decoder.plain_stack.depth,
        "relative_attention_num_buckets": first.relative.buckets, "dropout_rate": first.dropout,
        "relative_attention_max_distance": first.relative.distance, "layer_norm_epsilon": first.norm.eps,
        "feed_forward_proj": named, "dense_act_fn": act, "is_gated_act": gated,
        "tie_word_embeddings": lm is None or lm.tied, "scale_decoder_outputs": lm is None or lm.scale is not None,
        "is_encoder_decoder": isinstance(spec, Seq2Seq),
    }  # fmt: skip


def half(ours: str, theirs: str, gated: bool, decoder: bool) -> list[tuple[Any, ...]]:
    """The rows of one stack; the feed-forward is a decoder's third sublayer, an encoder's second."""
    layer, block = f"{theirs}.block.{{i}}.layer", f"{ours}stack.blocks.{{i}}"
    feed = f"{layer}.{2 if decoder else 1}"
    wi = f"{feed}.DenseReluDense.wi"
    made: list[tuple[Any, ...]] = [
        (f"{ours}stack.relatives.0.table", f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        (f"{block}.around_mixer.before", f"{layer}.0.layer_norm"),
        (f"{block}.mixer.qkv", tuple(f"{layer}.0.SelfAttention.{part}" for part in "qkv"), QKV),
        (f"{block}.mixer.out", f"{layer}.0.SelfAttention.o"),
        (f"{block}.around_feed.before", f"{feed}.layer_norm"),
        (f"{block}.feed.up", (f"{wi}_0", f"{wi}_1"), GATE) if gated else (f"{block}.feed.up", wi),
        (f"{block}.feed.down", f"{feed}.DenseReluDense.wo"),
        (f"{ours}stack.final", f"{theirs}.final_layer_norm"),
    ]
    if decoder:
        made += [
            (f"{block}.around_cross.before", f"{layer}.1.layer_norm"),
            (f"{block}.cross.q", f"{layer}.1.EncDecAttention.q"),
            (f"{block}.cross.kv", tuple(f"{layer}.1.EncDecAttention.{part}" for part in "kv"), KV),
            (f"{block}.cross.out", f"{layer}.1.EncDecAttention.o"),
        ]
    return made


HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    BARE: (),
    ENCODER: (),
    LM_HEAD: (("head.weight", "lm_head.weight"),),
    CLASSIFY: (("head.dense", "classification_head.dense"), ("head.out", "classification_head.out_proj")),
    TAG: (("head.out", "classifier"),),
    SPAN: (("head.out", "qa_outputs"),),
}
PREFIX = "transformer."  # only two classes in transformers wrap the body


def prefix_of(head: str) -> str:
    return PREFIX if head in (CLASSIFY, TAG) else ""


def table(spec: Any, head: str) -> tuple[Row, ...]:
    """One row per module."""
    encoder, prefix = spec if isinstance(spec, Model) else spec.encoder, prefix_of(head)
    feed, ours = encoder.plain_stack.tiles[0].feed, "" if head in ALONE else "encoder."
    gated = isinstance(feed, MLP) and feed.gated
    made = [(f"{ours}embed.table", f"{prefix}shared"), *half(ours, f"{prefix}encoder", gated, decoder=False)]
    if head not in ALONE:
        made += half("decoder.", f"{prefix}decoder", gated, decoder=True)
    return rows(*made, *HEADS[head])


def tied(spec: Any, head: str) -> dict[str, str]:
    """Second names of the shared embedding."""
    shared = f"{prefix_of(head)}shared.weight"
    names = [f"{prefix_of(head)}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    return dict.fromkeys([*names, *(["lm_head.weight"] if head == LM_HEAD else [])], shared)


FAMILIES = (
    Family(
        model_type="t5",
        heads={
            "T5Model": BARE, "T5ForConditionalGeneration": LM_HEAD, "T5WithLMHeadModel": LM_HEAD,
            "T5EncoderModel": ENCODER, "T5ForSequenceClassification": CLASSIFY, "T5ForTokenClassification": TAG,
            "T5ForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix=PREFIX, tied=tied,
        buffers=(r"(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        spare={BARE: (r"lm_head\.weight", r"qa_outputs\..*"), ENCODER: (r"lm_head\.weight", r"decoder\..*")},
    ),
)  # fmt: skip
