"""Decoder-only language models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP
from anyformer.heads.lm import LM
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.rms import RMSNorm
from anyformer.positions.alibi import Alibi
from anyformer.positions.learned import Learned
from anyformer.positions.rope import Rope


def gpt2(width: int, depth: int, heads: int, *, vocab: int = 50257, length: int = 1024, dropout: float = 0.1) -> Model:
    """Pre-norm, learned positions, tied head (Radford et al. 2019)."""
    block = Block(mixer=Attention(heads=heads, dropout=dropout), feed=MLP(act="gelu_tanh"), dropout=dropout)
    return Model(embed=Tokens(vocab=vocab, position=Learned(length), dropout=dropout),
                 stack=Stack(width=width, depth=depth, causal=True, block=block), head=LM(tied=True))  # fmt: skip


def llama(
    width: int, depth: int, heads: int, kv_heads: int, inner: int, *, vocab: int, theta: float = 1e4, eps: float = 1e-5
) -> Model:
    """Pre-norm RMSNorm, rotary positions, gated SiLU, no biases, head of its own (2302.13971)."""
    block = Block(
        mixer=Attention(heads=heads, kv_heads=kv_heads, bias=False), relative=Rope(theta=theta),
        feed=MLP(width=inner, act="silu", gated=True, bias=False), norm=RMSNorm(eps=eps),
    )  # fmt: skip
    return Model(
        embed=Tokens(vocab=vocab), stack=Stack(width=width, depth=depth, causal=True, block=block), head=LM(tied=False)
    )


def bloom(width: int, depth: int, heads: int, *, vocab: int = 250880) -> Model:
    """ALiBi, a norm after the embedding, tied head (2211.05100)."""
    block = Block(mixer=Attention(heads=heads), relative=Alibi(), feed=MLP(act="gelu_tanh"))
    return Model(embed=Tokens(vocab=vocab, norm=LayerNorm()),
                 stack=Stack(width=width, depth=depth, causal=True, block=block), head=LM(tied=True))  # fmt: skip


PRESETS: dict[str, Callable[[], Model]] = {
    "gpt2": partial(gpt2, 768, 12, 12),
    "gpt2-medium": partial(gpt2, 1024, 24, 16),
    "gpt2-large": partial(gpt2, 1280, 36, 20),
    "gpt2-xl": partial(gpt2, 1600, 48, 25),
    "gpt2-tiny": partial(gpt2, 128, 4, 4, vocab=512, length=256, dropout=0.0),
    "llama2-7b": partial(llama, 4096, 32, 32, 32, 11008, vocab=32000),
    "llama3-8b": partial(llama, 4096, 32, 32, 8, 14336, vocab=128256, theta=5e5),
    "llama3-70b": partial(llama, 8192, 80, 64, 8, 28672, vocab=128256, theta=5e5),
    "llama2-7b-tiny": partial(llama, 128, 4, 4, 4, 352, vocab=512),
    "llama3-8b-tiny": partial(llama, 128, 4, 4, 2, 384, vocab=512, theta=5e5),
    "bloom-560m": partial(bloom, 1024, 24, 16),
    "bloom-560m-tiny": partial(bloom, 128, 4, 4, vocab=512),
}
for size in ("medium", "large", "xl"):
    PRESETS[f"gpt2-{size}-tiny"] = PRESETS["gpt2-tiny"]
PRESETS["llama3-70b-tiny"] = PRESETS["llama3-8b-tiny"]
