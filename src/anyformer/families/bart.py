"""BART (1910.13461). Marian's encoder and decoder differ only in embeddings and norms, and are built here too."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import BATCHED, COPIES, KV, QKV
from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.families.config import THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.norms.layer import LayerNorm
from anyformer.positions.learned import Learned
from anyformer.slots import Head

SIDES = ("encoder", "decoder")
PREFIX = "model."


def body(c: FamilyConfig, side: str, embed: Tokens) -> Model:
    """The encoder or decoder, post-norm; they may differ in depth, heads and inner width."""
    width, heads = c.size("d_model", 1024), c.size(f"{side}_attention_heads", 16)
    inner = c.size(f"{side}_ffn_dim", 4096)
    attention_dropout = c.get("attention_dropout", 0.0)
    feed = MLP(
        width=None if inner == 4 * width else inner,
        act=c.act("activation_function", "gelu"),
        dropout=c.get("activation_dropout", 0.0),
    )
    block = Block(mixer=Attention(heads=heads, dropout=attention_dropout), feed=feed, norm=LayerNorm(), place="post",
                  dropout=c.get("dropout", 0.1))  # fmt: skip
    if side == "decoder":
        block = block.replace(cross=Cross(heads=heads, dropout=attention_dropout))
    stack = Stack(width=width, depth=c.count(f"{side}_layers", 12), block=block, causal=side == "decoder")
    return Model(embed=embed, stack=stack, init="bert")


def common(c: FamilyConfig) -> None:
    """Fields of both families that have two names or no effect."""
    c.also(num_attention_heads="encoder_attention_heads", hidden_size="d_model", num_hidden_layers="encoder_layers")
    c.skip("training", "encoder_layerdrop", "decoder_layerdrop", "init_std", "classif_dropout")
    c.skip("each half says it for itself", "is_decoder")
    c.skip("an older version's, without effect now", "_num_labels", "add_bias_logits", "add_final_layer_norm",
           "extra_pos_embeddings", "force_bos_token_to_be_generated", "normalize_before", "normalize_embedding",
           "output_past", "save_step", "static_position_embeddings")  # fmt: skip


def settings(c: FamilyConfig, head: str) -> Seq2Seq:
    """BART's config.json as a spec."""
    common(c)
    position = Learned(c.size("max_position_embeddings", 1024), offset=2)
    embed = Tokens(vocab=c.size("vocab_size", 50265), position=position, norm=LayerNorm(),
                   scale=c.get("scale_embedding", False), dropout=c.get("dropout", 0.1))  # fmt: skip
    tied, dropout = c.get("tie_word_embeddings", True), c.get("classifier_dropout", 0.0)
    pooled = Pooled(
        classes=c.labels(3), pool="last", dense=True, act="tanh", dropout=dropout, input_dropout=dropout
    )  # fmt: skip
    heads: dict[str, Head | None] = {
        BARE: None, LM_HEAD: LM(tied=tied, bias=True), CLASSIFY: pooled, SPAN: Span(),
    }  # fmt: skip
    encoder, decoder = (body(c, side, embed) for side in SIDES)
    return Seq2Seq(encoder=encoder, decoder=decoder, head=heads[head], share="table" if tied else "none", init="bert")


def halves(spec: Seq2Seq) -> dict[str, Any]:
    """Config fields of encoder and decoder, common to both families."""
    made: dict[str, Any] = {"d_model": spec.encoder.stack.width}
    for side, model in zip(SIDES, (spec.encoder, spec.decoder), strict=True):
        embed, stack, first = model.embed, model.plain_stack, model.plain_stack.tiles[0]
        assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
        made |= {
            f"{side}_layers": stack.depth, f"{side}_attention_heads": first.mixer.heads,
            f"{side}_ffn_dim": first.feed.width or 4 * stack.width, "dropout": first.dropout,
            "attention_dropout": first.mixer.dropout, "activation_dropout": first.feed.dropout,
            "activation_function": THEIR_ACTS[first.feed.act], "scale_embedding": embed.scale,
        }  # fmt: skip
    return made


def config(spec: Seq2Seq, head: str) -> dict[str, Any]:
    """A spec as BART's config.json."""
    embed = spec.encoder.embed
    assert isinstance(embed, Tokens) and isinstance(embed.position, Learned)
    return {
        **halves(spec), "vocab_size": embed.vocab, "max_position_embeddings": embed.position.length,
        "tie_word_embeddings": spec.share == "table",
    }  # fmt: skip


def half(side: str, prefix: str) -> list[tuple[Any, ...]]:
    """The rows of one stack."""
    ours, theirs = f"{side}.stack.blocks.{{i}}", f"{prefix}{side}.layers.{{i}}"
    made: list[tuple[Any, ...]] = [
        (f"{ours}.mixer.qkv", tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"), QKV),
        (f"{ours}.mixer.out", f"{theirs}.self_attn.out_proj"),
        (f"{ours}.around_mixer.after", f"{theirs}.self_attn_layer_norm"),
        (f"{ours}.feed.up", f"{theirs}.fc1"),
        (f"{ours}.feed.down", f"{theirs}.fc2"),
        (f"{ours}.around_feed.after", f"{theirs}.final_layer_norm"),
    ]
    if side == "decoder":
        made += [
            (f"{ours}.cross.q", f"{theirs}.encoder_attn.q_proj"),
            (f"{ours}.cross.kv", tuple(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"), KV),
            (f"{ours}.cross.out", f"{theirs}.encoder_attn.out_proj"),
            (f"{ours}.around_cross.after", f"{theirs}.encoder_attn_layer_norm"),
        ]
    return made


HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    BARE: (),
    LM_HEAD: (("head.weight", "lm_head.weight"), ("head.bias", "final_logits_bias", BATCHED, True)),
    CLASSIFY: (("head.dense", "classification_head.dense"), ("head.out", "classification_head.out_proj")),
    SPAN: (("head.out", "qa_outputs"),),
}


def table(spec: Seq2Seq, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head == BARE else PREFIX
    tables: list[tuple[Any, ...]] = [("encoder.embed.table", f"{prefix}shared")]
    if spec.share == "none":  # transformers does not use `shared` then, but requires it in the file
        tables = [("encoder.embed.table", (f"{prefix}encoder.embed_tokens", f"{prefix}shared"), COPIES),
                  ("decoder.embed.table", f"{prefix}decoder.embed_tokens")]  # fmt: skip
    for side in SIDES:
        tables += [(f"{side}.embed.position.table", f"{prefix}{side}.embed_positions"),
                   (f"{side}.embed.norm", f"{prefix}{side}.layernorm_embedding")]  # fmt: skip
    return rows(*tables, *half("encoder", prefix), *half("decoder", prefix), *HEADS[head])


def tied(spec: Seq2Seq, head: str) -> dict[str, str]:
    """Second names of the shared embedding."""
    prefix = "" if head == BARE else PREFIX
    if spec.share == "none":
        return {}
    names = [f"{prefix}{side}.embed_tokens.weight" for side in SIDES]
    return dict.fromkeys([*names, *(["lm_head.weight"] if head == LM_HEAD else [])], f"{prefix}shared.weight")


FAMILIES = (
    Family(
        model_type="bart",
        heads={
            "BartModel": BARE, "BartForConditionalGeneration": LM_HEAD, "BartForSequenceClassification": CLASSIFY,
            "BartForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix=PREFIX, tied=tied,
        buffers=(r"(model\.)?(encoder|decoder)\.version",),
        # A bare model's file opened with a head has its copies of the embedding without the prefix.
        spare={LM_HEAD: (r"(encoder|decoder)\.embed_tokens\.weight",)},
    ),
)  # fmt: skip
