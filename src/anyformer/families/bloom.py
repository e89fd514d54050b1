"""BLOOM (2211.05100)."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.families.config import FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.alibi import Alibi
from anyformer.slots import Head


def settings(c: FamilyConfig, head: str) -> Model:
    """BLOOM's config.json as a spec."""
    c.also(num_hidden_layers="n_layer", num_attention_heads="n_head", n_embed="hidden_size")
    c.only("apply_residual_connection_post_layernorm", False)
    if c.get("slow_but_exact", False) and c.size("pretraining_tp", 1) > 1:
        raise UserError("slow_but_exact with pretraining_tp above 1 leaves out biases there", where=c.where,
                        fix="set slow_but_exact to false")  # fmt: skip
    c.skip("a sharded run, of which one whole is read", "pretraining_tp")
    c.skip("kernels of the library it was trained with", "attention_softmax_in_fp32", "bias_dropout_fusion",
           "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi")  # fmt: skip
    c.skip("a limit of training; ALiBi has none", "seq_length")
    c.skip("tokenizer", "unk_token_id")
    c.only("n_inner", None)
    dropout = c.get("hidden_dropout", 0.0)
    norm = LayerNorm(eps=c.get("layer_norm_epsilon", 1e-5))
    attention = Attention(heads=c.size("n_head", 8), dropout=c.get("attention_dropout", 0.0))
    block = Block(mixer=attention, relative=Alibi(), feed=MLP(act="gelu_tanh"), norm=norm, dropout=dropout)
    stack = Stack(width=c.size("hidden_size", 64), depth=c.count("n_layer", 2), causal=True, block=block)
    return Model(embed=Tokens(vocab=c.size("vocab_size", 250880), norm=norm), stack=stack, head=answer(c, head))


def answer(c: FamilyConfig, head: str) -> Head | None:
    tied = c.get("tie_word_embeddings", True)
    dropout = c.get("classifier_dropout", None)
    dropout = c.get("hidden_dropout", 0.0) if dropout is None else dropout
    heads: dict[str, Head | None] = {
        BARE: None, LM_HEAD: LM(tied=tied), CLASSIFY: Pooled(classes=c.labels(), pool="last", bias=False),
        TAG: TokenHead(classes=c.labels(), dropout=dropout), SPAN: Span(),
    }  # fmt: skip
    return heads[head]


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as BLOOM's config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.norm, LayerNorm)
    return {
        "vocab_size": embed.vocab, "hidden_size": stack.width, "n_layer": stack.depth, "n_head": first.mixer.heads,
        "layer_norm_epsilon": first.norm.eps, "hidden_dropout": first.dropout,
        "attention_dropout": first.mixer.dropout,
        "tie_word_embeddings": not isinstance(spec.head, LM) or spec.head.tied,
    }  # fmt: skip


BODY = (  # fused rows (heads, 3, channels) equal ours without grouped heads
    ("embed.table", "word_embeddings"),
    ("embed.norm", "word_embeddings_layernorm"),
    ("stack.blocks.{i}.around_mixer.before", "h.{i}.input_layernorm"),
    ("stack.blocks.{i}.mixer.qkv", "h.{i}.self_attention.query_key_value"),
    ("stack.blocks.{i}.mixer.out", "h.{i}.self_attention.dense"),
    ("stack.blocks.{i}.around_feed.before", "h.{i}.post_attention_layernorm"),
    ("stack.blocks.{i}.feed.up", "h.{i}.mlp.dense_h_to_4h"),
    ("stack.blocks.{i}.feed.down", "h.{i}.mlp.dense_4h_to_h"),
    ("stack.final", "ln_f"),
)
HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    BARE: (),
    LM_HEAD: (("head.weight", "lm_head.weight"),),
    CLASSIFY: (("head.out", "score"),),
    TAG: (("head.out", "classifier"),),
    SPAN: (("head.out", "qa_outputs"),),
}
PREFIX = "transformer."


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head == BARE else PREFIX
    return rows(*under(prefix, BODY), *HEADS[head])


def tied(spec: Model, head: str) -> dict[str, str]:
    return {"lm_head.weight": f"{PREFIX}word_embeddings.weight"} if head == LM_HEAD else {}


FAMILIES = (
    Family(
        model_type="bloom",
        heads={
            "BloomModel": BARE, "BloomForCausalLM": LM_HEAD, "BloomForSequenceClassification": CLASSIFY,
            "BloomForTokenClassification": TAG, "BloomForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix=PREFIX, tied=tied,
    ),
)  # fmt: skip
