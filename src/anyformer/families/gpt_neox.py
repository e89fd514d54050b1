"""GPT-NeoX (2204.06745), also the format of Pythia."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.families.config import THEIR_ACTS, FamilyConfig, rope_parameters
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.rope import DynamicScaling, Rope, YarnScaling
from anyformer.slots import Head


def settings(c: FamilyConfig, head: str) -> Model:
    """GPT-NeoX's config.json as a spec."""
    c.also(rotary_pct="partial_rotary_factor", rotary_emb_base="rope_theta")
    c.skip("a limit of training; rotary positions have none", "max_position_embeddings")
    c.skip("always one", "is_decoder")
    width, heads, dropout = c.size("hidden_size", 6144), c.size("num_attention_heads", 64), c.get("hidden_dropout", 0.0)
    norm = LayerNorm(eps=c.get("layer_norm_eps", 1e-5))
    attention = Attention(heads=heads, bias=c.get("attention_bias", True), dropout=c.get("attention_dropout", 0.0))
    inner = c.size("intermediate_size", 24576)
    feed = MLP(width=None if inner == 4 * width else inner, act=c.act("hidden_act", "gelu"))
    order: Any = "parallel" if c.get("use_parallel_residual", True) else "serial"
    block = Block(mixer=attention, relative=rope(c, width // heads), feed=feed, norm=norm, order=order, dropout=dropout)
    stack = Stack(width=width, depth=c.count("num_hidden_layers", 44), causal=True, block=block)
    embed = Tokens(vocab=c.size("vocab_size", 50432), dropout=dropout)
    return Model(embed=embed, stack=stack, head=answer(c, head))


def rope(c: FamilyConfig, channels: int) -> Rope:
    """Rotary positions on a fraction of each head's channels."""
    theta, share, scaling = c.rope(default_share=0.25, partial=True)
    turned = int(channels * share)
    # A single channel is rotated as a pair in transformers, at the same angle as a pair here, except under YaRN.
    if turned < 1 or (turned % 2 and (turned != 1 or isinstance(scaling, YarnScaling))):
        raise UserError(f"rotary_pct = {share} turns {turned} of {channels} channels, which are not pairs",
                        where=c.where, fix="pairs are implemented")  # fmt: skip
    turned = max(turned, 2)
    return Rope(theta=theta, width=None if turned == channels else turned, scaling=scaling)


def answer(c: FamilyConfig, head: str) -> Head | None:
    tied, dropout = c.get("tie_word_embeddings", False), c.get("classifier_dropout", 0.1)
    heads: dict[str, Head | None] = {
        BARE: None, LM_HEAD: LM(tied=tied), CLASSIFY: Pooled(classes=c.labels(), pool="last", bias=False),
        TAG: TokenHead(classes=c.labels(), dropout=dropout), SPAN: Span(),
    }  # fmt: skip
    return heads[head]


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as GPT-NeoX's config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(first.norm, LayerNorm) and isinstance(first.relative, Rope)
    channels = first.mixer.sizes(stack.width).channels
    turned = channels if first.relative.width is None else first.relative.width
    share = turned / channels
    share = share if int(channels * share) == turned else (turned + 0.5) / channels  # transformers truncates
    rotary = {"partial_rotary_factor": share}
    made: dict[str, Any] = {
        "vocab_size": embed.vocab, "hidden_size": stack.width, "num_hidden_layers": stack.depth,
        "num_attention_heads": first.mixer.heads, "intermediate_size": first.feed.width or 4 * stack.width,
        "hidden_act": THEIR_ACTS[first.feed.act], "layer_norm_eps": first.norm.eps, "hidden_dropout": first.dropout,
        "attention_dropout": first.mixer.dropout, "attention_bias": first.mixer.bias,
        "use_parallel_residual": first.order == "parallel",
        "rope_parameters": rope_parameters(first.relative.theta, first.relative.scaling) | rotary,
        "tie_word_embeddings": isinstance(spec.head, LM) and spec.head.tied,
    }  # fmt: skip
    if isinstance(first.relative.scaling, DynamicScaling):
        made["max_position_embeddings"] = first.relative.scaling.original
    return made


BODY = (  # fused rows (heads, 3, channels) equal ours without grouped heads
    ("embed.table", "embed_in"),
    ("stack.blocks.{i}.around_mixer.before", "layers.{i}.input_layernorm"),
    ("stack.blocks.{i}.mixer.qkv", "layers.{i}.attention.query_key_value"),
    ("stack.blocks.{i}.mixer.out", "layers.{i}.attention.dense"),
    ("stack.blocks.{i}.around_feed.before", "layers.{i}.post_attention_layernorm"),
    ("stack.blocks.{i}.feed.up", "layers.{i}.mlp.dense_h_to_4h"),
    ("stack.blocks.{i}.feed.down", "layers.{i}.mlp.dense_4h_to_h"),
    ("stack.final", "final_layer_norm"),
)
HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    BARE: (),
    LM_HEAD: (("head.weight", "embed_out.weight"),),
    CLASSIFY: (("head.out", "score"),),
    TAG: (("head.out", "classifier"),),
    SPAN: (("head.out", "qa_outputs"),),
}
PREFIX = "gpt_neox."


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head == BARE else PREFIX
    return rows(*under(prefix, BODY), *HEADS[head])


def tied(spec: Model, head: str) -> dict[str, str]:
    """Second names of a tied head: lm_head in newer code, embed_out in files."""
    table = f"{PREFIX}embed_in.weight"
    if head != LM_HEAD:
        return {}
    own = isinstance(spec.head, LM) and not spec.head.tied
    return {"lm_head.weight": "embed_out.weight" if own else table, "embed_out.weight": table}


FAMILIES = (
    Family(
        model_type="gpt_neox",
        heads={
            "GPTNeoXModel": BARE, "GPTNeoXForCausalLM": LM_HEAD, "GPTNeoXForSequenceClassification": CLASSIFY,
            "GPTNeoXForTokenClassification": TAG, "GPTNeoXForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix=PREFIX, tied=tied,
        buffers=(r".*\.attention\.(bias|masked_bias)", r".*rotary_emb\.inv_freq"),
    ),
)  # fmt: skip
