"""Biases on the scores: T5's buckets and ALiBi's slopes against transformers and x-transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers import x_transformers

from anyformer import Alibi, Attention, Buckets
from anyformer.core.attend import weights_of
from anyformer.core.context import lay_out
from anyformer.positions.alibi import slopes
from anyformer.positions.buckets import bucket
from tests.reference import naive
from tests.reference.copying import CAST, agree, call, context_of, deviation, fuse, real_tokens, seeded, shaken

B, T, D, H = 2, 9, 16, 4
CPU = torch.device("cpu")


def bias_of(spec: Any, heads: int, length: int, *, causal: bool, dtype: torch.dtype = torch.float64,
            module: Any = None) -> Tensor:  # fmt: skip
    """(1, H, T, T)."""
    module = spec.build(heads, 4, 4, causal) if module is None else module
    context = lay_out(1, length, CPU)
    return spec.bias(module(context, dtype), context.positions, context.key_positions)


# ---------------------------------------------------------------- T5


@pytest.mark.quick
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 64), (8, 20), (64, 500), (32, 20)])
def test_buckets_equal_t5(both_ways: bool, buckets: int, distance: int) -> None:
    offset = torch.arange(-2000, 2001)
    settings = {"num_buckets": buckets, "max_distance": distance}
    theirs = T5Attention._relative_position_bucket(offset, bidirectional=both_ways, **settings)
    assert torch.equal(bucket(offset, buckets, distance, both_ways), theirs)
    also = x_transformers.RelativePositionBias._relative_position_bucket(offset, causal=not both_ways, **settings)
    assert torch.equal(theirs, also)
    assert not torch.equal(bucket(-offset, buckets, distance, both_ways), theirs)  # control: the wrong direction


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_whole_attention_with_buckets_equals_t5(decoder: bool, padded: bool) -> None:
    config = T5Config(
        d_model=D, d_kv=6, num_heads=H, dropout_rate=0.0, is_decoder=decoder, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, attn_implementation="eager",
    )  # fmt: skip
    theirs, x = shaken(T5Attention(config, has_relative_attention_bias=True, layer_idx=0)), seeded(B, T, D)
    real = real_tokens((9, 5), T) if padded else torch.ones(B, T, dtype=torch.bool)
    seen = real[:, None, None, :] & (torch.ones(T, T).tril().bool() if decoder else torch.ones(T, T).bool())
    # Their softmax is taken in float32 on the eager path, so the bound is 1e-6.
    expected = theirs(x, mask=torch.zeros(B, 1, T, T, dtype=torch.float64).masked_fill(~seen, -1e30))[0]
    spec = Buckets(buckets=8, distance=12)
    mixer = Attention(heads=H, key_size=6, bias=False, scale="none").build(D, causal=decoder, relative=spec)
    table = spec.build(H, 6, 6, decoder)
    context = context_of(x, real if padded else None)
    tables = call(table, {"table.weight": theirs.relative_attention_bias.weight}, context, x.dtype)
    weights = {"qkv.weight": fuse(theirs.q.weight, theirs.k.weight, theirs.v.weight, H), "out.weight": theirs.o.weight}
    out = call(mixer, weights, x, context, None, tables)
    agree(out, expected, [x, *theirs.parameters()], bound=CAST, where=real[..., None])
    wrong = call(mixer, weights, x, context, None, (-tables[0], tables[1]))
    assert deviation(wrong, expected, where=real[..., None]) > 1e-3


@pytest.mark.parametrize("decoder", [False, True])
def test_the_bias_itself_equals_t5_exactly(decoder: bool) -> None:
    config = T5Config(d_model=D, d_kv=6, num_heads=H, is_decoder=decoder)
    theirs = shaken(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    spec, length = Buckets(), 300
    module = spec.build(H, 6, 6, decoder)
    table = theirs.relative_attention_bias.weight
    context = lay_out(1, length, CPU)
    tables = call(module, {"table.weight": table}, context, torch.float64)
    ours = spec.bias(tables, context.positions, context.key_positions)
    agree(ours, theirs.compute_bias(length, length), [table])
    for h, i, j in ((0, 0, 0), (3, 250, 3), (1, 3, 250)):
        one = spec.bias_at(tables, torch.tensor(h), torch.tensor(i), torch.tensor(j))
        assert torch.equal(one, ours[0, h, i, j])


@pytest.mark.parametrize("causal", [False, True])
def test_the_bias_equals_x_transformers(causal: bool) -> None:
    theirs = shaken(x_transformers.RelativePositionBias(scale=2.0, causal=causal, heads=H))
    spec, table = Buckets(), theirs.relative_attention_bias.weight
    context = lay_out(1, 200, CPU)
    tables = call(spec.build(H, 4, 4, causal), {"table.weight": table * 2.0}, context, torch.float64)
    agree(spec.bias(tables, context.positions, context.key_positions)[0], theirs(200, 200), [table])


# ---------------------------------------------------------------- ALiBi


@pytest.mark.quick
@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_equal_bloom_for_every_number_of_heads(heads: int) -> None:
    mask = torch.ones(1, 2)
    theirs = build_alibi_tensor(mask, heads, torch.float64)[:, 0, 1]  # position 1: the slope; float32 inside
    ours = torch.tensor(slopes(heads), dtype=torch.float64)
    agree(ours, theirs, bound=CAST)
    assert ((ours - theirs) / ours).abs().max() < CAST  # the small slopes too
    also = x_transformers.AlibiPositionalBias(heads).slopes.flatten().double()
    assert ((ours - also) / ours).abs().max() < CAST  # a float32 buffer
    if heads > 1:
        assert deviation(ours.flip(0), theirs) > 1e-3


@pytest.mark.parametrize("heads", [1, 3, 4, 8, 12])
def test_weights_with_alibi_equal_blooms_after_the_softmax(heads: int) -> None:
    """BLOOM adds slope * key position, which differs from -slope * distance by a constant a row."""
    x, real = seeded(B, T, D * 3), real_tokens((9, 6), T, "left")
    mixer = Attention(heads=heads, key_size=4).build(D * 3, causal=True, relative=Alibi()).double()
    context = context_of(x, real)
    tables = Alibi().build(heads, 4, 4, True)(context, x.dtype)
    made = mixer.prepare(x, context, None, tables)
    ours = weights_of(made.q, made.k, made.scores)
    bloom = build_alibi_tensor(real.long(), heads, torch.float64).view(B, heads, 1, T)  # slopes in float32
    seen = real[:, None, None, :] & torch.ones(T, T).tril().bool()
    scores = made.q @ made.k.mT * 0.5 + bloom
    theirs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    where = real[:, None, :, None]
    agree(ours, theirs.nan_to_num(), [x], bound=CAST, where=where)
    late = (made.q @ made.k.mT + bloom) * 0.5  # control: added before the scaling
    assert deviation(ours, late.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(), where=where) > 1e-3


@pytest.mark.parametrize("heads", [2, 5, 8, 12])
def test_the_alibi_bias_equals_x_transformers(heads: int) -> None:
    theirs = x_transformers.AlibiPositionalBias(heads)
    ours = bias_of(Alibi(), heads, 30, causal=True)
    agree(ours[0], theirs(30, 30).double(), bound=CAST)  # float32 slopes
    spec, tables = Alibi(), (torch.tensor(slopes(heads), dtype=torch.float64),)
    assert torch.equal(spec.bias_at(tables, torch.tensor(1), torch.tensor(4), torch.tensor(9)), ours[0, 1, 4, 9])


@pytest.mark.quick
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
def test_alibi_equals_the_loop_with_the_bias_after_scaling(causal: bool, heads: int) -> None:
    spec, x = Alibi(), seeded(B, T, D)
    module = shaken(Attention(heads=heads).build(D, causal=causal, relative=spec))
    context = context_of(x)
    out = module(x, context, None, spec.build(heads, 4, 4, causal)(context, x.dtype))
    scale = (D / heads) ** -0.5

    def with_slopes(factor: float) -> Tensor:
        return naive.attend(
            x, module, scale=scale, sees=lambda b, h, i, j: j <= i or not causal,
            bias=lambda b, h, i, j: torch.tensor(-factor * slopes(heads)[h] * abs(i - j)),
        )  # fmt: skip

    agree(out, with_slopes(1.0), [x, *module.parameters()])
    assert deviation(out, with_slopes(scale)) > 1e-3
