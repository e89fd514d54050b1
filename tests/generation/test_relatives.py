"""Texts written by models of attention's relatives and of experts: with a state as by repeated full passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import Alibi, Attention, BlockSparse, Experts, LinearAttention, Local, NoRelative, Plain, Rope
from anyformer.generation import Generation, generate
from tests.generation.nets import HEADS, PROMPTS, build, decoder, padded
from tests.generation.test_same_tokens import NEW, WAYS, agree

PARTS: dict[str, dict[str, Any]] = {
    "plain": {"mixer": Plain()},
    "plain-rope": {"mixer": Plain(), "relative": Rope()},
    "local": {"mixer": Local(heads=HEADS, window=3)},
    "local-alibi": {"mixer": Local(heads=HEADS, window=4, kv_heads=2), "relative": Alibi()},
    "block-sparse": {"mixer": BlockSparse(heads=HEADS, block=2), "relative": Rope()},
    "linear": {"mixer": LinearAttention(heads=HEADS)},
    "experts": {"mixer": Attention(heads=HEADS), "feed": Experts(count=4, top=2, width=12)},
    "switch": {"mixer": LinearAttention(heads=HEADS), "feed": Experts(count=3, top=1, width=12)},
}


def spec_of(parts: dict[str, Any]) -> Any:
    spec = decoder()
    block = spec.stack.block.replace(**({"relative": NoRelative()} | parts))
    return spec.replace(stack=spec.stack.replace(block=block))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_alone_in_a_batch_and_without_a_state_the_same_is_written(parts: dict[str, Any], way: str) -> None:
    net = build(spec_of(parts))
    assert all(agree(net, way, PROMPTS, None, "left") + agree(net, way, PROMPTS, None, "right"))


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_prompt_may_be_read_in_chunks(parts: dict[str, Any]) -> None:
    net = build(spec_of(parts))
    tokens, mask = padded(PROMPTS, "right")
    whole = generate(net, tokens, mask, settings=WAYS["greedy"])
    chunked = Generation(max_new_tokens=NEW, eos_token_id=3, prefill_chunk_size=3)
    assert torch.equal(generate(net, tokens, mask, settings=chunked).ids, whole.ids)
