"""Errors of the lectures that concern the network: the right form is ours, the slide's literal form differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import (
    MLP,
    Attention,
    Block,
    Model,
    NoRelative,
    Patches,
    Pooled,
    Stack,
    TokenHead,
    Tokens,
    attention_maps,
    checks,
    preset,
)
from anyformer.positions.sinusoid import sinusoid
from tests.reference.copying import agree, context_of, deviation, parts_of, seeded, shaken

B, T, D, H, C, V = 1, 5, 12, 3, 4, 6  # V: channels of a head's values


class Parts:
    """One attention layer taken apart: x (T,D), one W_Q, W_K, W_V a head, W_O, and what our module makes of them."""

    def __init__(self, *, causal: bool = False, **given: Any) -> None:
        self.mixer = Attention(heads=H, key_size=C, value_size=V, bias=False)
        self.module = shaken(self.mixer.build(D, causal=causal, relative=NoRelative()))
        self.w_q, self.w_k, self.w_v = (w.mT for w in parts_of(self.module.qkv.weight, H, H, C, V))  # (H,D,C)
        self.w_o = self.module.out.weight.T  # (H*V,D)
        self.x = seeded(T, D)
        self.out = self.module(self.x[None], context_of(self.x[None], **given), None, ())[0]
        self.q, self.k, self.v = (self.x @ w for w in (self.w_q, self.w_k, self.w_v))  # (H,T,C)
        self.scores = self.q @ self.k.mT / C**0.5  # (H,T,T)

    def join(self, heads: Tensor) -> Tensor:
        """(H,T,V) through concat and W_O to (T,D)."""
        return heads.transpose(0, 1).flatten(1) @ self.w_o


@pytest.mark.quick
def test_error_05_each_head_has_its_own_values() -> None:
    p = Parts()
    agree(p.join(p.scores.softmax(-1) @ p.v), p.out, [p.x])
    shared = p.scores.softmax(-1) @ p.v[:1]  # the slide: Z_h = V softmax(...), one V
    assert deviation(p.join(shared), p.out) > 1e-2


@pytest.mark.quick
def test_error_06_tokens_in_columns_need_the_transposed_softmax() -> None:
    p = Parts()
    q, k, v = p.q.mT, p.k.mT, p.v.mT  # (H,C,T): tokens in columns
    weights = (q.mT @ k / C**0.5).softmax(-1)  # queries in rows, over the keys
    agree(p.join((v @ weights.mT).mT), p.out, [p.x])
    assert deviation(p.join((v @ weights).mT), p.out) > 1e-2  # the slide: V softmax(Q^T K / sqrt(p))
    over_queries = (q.mT @ k / C**0.5).softmax(-2)
    assert deviation(p.join((v @ over_queries.mT).mT), p.out) > 1e-2


@pytest.mark.quick
def test_error_07_a_finite_bias_is_added_after_scaling() -> None:
    term = seeded(1, 1, T, T, seed=4, grad=False)
    p = Parts(mask=term)
    agree(p.join((p.scores + term[0]).softmax(-1) @ p.v), p.out, [p.x])
    inside = (p.q @ p.k.mT + term[0]) / C**0.5  # the slide: softmax((QK + M) / sqrt(p))
    assert deviation(p.join(inside.softmax(-1) @ p.v), p.out) > 1e-3
    # Harmless for minus infinity, which is why the slide's mask works.
    hidden = torch.zeros(T, T, dtype=torch.float64).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    agree(((p.q @ p.k.mT + hidden) / C**0.5).softmax(-1), (p.scores + hidden).softmax(-1))


@pytest.mark.quick
def test_error_08_the_exponent_is_divided_by_the_model_width() -> None:
    width, key_size = 16, 4
    ours = sinusoid(torch.tensor([[2, 50]]), width, torch.float64)
    powers = torch.arange(0, width, 2, dtype=torch.float64)
    for divisor, equal in ((width, True), (key_size, False)):
        angles = torch.tensor([[2.0], [50.0]], dtype=torch.float64) / 10000 ** (powers / divisor)
        found = deviation(ours[0], torch.stack([angles.sin(), angles.cos()], -1).flatten(-2))
        assert (found < 1e-9) == equal


@pytest.mark.quick
def test_error_09_the_similarity_compares_two_tokens() -> None:
    p = Parts()
    h, i, j = 1, 0, 3
    assert p.scores[h, i, j].item() == pytest.approx((p.x[i] @ p.w_q[h] @ p.w_k[h].T @ p.x[j] / C**0.5).item())
    same = p.x[i] @ p.w_q[h] @ p.w_k[h].T @ p.x[i] / C**0.5  # the slide: x_i twice
    assert abs(same - p.scores[h, i, j]) > 1e-3


@pytest.mark.quick
def test_error_13_values_are_weighted_by_the_softmax_not_by_raw_scores() -> None:
    p = Parts()
    assert deviation(p.join(p.scores @ p.v), p.out) > 1e-2  # the slide: z = sum of raw scores times v


@pytest.mark.quick
def test_error_14_scores_are_hidden_before_the_softmax_and_a_token_sees_itself() -> None:
    p = Parts(causal=True)
    past = torch.ones(T, T, dtype=torch.bool).tril()
    before = p.scores.masked_fill(~past, -torch.inf).softmax(-1)
    agree(p.join(before @ p.v), p.out, [p.x])
    agree(before.sum(-1), torch.ones(H, T, dtype=torch.float64))
    after = p.scores.softmax(-1).masked_fill(~past, 0.0)  # the slide: weights set to 0
    assert after.sum(-1).min() < 0.9 and deviation(p.join(after @ p.v), p.out) > 1e-2
    strict = p.scores.masked_fill(~past.tril(-1), -torch.inf)[:, 1:].softmax(-1)  # and position i hidden from itself
    assert deviation((strict @ p.v).transpose(0, 1).flatten(1) @ p.w_o, p.out[1:]) > 1e-2


def small(head: Any) -> Any:
    block = Block(mixer=Attention(heads=2), feed=MLP(width=16))
    spec = Model(embed=Tokens(vocab=9), stack=Stack(width=8, depth=2, block=block), head=head)
    return shaken(spec.build(dtype=torch.float64, seed=0))


@pytest.mark.quick
def test_error_15_attention_is_equivariant_and_only_a_pooled_output_invariant() -> None:
    tokens, order = torch.tensor([[1, 2, 3, 4, 5]]), [2, 0, 4, 1, 3]
    each, pooled = small(TokenHead(classes=3)), small(Pooled(classes=3, pool="mean"))
    assert checks.permutation(each, tokens)
    agree(each(tokens[:, order]).logits, each(tokens).logits[:, order])
    assert deviation(each(tokens[:, order]).logits, each(tokens).logits) > 1e-2  # not invariant
    agree(pooled(tokens[:, order]).logits, pooled(tokens).logits)


@pytest.mark.quick
def test_error_16_albert_factorises_the_embedding_and_shares_layer_weights() -> None:
    spec = preset("albert-base")
    net = spec.build(device="meta")
    assert net.embed.table.weight.shape == (30000, 128) and net.embed.project.weight.shape == (768, 128)
    assert len(net.stack.blocks) == 1 and spec.stack.depth == 12 and set(net.stack.order) == {0}
    # The slide's reading, a small embedding shared by all layers, would leave twelve sets of layer weights.
    unshared = spec.replace(stack=spec.stack.replace(groups=None)).build(device="meta")
    assert sum(p.numel() for p in unshared.parameters()) > 7 * sum(p.numel() for p in net.parameters())


@pytest.mark.quick
def test_errors_20_and_22_projections_are_width_by_head_size_and_a_head_gives_value_channels() -> None:
    p = Parts()
    assert p.w_q.shape == p.w_k.shape == (H, D, C) and p.w_v.shape == (H, D, V)  # not T x D_K
    z = p.scores.softmax(-1) @ p.v
    assert z.shape == (H, T, V) and z.shape[-1] != D  # P V is T x D_V until W_O
    assert p.join(z).shape == (T, D)
    longer = seeded(1, T + 4, D)
    assert p.module(longer, context_of(longer), None, ()).shape == (1, T + 4, D)  # the same weights at another length


@pytest.mark.quick
def test_error_21_the_feed_is_four_times_wider_inside() -> None:
    feed = MLP().build(D)
    assert feed.up.weight.shape == (4 * D, D) and feed.down.weight.shape == (D, 4 * D)
    square = MLP(width=D).build(D)  # the slide's D x D can be asked for
    assert square.up.weight.shape == (D, D)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_error_26_an_encoder_gives_as_many_outputs_as_inputs_until_pooled(length: int) -> None:
    tokens = torch.arange(length)[None] % 9
    out = small(TokenHead(classes=3))(tokens)
    assert out.hidden.shape[:2] == out.logits.shape[:2] == (1, length)
    assert small(Pooled(classes=3))(tokens).logits.shape == (1, 3)


def test_error_28_patches_are_a_strided_convolution_and_pooling_is_an_option() -> None:
    images = seeded(2, 3, 32, 32)
    embed = shaken(preset("vit-b16").replace(embed=Patches(size=32, patch=16, cls=False, position=None)).embed.build(D))
    kernel = embed.patch.weight.unflatten(1, (3, 16, 16))
    strided = F.conv2d(images, kernel, embed.patch.bias, stride=16).flatten(2).mT
    agree(embed(images, context=embed.layout(images)), strided, [images])
    block = Block(mixer=Attention(heads=3))
    for pool in ("first", "mean"):
        spec = Model(
            embed=Patches(size=32, patch=16), stack=Stack(width=D, depth=1, block=block), head=Pooled(pool=pool)
        )
        net = spec.build(dtype=torch.float64, seed=0)
        out = net(images)
        agree(out.pooled, out.hidden[:, 0] if pool == "first" else out.hidden.mean(1), [images])


def test_maps_of_a_model_are_the_weights_of_the_right_forms() -> None:
    net = small(TokenHead(classes=3))
    tokens = torch.tensor([[1, 2, 3, 4]])
    maps = attention_maps(net, tokens)
    assert list(maps) == ["stack.blocks.0.mixer", "stack.blocks.1.mixer"]
    first = maps["stack.blocks.0.mixer"][0]
    block, x = net.stack.blocks[0], net.embed.table.weight[tokens]
    q, k, _ = block.mixer.split(block.mixer.qkv(block.around_mixer.before(x)))
    agree(first, (q @ k.mT / 2.0).softmax(-1).detach())
    agree(first.sum(-1), torch.ones(1, 2, 4, dtype=torch.float64))
