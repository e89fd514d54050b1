"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.checkpoints.operations import TRANSPOSE, TRANSPOSED_THIRDS
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.families.config import THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.learned import Learned
from anyformer.slots import Head


def settings(c: FamilyConfig, head: str) -> Model:
    """GPT-2's config.json as a spec."""
    c.only("add_cross_attention", False)
    c.skip("numerics of training in half precision", "reorder_and_upcast_attn")
    c.skip("heads for two tasks at once, not part of the lectures", "summary_type", "summary_use_proj",
           "summary_activation", "summary_proj_to_labels", "summary_first_dropout")  # fmt: skip
    c.skip("an older name of n_positions", "n_ctx")
    width, depth, heads = c.size("n_embd", 768), c.count("n_layer", 12), c.size("n_head", 12)
    norm = LayerNorm(eps=c.get("layer_norm_epsilon", 1e-5))
    scale = 1.0 if not c.get("scale_attn_weights", True) else (width / heads) ** -0.5
    by_layer = c.get("scale_attn_by_inverse_layer_idx", False)
    plain: Any = "sqrt" if c.get("scale_attn_weights", True) else "none"
    attention = Attention(heads=heads, scale=plain, dropout=c.get("attn_pdrop", 0.1))
    inner = c.size("n_inner", None)
    feed = MLP(width=None if inner == 4 * width else inner, act=c.act("activation_function", "gelu_new"))
    block = Block(mixer=attention, feed=feed, norm=norm, dropout=c.get("resid_pdrop", 0.1))
    blocks: Any = block
    if by_layer:  # each layer's attention scores are divided by its number
        mixers = [attention.replace(scale=scale / (i + 1)) for i in range(depth)]
        blocks = tuple(block.replace(mixer=mixer) for mixer in mixers)
    embed = Tokens(
        vocab=c.size("vocab_size", 50257),
        position=Learned(c.size("n_positions", 1024)),
        dropout=c.get("embd_pdrop", 0.1),
    )
    stack = Stack(width=width, depth=depth, causal=True, block=blocks)
    return Model(embed=embed, stack=stack, head=answer(c, head), init="gpt2")


def answer(c: FamilyConfig, head: str) -> Head | None:
    tied = c.get("tie_word_embeddings", True)
    dropout = c.get("classifier_dropout", None) or 0.1
    c.skip("dropout of one head", "hidden_dropout")
    heads: dict[str, Head | None] = {
        BARE: None, LM_HEAD: LM(tied=tied), CLASSIFY: Pooled(classes=c.labels(), pool="last", bias=False),
        TAG: TokenHead(classes=c.labels(), dropout=dropout), SPAN: Span(),
    }  # fmt: skip
    return heads[head]


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as GPT-2's config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(embed.position, Learned) and isinstance(first.norm, LayerNorm)
    scale = first.mixer.scale
    return {
        "vocab_size": embed.vocab, "n_positions": embed.position.length, "n_embd": stack.width, "n_layer": stack.depth,
        "n_head": first.mixer.heads, "n_inner": first.feed.width, "activation_function": THEIR_ACTS[first.feed.act],
        "layer_norm_epsilon": first.norm.eps, "resid_pdrop": first.dropout, "embd_pdrop": embed.dropout,
        "attn_pdrop": first.mixer.dropout, "scale_attn_weights": scale != "none",
        "scale_attn_by_inverse_layer_idx": isinstance(scale, float) and len(stack.tiles) > 1,
        "tie_word_embeddings": not isinstance(spec.head, LM) or spec.head.tied,
    }  # fmt: skip


BODY = (
    ("embed.table", "wte"),
    ("embed.position.table", "wpe"),
    ("stack.blocks.{i}.around_mixer.before", "h.{i}.ln_1"),
    ("stack.blocks.{i}.mixer.qkv", "h.{i}.attn.c_attn", TRANSPOSED_THIRDS),
    ("stack.blocks.{i}.mixer.out", "h.{i}.attn.c_proj", TRANSPOSE),
    ("stack.blocks.{i}.around_feed.before", "h.{i}.ln_2"),
    ("stack.blocks.{i}.feed.up", "h.{i}.mlp.c_fc", TRANSPOSE),
    ("stack.blocks.{i}.feed.down", "h.{i}.mlp.c_proj", TRANSPOSE),
    ("stack.final", "ln_f"),
)
HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    BARE: (),
    LM_HEAD: (("head.weight", "lm_head.weight"),),
    CLASSIFY: (("head.out", "score"),),
    TAG: (("head.out", "classifier"),),
    SPAN: (("head.out", "qa_outputs"),),
}


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head == BARE else "transformer."
    return rows(*under(prefix, BODY), *HEADS[head])


FAMILIES = (
    Family(
        model_type="gpt2",
        heads={
            "GPT2Model": BARE, "GPT2LMHeadModel": LM_HEAD, "GPT2ForSequenceClassification": CLASSIFY,
            "GPT2ForTokenClassification": TAG, "GPT2ForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix="transformer.",
        buffers=(r".*\.attn\.(bias|masked_bias)",),
        tied=lambda spec, head: {"lm_head.weight": "transformer.wte.weight"},
    ),
)  # fmt: skip
