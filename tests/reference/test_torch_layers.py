"""torch's own attention and layers, with their weights in our blocks: outputs and all gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anyformer import MLP, Attention, Block, Cross, LayerNorm, NoRelative, Stack
from anyformer.core.attend import weights_of
from tests.reference import copying
from tests.reference.copying import agree, call, context_of, deviation, real_tokens, seeded, shaken

B, T, D, H, S = 3, 7, 24, 4, 5
LENGTHS = (7, 4, 2)


def attention(*, causal: bool = False, scale: float | str = "sqrt") -> nn.Module:
    return Attention(heads=H, scale=scale).build(D, causal=causal, relative=NoRelative())


def hidden_above(length: int) -> Tensor:
    """torch hides where the mask is True."""
    return torch.ones(length, length).triu(1).bool()


@pytest.mark.quick
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_self_attention_equals_multihead_attention(causal: bool, padded: bool) -> None:
    theirs, x = shaken(nn.MultiheadAttention(D, H, batch_first=True)), seeded(B, T, D)
    real = real_tokens(LENGTHS, T) if padded else None
    expected, maps = theirs(
        x, x, x, key_padding_mask=None if real is None else ~real, attn_mask=hidden_above(T) if causal else None,
        average_attn_weights=False,
    )  # fmt: skip
    weights, leaves = copying.from_torch_attention(theirs), [x, *theirs.parameters()]
    ours, context = attention(causal=causal), context_of(x, real)
    agree(call(ours, weights, x, context, None, ()), expected, leaves)
    copied = attention(causal=causal).double()
    copied.load_state_dict(weights)
    made = copied.prepare(x, context, None, ())
    agree(weights_of(made.q, made.k, made.scores), maps, [x])
    # Control: any other scale is noticed.
    wrong = call(attention(causal=causal, scale=0.5), weights, x, context, None, ())
    assert deviation(wrong, expected) > 1e-3


@pytest.mark.parametrize("kind", ["added", "rule"])
def test_a_mask_a_head_equals_the_mask_of_multihead_attention(kind: str) -> None:
    theirs, x = shaken(nn.MultiheadAttention(D, H, batch_first=True)), seeded(B, T, D)
    rule = seeded(B, H, T, T, seed=3, grad=False)
    if kind == "added":
        mask, given = rule.requires_grad_(), rule.reshape(B * H, T, T)
    else:
        mask = (rule > -0.5) | torch.eye(T, dtype=torch.bool)
        given = ~mask.reshape(B * H, T, T)
    expected, _ = theirs(x, x, x, attn_mask=given)
    leaves = [x, *theirs.parameters()] + ([mask] if kind == "added" else [])
    weights = copying.from_torch_attention(theirs)
    agree(call(attention(), weights, x, context_of(x, mask), None, ()), expected, leaves)
    inverted = -mask if kind == "added" else ~mask | torch.eye(T, dtype=torch.bool)
    assert deviation(call(attention(), weights, x, context_of(x, inverted), None, ()), expected) > 1e-3


@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_equals_multihead_attention(padded: bool) -> None:
    theirs = shaken(nn.MultiheadAttention(D, H, batch_first=True))
    x, memory = seeded(B, T, D), seeded(B, S, D, seed=2)
    real = real_tokens((5, 3, 1), S) if padded else None
    expected, _ = theirs(x, memory, memory, key_padding_mask=None if real is None else ~real)
    ours = Cross(heads=H).build(D, causal=False, relative=NoRelative(), memory_width=D)
    context = replace(context_of(x), memory=memory, memory_mask=real)
    weights = copying.from_torch_cross(theirs)
    agree(call(ours, weights, x, context, None, ()), expected, [x, memory, *theirs.parameters()])
    swapped = weights | {"kv.weight": weights["kv.weight"].flip(0)}
    assert deviation(call(ours, swapped, x, context, None, ()), expected) > 1e-3


def block(*, first: bool, act: str, cross: bool = False) -> Block:
    return Block(
        mixer=Attention(heads=H), feed=MLP(width=40, act=act), norm=LayerNorm(), place="pre" if first else "post",
        cross=Cross(heads=H) if cross else None,
    )  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
def test_a_block_equals_an_encoder_layer(first: bool, act: str, masked: str) -> None:
    theirs = shaken(nn.TransformerEncoderLayer(D, H, 40, 0.0, act, batch_first=True, norm_first=first))
    x, causal = seeded(B, T, D), masked in ("causal", "both")
    real = real_tokens(LENGTHS, T) if masked in ("padding", "both") else None
    expected = theirs(x, hidden_above(T) if causal else None, None if real is None else ~real)
    weights, leaves = copying.from_torch_layer(theirs), [x, *theirs.parameters()]
    ours = block(first=first, act=act).build(D, causal=causal)
    out, losses = call(ours, weights, x, context_of(x, real), None, ())
    assert losses == {}
    agree(out, expected, leaves)
    # Control: the other activation is noticed.
    other = block(first=first, act="gelu" if act == "relu" else "relu").build(D, causal=causal)
    assert deviation(call(other, weights, x, context_of(x, real), None, ())[0], expected) > 1e-3


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_block_with_cross_attention_equals_a_decoder_layer(first: bool, padded: bool) -> None:
    theirs = shaken(nn.TransformerDecoderLayer(D, H, 40, 0.0, "gelu", batch_first=True, norm_first=first))
    x, memory = seeded(B, T, D), seeded(B, S, D, seed=2)
    real, source = (real_tokens(LENGTHS, T), real_tokens((5, 3, 1), S)) if padded else (None, None)
    expected = theirs(
        x, memory, tgt_mask=hidden_above(T), tgt_key_padding_mask=None if real is None else ~real,
        memory_key_padding_mask=None if source is None else ~source,
    )  # fmt: skip
    ours = block(first=first, act="gelu", cross=True).build(D, causal=True, memory_width=D)
    context = replace(context_of(x, real), memory=memory, memory_mask=source)
    weights = copying.from_torch_layer(theirs)
    out, _ = call(ours, weights, x, context, None, ())
    agree(out, expected, [x, memory, *theirs.parameters()])
    # Control: reading the memory without its padding, or the future, is noticed.
    free = block(first=first, act="gelu", cross=True).build(D, causal=False, memory_width=D)
    assert deviation(call(free, weights, x, context, None, ())[0], expected) > 1e-3


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
def test_a_stack_equals_an_encoder_with_its_final_norm(first: bool) -> None:
    layer = nn.TransformerEncoderLayer(D, H, 40, 0.0, "gelu", batch_first=True, norm_first=first)
    theirs = shaken(nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(D), enable_nested_tensor=False))
    x, real = seeded(B, T, D), real_tokens(LENGTHS, T)
    expected = theirs(x, src_key_padding_mask=~real)
    final = None if first else LayerNorm()  # pre-norm ends in its own norm unasked
    stack = Stack(width=D, depth=3, block=block(first=first, act="gelu"), final=final).build()
    weights = copying.from_layers(theirs.layers, copying.from_torch_layer, theirs.norm)
    agree(call(stack, weights, x, context_of(x, real))[0], expected, [x, *theirs.parameters()])
    reordered = copying.from_layers(theirs.layers[::-1], copying.from_torch_layer, theirs.norm)
    assert deviation(call(stack, reordered, x, context_of(x, real))[0], expected) > 1e-3


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # torch's, about its own fast path
@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
def test_two_stacks_equal_torchs_whole_transformer(first: bool) -> None:
    theirs = shaken(nn.Transformer(D, H, 2, 2, 40, 0.0, "relu", batch_first=True, norm_first=first))
    x, y = seeded(B, S, D), seeded(B, T, D, seed=2)
    real = real_tokens((5, 3, 1), S)
    expected = theirs(
        x, y, tgt_mask=hidden_above(T), src_key_padding_mask=~real, memory_key_padding_mask=~real
    )  # fmt: skip
    encoder = Stack(width=D, depth=2, block=block(first=first, act="relu"), final=LayerNorm()).build()
    two = Stack(width=D, depth=2, block=block(first=first, act="relu", cross=True), final=LayerNorm(), causal=True)
    left = copying.from_layers(theirs.encoder.layers, copying.from_torch_layer, theirs.encoder.norm)
    right = copying.from_layers(theirs.decoder.layers, copying.from_torch_layer, theirs.decoder.norm)
    memory, _ = call(encoder, left, x, context_of(x, real))
    context = replace(context_of(y), memory=memory, memory_mask=real)
    out, _ = call(two.build(memory_width=D), right, y, context)
    agree(out, expected, [x, y, *theirs.parameters()])
    early = replace(context, memory=x)  # control: the decoder reads the final encoder output, not its input
    assert deviation(call(two.build(memory_width=D), right, y, early)[0], expected) > 1e-3
