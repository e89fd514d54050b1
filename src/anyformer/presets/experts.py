"""Language models whose feeds are mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.experts import Experts
from anyformer.feeds.mlp import MLP
from anyformer.heads.lm import LM
from anyformer.mixers.attention import Attention
from anyformer.norms.rms import RMSNorm
from anyformer.positions.buckets import Buckets
from anyformer.positions.rope import Rope


def switch(width: int, depth: int, heads: int, inner: int, experts: int, *, vocab: int = 32128) -> Model:
    """T5's parts in a decoder; in every other block each token goes to one of the experts (2101.03961)."""
    plain = Block(
        mixer=Attention(heads=heads, bias=False), feed=MLP(width=inner, act="relu", bias=False), norm=RMSNorm(eps=1e-6),
        relative=Buckets(),
    )  # fmt: skip
    routed = plain.replace(feed=Experts(count=experts, top=1, width=inner, act="relu", bias=False))
    stack = Stack(width=width, depth=depth, causal=True, block=(plain, routed))
    return Model(embed=Tokens(vocab=vocab), stack=stack, head=LM(tied=True))


def mixtral(
    width: int, depth: int, heads: int, kv_heads: int, inner: int, experts: int, *, vocab: int = 32000
) -> Model:
    """Mistral's parts; in every block each token goes to two of the experts (2401.04088, 8x7B)."""
    block = Block(
        mixer=Attention(heads=heads, kv_heads=kv_heads, bias=False), relative=Rope(theta=1e6), norm=RMSNorm(eps=1e-5),
        feed=Experts(count=experts, top=2, width=inner, act="silu", gated=True, bias=False, balance=0.02),
    )  # fmt: skip
    stack = Stack(width=width, depth=depth, causal=True, block=block)
    return Model(embed=Tokens(vocab=vocab), stack=stack, head=LM(tied=False))


PRESETS: dict[str, Callable[[], Model]] = {
    "switch-small": partial(switch, 512, 8, 8, 2048, 8),
    "switch-small-tiny": partial(switch, 128, 4, 4, 192, 4, vocab=512),
    "mixtral": partial(mixtral, 4096, 32, 32, 8, 14336, 8),
    "mixtral-tiny": partial(mixtral, 128, 3, 4, 2, 128, 4, vocab=512),
}
