"""Mixtral (2401.04088): Mistral's blocks with a mixture of experts as feed-forward."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.checkpoints.operations import GATE
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.families.config import THEIR_ACTS, FamilyConfig, rope_parameters
from anyformer.families.family import BARE, CLASSIFY, LM_HEAD, SPAN, TAG, Family
from anyformer.families.llama import BODY, HEADS, answer
from anyformer.feeds.experts import Experts
from anyformer.heads import LM
from anyformer.mixers.attention import Attention
from anyformer.norms.rms import RMSNorm
from anyformer.positions.rope import DynamicScaling, Rope


def settings(c: FamilyConfig, head: str) -> Model:
    """A config.json as a spec."""
    c.also(num_experts="num_local_experts")
    c.skip("a limit of training; rotary positions have none", "max_position_embeddings")
    c.skip("shape of their answer; the loss of balance is always computed here", "output_router_logits")
    c.only("router_jitter_noise", 0.0)
    width, heads = c.size("hidden_size", 4096), c.size("num_attention_heads", 32)
    kv_heads = c.size("num_key_value_heads", 8)
    channels = c.size("head_dim", None) or width // heads
    theta, _, scaling = c.rope(1e6)
    attention = Attention(
        heads=heads, kv_heads=None if kv_heads == heads else kv_heads,
        key_size=None if channels * heads == width else channels, bias=False,
        window=c.size("sliding_window", None), dropout=c.get("attention_dropout", 0.0),
    )  # fmt: skip
    top = c.size("num_experts_per_tok", 2)
    feed = Experts(
        count=c.count("num_local_experts", 8), top=top, width=c.size("intermediate_size", 14336),
        act=c.act("hidden_act", "silu"), gated=True, bias=False, balance=c.get("router_aux_loss_coef", 0.001),
        renormalise=True if top == 1 else None,  # transformers sets a single weight to 1
    )  # fmt: skip
    relative = Rope(theta=theta, scaling=scaling)
    norm = RMSNorm(eps=c.get("rms_norm_eps", 1e-5))
    block = Block(mixer=attention, feed=feed, norm=norm, relative=relative)
    stack = Stack(width=width, depth=c.count("num_hidden_layers", 32), causal=True, block=block)
    return Model(embed=Tokens(vocab=c.size("vocab_size", 32000)), stack=stack, head=answer(c, head))


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as their config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, Experts)
    assert isinstance(first.norm, RMSNorm) and isinstance(first.relative, Rope)
    sizes, feed = first.mixer.sizes(stack.width), first.feed
    share = 1.0 if first.relative.width is None else first.relative.width / sizes.channels
    made: dict[str, Any] = {
        "vocab_size": embed.vocab, "hidden_size": stack.width, "intermediate_size": feed.width or 4 * stack.width,
        "num_hidden_layers": stack.depth, "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.groups,
        "head_dim": sizes.channels, "hidden_act": THEIR_ACTS[feed.act], "rms_norm_eps": first.norm.eps,
        "rope_parameters": rope_parameters(first.relative.theta, first.relative.scaling, share),
        "attention_dropout": first.mixer.dropout, "sliding_window": first.mixer.window,
        "num_local_experts": feed.count, "num_experts_per_tok": feed.top, "router_aux_loss_coef": feed.balance,
        "tie_word_embeddings": isinstance(spec.head, LM) and spec.head.tied,
    }  # fmt: skip
    if isinstance(first.relative.scaling, DynamicScaling):
        made["max_position_embeddings"] = first.relative.scaling.original
    return made


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """Llama's rows with experts as feed-forward; w1 is the gate, w3 the value, w2 the down projection."""
    feed = spec.plain_stack.tiles[0].feed
    assert isinstance(feed, Experts)
    ours, theirs = "stack.blocks.{i}.feed", "layers.{i}.block_sparse_moe"
    body: list[tuple[Any, ...]] = [row for row in BODY if not row[0].startswith(ours)]
    body.append((f"{ours}.router", f"{theirs}.gate"))
    for e in range(feed.count):
        at, there = f"{ours}.experts.{e}", f"{theirs}.experts.{e}"
        body += [(f"{at}.up", (f"{there}.w1", f"{there}.w3"), GATE), (f"{at}.down", f"{there}.w2")]
    return rows(*under("" if head == BARE else "model.", body), *HEADS[head])


FAMILIES = (
    Family(
        model_type="mixtral",
        heads={
            "MixtralModel": BARE, "MixtralForCausalLM": LM_HEAD, "MixtralForSequenceClassification": CLASSIFY,
            "MixtralForTokenClassification": TAG, "MixtralForQuestionAnswering": SPAN,
        },
        settings=settings, config=config, table=table, prefix="model.", buffers=(r".*rotary_emb\.inv_freq",),
        tied=lambda spec, head: {"lm_head.weight": "model.embed_tokens.weight"},
    ),
)  # fmt: skip
