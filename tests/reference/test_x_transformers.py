"""x-transformers, whole stacks with copied weights: sandwich norms, gated feeds, normed queries and keys, positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from x_transformers import Decoder, Encoder, x_transformers

from anyformer import MLP, Alibi, Attention, Block, Buckets, LayerNorm, NoRelative, Relative, RMSNorm, Rope, Stack
from tests.reference import copying
from tests.reference.copying import CAST, EXACT, agree, call, context_of, deviation, real_tokens, seeded, shaken

B, T, D, H = 2, 7, 24, 3


def stack(
    *, place: str = "pre", causal: bool = False, relative: Relative | None = None, feed: MLP | None = None
) -> Any:
    block = Block(
        mixer=Attention(heads=H, key_size=8, bias=False), feed=MLP() if feed is None else feed, place=place,
        norm=LayerNorm(bias=False), relative=NoRelative() if relative is None else relative,
    )  # fmt: skip
    return Stack(width=D, depth=2, block=block, causal=causal, final=LayerNorm(bias=False)).build()


def theirs_of(kind: Any, **settings: Any) -> Any:
    # flash: torch's fused attention, which stays in float64; their plain path, which T5's bias needs, takes the
    # softmax in float32 unless told otherwise.
    flash = "rel_pos_bias" not in settings
    theirs = kind(dim=D, depth=2, heads=H, attn_dim_head=8, attn_flash=flash, verbose=False, **settings)
    for _, layer, _ in theirs.layers:
        if not flash and isinstance(layer, x_transformers.Attention):
            layer.attend.attn_fn = partial(F.softmax, dim=-1)
    return shaken(theirs)


@pytest.mark.parametrize(("place", "settings"), [("sandwich", {"sandwich_norm": True}), ("pre", {})])
@pytest.mark.parametrize("causal", [False, True])
def test_norms_before_and_inside_equal_theirs(place: str, settings: dict[str, Any], causal: bool) -> None:
    theirs, x = theirs_of(Decoder if causal else Encoder, **settings), seeded(B, T, D)
    real = real_tokens((7, 4), T)
    expected = theirs(x, mask=real)
    weights, leaves = copying.from_x_layers(theirs), [x, *theirs.parameters()]
    ours = stack(place=place, causal=causal)
    agree(call(ours, weights, x, context_of(x, real))[0], expected, leaves, where=real[..., None])
    swapped = dict(weights)
    for name in weights:  # control: the two norms of a branch are not the same thing
        if ".before." in name and place == "sandwich":
            swapped[name], swapped[name.replace("before", "inside")] = (
                weights[name.replace("before", "inside")], weights[name],
            )  # fmt: skip
    if place == "sandwich":
        assert deviation(call(ours, swapped, x, context_of(x, real))[0], expected, where=real[..., None]) > 1e-3


@pytest.mark.parametrize(
    ("settings", "feed"),
    [
        ({"glu": True}, MLP(gated=True, act="gelu")),
        ({"glu": True, "swish": True}, MLP(gated=True, act="silu")),
        ({"relu_squared": True}, MLP(act="relu2")),
        ({"swish": True}, MLP(act="silu")),
        ({}, MLP(act="gelu")),
    ],
    ids=["geglu", "swiglu", "relu2", "silu", "gelu"],
)
@pytest.mark.quick
def test_each_feed_equals_theirs(settings: dict[str, Any], feed: MLP) -> None:
    theirs, x = shaken(x_transformers.FeedForward(D, **settings)), seeded(B, T, D)
    weights = copying.from_x_feed(theirs)
    expected = theirs(x)
    agree(call(feed.build(D), weights, x), expected, [x, *theirs.parameters()])
    if feed.gated:  # control: gate and value the other way round
        turned = {n: w.unflatten(0, (-1, 2)).flip(1).flatten(0, 1) if "up" in n else w for n, w in weights.items()}
        assert deviation(call(feed.build(D), turned, x), expected) > 1e-3
    else:
        assert deviation(call(feed.replace(act="tanh").build(D), weights, x), expected) > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_normed_queries_and_keys_equal_theirs(causal: bool) -> None:
    theirs = shaken(
        x_transformers.Attention(
            D, dim_head=8, heads=H, causal=causal, flash=True, qk_norm=True, qk_norm_dim_scale=True
        )
    )
    # A gain for each head there, one for all heads here: give all of theirs the same.
    gains = [seeded(8, seed=s) for s in (3, 4)]
    with torch.no_grad():
        theirs.qk_norm_q_scale.copy_(gains[0].expand(H, 1, 8))
        theirs.qk_norm_k_scale.copy_(gains[1].expand(H, 1, 8))
    x = seeded(B, T, D)
    mixer = Attention(heads=H, key_size=8, bias=False, qk_norm=RMSNorm(eps=0.0))
    weights = copying.from_x_attention(theirs)
    # Unit length times gain is the root-mean-square norm with a gain sqrt(C) times smaller.
    for ours, scale in (("q_norm", theirs.qk_norm_q_scale), ("k_norm", theirs.qk_norm_k_scale)):
        weights[f"{ours}.weight"] = scale.mean((0, 1)) / 8**0.5
    leaves = [x, theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight, theirs.to_out.weight]
    module = mixer.build(D, causal=causal, relative=NoRelative())
    out, expected = call(module, weights, x, context_of(x), None, ()), theirs(x)
    agree(out, expected, leaves)
    for name, theirs_gain in (("q_norm.weight", theirs.qk_norm_q_scale), ("k_norm.weight", theirs.qk_norm_k_scale)):
        (mine,) = torch.autograd.grad(out.square().sum(), [weights[name]], retain_graph=True)
        (other,) = torch.autograd.grad(expected.square().sum(), [theirs_gain], retain_graph=True)
        agree(mine, other.sum((0, 1)) * 8**0.5)  # all their heads together
    assert deviation(call(module, weights | {"q_norm.weight": gains[0]}, x, context_of(x), None, ()), expected) > 1e-3


def test_cosine_similarity_times_ten_equals_theirs() -> None:
    theirs, x = shaken(x_transformers.Attention(D, dim_head=8, heads=H, flash=True, qk_norm=True)), seeded(B, T, D)
    unit = torch.full((8,), 8**-0.5, dtype=torch.float64)
    weights = copying.from_x_attention(theirs) | {"q_norm.weight": unit, "k_norm.weight": unit}
    mixer = Attention(heads=H, key_size=8, bias=False, qk_norm=RMSNorm(eps=0.0), scale=10.0)
    ours = mixer.build(D, causal=False, relative=NoRelative())
    agree(call(ours, weights, x, context_of(x), None, ()), theirs(x), [x, *theirs.parameters()])
    other = mixer.replace(scale="sqrt").build(D, causal=False, relative=NoRelative())
    assert deviation(call(other, weights, x, context_of(x), None, ()), theirs(x)) > 1e-3


def test_grouped_heads_equal_theirs() -> None:
    theirs = shaken(x_transformers.Attention(D, dim_head=8, heads=4, kv_heads=2, flash=True, causal=True))
    x = seeded(B, T, D)
    ours = Attention(heads=4, kv_heads=2, key_size=8, bias=False).build(D, causal=True, relative=NoRelative())
    weights = copying.from_x_attention(theirs)
    agree(call(ours, weights, x, context_of(x), None, ()), theirs(x), [x, *theirs.parameters()])
    rows = weights["qkv.weight"].unflatten(0, (2, -1)).flip(0).flatten(0, 1)  # control: the other group's keys
    assert deviation(call(ours, weights | {"qkv.weight": rows}, x, context_of(x), None, ()), theirs(x)) > 1e-3


def positions(name: str) -> tuple[dict[str, Any], Relative]:
    """Their setting and ours."""
    return {
        "rotary": ({"rotary_pos_emb": True, "rotary_emb_dim": 4}, Rope(layout="interleaved", width=4)),
        "alibi": ({"alibi_pos_bias": True}, Alibi()),
        "buckets": (
            {"rel_pos_bias": True, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 12},
            Buckets(buckets=8, distance=12),
        ),
    }[name]  # fmt: skip


def with_table(weights: dict[str, Tensor], theirs: Any, name: str) -> dict[str, Tensor]:
    """T5's table, which they multiply by sqrt(C) before it is added."""
    if name != "buckets":
        return weights
    return weights | {"relatives.0.table.weight": theirs.rel_pos.relative_attention_bias.weight * 8**0.5}


@pytest.mark.parametrize("name", ["rotary", "alibi", "buckets"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_stack_with_each_relative_position_equals_theirs(name: str, causal: bool) -> None:
    settings, relative = positions(name)
    theirs, x = theirs_of(Decoder if causal else Encoder, **settings), seeded(B, T, D)
    expected = theirs(x)
    weights = with_table(copying.from_x_layers(theirs), theirs, name)
    ours = stack(causal=causal, relative=relative)
    # Rotary frequencies and the slopes of 3 heads are float32 buffers there.
    bound = EXACT if name == "buckets" else CAST
    agree(call(ours, weights, x, context_of(x))[0], expected, [x, *theirs.parameters()], bound=bound)
    bare = {n: w for n, w in weights.items() if not n.startswith("relatives")}
    assert deviation(call(stack(causal=causal), bare, x, context_of(x))[0], expected) > 1e-3
