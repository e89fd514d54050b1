"""The lectures' worked examples about sizes: parameters, depths and bytes, counted on `meta`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import LM, MLP, Attention, Block, Model, Stack, Tokens, preset
from anyformer.planning.model_plan import plan


def parameters(spec: Any) -> int:
    return sum(parameter.numel() for parameter in spec.build(device="meta").parameters())


SIZES = [
    ("w10", "bert-base", 109_482_240), ("w10", "bert-large", 335_141_888),
    ("w11", "gpt2", 124_439_808), ("w11", "gpt2-medium", 354_823_168), ("w11", "gpt2-large", 774_030_080),
    ("w11", "gpt2-xl", 1_557_611_200),
    ("w28", "vit-b16", 86_567_656),
    ("w29", "albert-base", 11_683_584), ("w29", "albert-xlarge", 58_724_864), ("w29", "albert-xxlarge", 222_595_584),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("name", "count"), [pytest.param(*size, id=f"{w}-{size[0]}") for w, *size in SIZES])
def test_w10_w11_w28_w29_sizes_to_the_last_parameter(name: str, count: int) -> None:
    assert parameters(preset(name)) == count


def bytes_of(spec: Any) -> int:
    """Memory of one token in a state, in bf16."""
    net = spec.build(device="meta", dtype=torch.bfloat16)
    state = net.state(1)
    net(torch.zeros(1, 1, dtype=torch.long, device="meta"), state=state)
    return state.bytes


def test_w12_bytes_of_keys_and_values_a_token() -> None:
    block = Block(mixer=Attention(heads=16), feed=MLP(width=8))
    wide = Model(embed=Tokens(vocab=4), stack=Stack(width=2048, depth=24, causal=True, block=block), head=LM())
    for spec, kib in ((preset("gpt2"), 36), (wide, 192), (preset("llama2-7b"), 512), (preset("llama3-8b"), 128)):
        sizes = spec.stack.layers[0].mixer.sizes(spec.stack.width)
        formula = spec.stack.depth * sizes.groups * (sizes.channels + sizes.value_channels) * 2
        assert bytes_of(spec) == formula == kib * 1024


@pytest.mark.quick
def test_w30_a_context_of_128k_tokens_is_300_pages() -> None:
    """427 tokens a page; what a model keeps of a page, and of the whole book, while it writes."""
    assert round(128_000 / 300) == 427
    book, page = (plan("llama3-8b", length=tokens).caches[0] for tokens in (128_000, 427))
    assert (book.kind, page.kind) == ("as built", "as built")
    assert book.bytes == 128_000 * 128 * 1024  # 15.6 GiB beside 15 GiB of weights
    assert book.bytes / page.bytes == pytest.approx(300, rel=1e-3)


@pytest.mark.quick
def test_w31_the_original_has_6_and_6_layers() -> None:
    for name in ("transformer-base", "transformer-big"):
        spec = preset(name)
        assert (spec.encoder.stack.depth, spec.decoder.stack.depth) == (6, 6)
        net = spec.build(device="meta")
        assert len(net.encoder.stack.blocks) + len(net.decoder.stack.blocks) == 12
