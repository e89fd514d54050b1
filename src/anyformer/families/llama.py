"""Llama (2302.13971) and its nearest relatives: Mistral, Qwen2, Qwen3, and Arcee, whose feed-forward has no gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.checkpoints.operations import GATE, QKV
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.families.config import THEIR_ACTS, FamilyConfig, rope_parameters
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Pooled, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.norms.rms import RMSNorm
from anyformer.positions.rope import DynamicScaling, Rope
from anyformer.slots import Head

DEFAULTS: dict[str, dict[str, Any]] = {  # where the config classes of the five differ
    "llama": {"intermediate": 11008, "kv": None, "length": 2048, "vocab": 32000, "eps": 1e-6, "window": None},
    "mistral": {"intermediate": 14336, "kv": 8, "length": 131072, "vocab": 32000, "eps": 1e-6, "window": 4096},
    "qwen2": {"intermediate": 22016, "kv": 32, "length": 32768, "vocab": 151936, "eps": 1e-6, "window": 4096},
    "qwen3": {"intermediate": 22016, "kv": 32, "length": 32768, "vocab": 151936, "eps": 1e-6, "window": 4096},
    "arcee": {"intermediate": 18432, "kv": None, "length": 4096, "vocab": 32000, "eps": 1e-5, "window": None},
}
BIASED = ("llama", "qwen3", "arcee")  # families with an `attention_bias` field


def settings(c: FamilyConfig, head: str, kind: str) -> Model:
    """A config.json of one of the five as a spec."""
    default = DEFAULTS[kind]
    c.only("pretraining_tp", 1)
    c.skip("a limit of training; rotary positions have none", "max_position_embeddings")
    width, depth, heads = (
        c.size("hidden_size", 2560 if kind == "arcee" else 4096),
        c.count("num_hidden_layers", 32),
        c.size("num_attention_heads", 32),
    )
    kv_heads = c.size("num_key_value_heads", default["kv"]) or heads
    channels = c.size("head_dim", 128 if kind == "qwen3" else None) or width // heads
    theta, _, scaling = c.rope()
    norm = RMSNorm(eps=c.get("rms_norm_eps", default["eps"]))
    bias = c.get("attention_bias", False) if kind in BIASED else kind == "qwen2"
    attention = Attention(
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        key_size=None if channels * heads == width else channels,
        bias=bias, out_bias=False if kind == "qwen2" else None, qk_norm=norm if kind == "qwen3" else None,
        dropout=c.get("attention_dropout", 0.0),
    )  # fmt: skip
    relative = Rope(theta=theta, scaling=scaling)
    feed = MLP(
        width=c.size("intermediate_size", default["intermediate"]),
        act=c.act("hidden_act", "relu2" if kind == "arcee" else "silu"),
        gated=kind != "arcee",
        bias=c.get("mlp_bias", False) if kind in ("llama", "arcee") else False,
    )
    block = Block(mixer=attention, feed=feed, norm=norm, relative=relative)
    stack = Stack(width=width, depth=depth, causal=True, block=windowed(c, kind, block, depth))
    return Model(embed=Tokens(vocab=c.size("vocab_size", default["vocab"])), stack=stack, head=answer(c, head))


def windowed(c: FamilyConfig, kind: str, block: Block, depth: int) -> Any:
    """The block, or one per layer if only some have a sliding window."""
    if kind in ("llama", "arcee"):
        return block
    width = c.get("sliding_window", None) if "sliding_window" in c.data else DEFAULTS[kind]["window"]
    near = block.replace(mixer=block.mixer.replace(window=width))
    if kind == "mistral":
        return near
    on, first = c.get("use_sliding_window", False), c.get("max_window_layers", 28)
    kinds = c.get("layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if on and i >= first else "full_attention" for i in range(depth)]
    if width is None or "sliding_attention" not in kinds or not on:
        return block
    return (
        near
        if set(kinds) == {"sliding_attention"}
        else tuple(near if k == "sliding_attention" else block for k in kinds)
    )


def answer(c: FamilyConfig, head: str) -> Head | None:
    tied = c.get("tie_word_embeddings", False)
    heads: dict[str, Head | None] = {
        BARE: None, LM_HEAD: LM(tied=tied), CLASSIFY: Pooled(classes=c.labels(), pool="last", bias=False),
        TAG: TokenHead(classes=c.labels(), dropout=0.1), SPAN: Span(),
    }  # fmt: skip
    return heads[head]


def config(spec: Model, head: str, kind: str) -> dict[str, Any]:
    """A spec as their config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(first.norm, RMSNorm) and isinstance(first.relative, Rope)
    sizes = first.mixer.sizes(stack.width)
    share = 1.0 if first.relative.width is None else first.relative.width / sizes.channels
    windows = [layer.mixer.window for layer in stack.layers if isinstance(layer.mixer, Attention)]
    made: dict[str, Any] = {
        "vocab_size": embed.vocab, "hidden_size": stack.width, "intermediate_size": first.feed.width or 4 * stack.width,
        "num_hidden_layers": stack.depth, "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.groups,
        "head_dim": sizes.channels, "hidden_act": THEIR_ACTS[first.feed.act], "rms_norm_eps": first.norm.eps,
        "rope_parameters": rope_parameters(first.relative.theta, first.relative.scaling, share),
        "attention_dropout": first.mixer.dropout,
        "tie_word_embeddings": isinstance(spec.head, LM) and spec.head.tied,
    }  # fmt: skip
    if isinstance(first.relative.scaling, DynamicScaling):
        made["max_position_embeddings"] = first.relative.scaling.original
    if kind in BIASED:
        made["attention_bias"] = first.mixer.bias
    if kind in ("llama", "arcee"):
        made["mlp_bias"] = first.feed.bias
    if kind == "mistral":
        made["sliding_window"] = windows[0]
    if kind in ("qwen2", "qwen3"):
        made |= {"use_sliding_window": any(windows), "sliding_window": max((w for w in windows if w), default=None),
                 "layer_types": ["sliding_attention" if w else "full_attention" for w in windows]}  # fmt: skip
    return made


BODY = (
    ("embed.table", "embed_tokens"),
    ("stack.blocks.{i}.around_mixer.before", "layers.{i}.input_layernorm"),
    ("stack.blocks.{i}.mixer.qkv", tuple(f"layers.{{i}}.self_attn.{part}_proj" for part in "qkv"), QKV),
    ("stack.blocks.{i}.mixer.out", "layers.{i}.self_attn.o_proj"),
    ("stack.blocks.{i}.mixer.q_norm", "layers.{i}.self_attn.q_norm"),
    ("stack.blocks.{i}.mixer.k_norm", "layers.{i}.self_attn.k_norm"),
    ("stack.blocks.{i}.around_feed.before", "layers.{i}.post_attention_layernorm"),
    ("stack.blocks.{i}.feed.down", "layers.{i}.mlp.down_proj"),
    ("stack.final", "norm"),
)
GATED = (("stack.blocks.{i}.feed.up", ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"), GATE),)
UNGATED = (("stack.blocks.{i}.feed.up", "layers.{i}.mlp.up_proj"),)
HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    BARE: (),
    LM_HEAD: (("head.weight", "lm_head.weight"),),
    CLASSIFY: (("head.out", "score"),),
    TAG: (("head.out", "score"),),
    SPAN: (("head.out", "qa_outputs"),),
}


def table(spec: Model, head: str, kind: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    # The question-answering class has another prefix than the others.
    prefix = {BARE: "", SPAN: "transformer."}.get(head, "model.")
    return rows(*under(prefix, (*BODY, *(UNGATED if kind == "arcee" else GATED))), *HEADS[head])


def family(kind: str, name: str) -> Family:
    read: Callable[..., Any] = partial(settings, kind=kind)
    return Family(
        model_type=kind,
        heads={
            f"{name}Model": BARE, f"{name}ForCausalLM": LM_HEAD, f"{name}ForSequenceClassification": CLASSIFY,
            f"{name}ForTokenClassification": TAG, f"{name}ForQuestionAnswering": SPAN,
        },
        settings=read, config=partial(config, kind=kind), table=partial(table, kind=kind), prefix="model.",
        buffers=(r".*rotary_emb\.inv_freq",),
        tied=lambda spec, head: {"lm_head.weight": "model.embed_tokens.weight"},
    )  # fmt: skip


FAMILIES = tuple(family(name.lower(), name) for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Arcee"))
