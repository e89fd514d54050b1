"""Hyena writes: cached = uncached and batched = single, past its longest lag too."""

from __future__ import annotations

from typing import Any

import pytest

from anyformer import LM, Block, Hyena, Model, Stack, Tokens
from anyformer.generation import Generation, generate
from tests.generation.nets import PROMPTS, VOCAB, WIDTH, build, doubt, padded, rows, same, uncached

NEW = 12
MIXERS = {"order-2": Hyena(longest=64), "order-3": Hyena(order=3, longest=64), "short-lags": Hyena(longest=5)}
WAYS = {
    "greedy": Generation(max_new_tokens=NEW, eos_token_id=3),
    "sampled": Generation(max_new_tokens=NEW, eos_token_id=3, do_sample=True, temperature=1.3, seed=11),
}


def writer(mixer: Hyena) -> Any:
    stack = Stack(width=WIDTH, depth=2, causal=True, block=Block(mixer=mixer))
    return build(Model(embed=Tokens(vocab=VOCAB), stack=stack, head=LM(tied=False), init="xavier"), scale=1.2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_cached_is_uncached(mixer: str, way: str) -> None:
    net, settings = writer(MIXERS[mixer]), WAYS[way]
    texts = []
    for prompt in PROMPTS:
        wanted = uncached(net, prompt, settings)
        got = rows(generate(net, prompt, settings=settings))[0]
        assert same(got, wanted, doubt(net, prompt, settings))
        texts.append(tuple(wanted))
    assert len(set(texts)) > 1  # control: the prompt matters


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_batched_is_single(mixer: str, side: str) -> None:
    net, settings = writer(MIXERS[mixer]), WAYS["greedy"]
    tokens, mask = padded(PROMPTS, side)
    together = rows(generate(net, tokens, mask, settings=settings))
    for row, prompt in zip(together, PROMPTS, strict=True):
        assert same(row, uncached(net, prompt, settings), doubt(net, prompt, settings))
