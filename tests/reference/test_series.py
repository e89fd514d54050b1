"""Series and Forecast: patches against a loop, PatchTST's whole network on shared random weights, holes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Learned, Rope, UserError
from anyformer.embeds.series import Series, statistics
from anyformer.heads.forecast import Forecast
from anyformer.presets.signals import PRESETS, patchtst
from tests.reference.copying import EXACT, Weights, agree, call, from_linear, from_norm, fuse, seeded, shaken, under

LENGTH, CHANNELS, PATCH, STRIDE, HORIZON = 22, 3, 6, 4, 5


def spec_of(**settings: Any) -> Any:
    whole: dict[str, Any] = {
        "length": LENGTH, "horizon": HORIZON, "depth": 2, "patch": PATCH, "stride": STRIDE,
        "dropout": 0.0,
    }  # fmt: skip
    return patchtst(16, 4, 32, **(whole | settings))


def net_of(**settings: Any) -> Any:
    return shaken(spec_of(**settings).build(dtype=torch.float64)).eval()


# ---------------------------------------------------------------- patches


@pytest.mark.quick
@pytest.mark.parametrize("repeat", [True, False])
def test_patches_are_the_window_read_aloud(repeat: bool) -> None:
    embed = Series(length=11, channels=2, patch=4, stride=3, repeat=repeat).build(8)
    window = seeded(1, 11, 2, grad=False)
    rows = []
    for channel in range(2):
        steps = window[0, :, channel].tolist()
        steps += [steps[-1]] * 3 if repeat else []
        starts = [at for at in range(len(steps)) if (len(steps) - at - 4) % 3 == 0 and at + 4 <= len(steps)]
        rows += [steps[at : at + 4] for at in starts]
    assert torch.equal(embed.cut(window)[0], torch.tensor(rows, dtype=torch.float64))
    assert embed.spec.patches * 2 == len(rows)


def test_the_paper_counts_42_and_64_patches() -> None:
    assert PRESETS["patchtst-small"]().embed.patches == 42 and PRESETS["patchtst"]().embed.patches == 64


# ---------------------------------------------------------------- PatchTST


def theirs_of(pre: bool) -> Any:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=CHANNELS, context_length=LENGTH, prediction_length=HORIZON, patch_length=PATCH,
        patch_stride=STRIDE, d_model=16, num_attention_heads=4, ffn_dim=32, num_hidden_layers=2, norm_type="layernorm",
        pre_norm=pre, positional_encoding_type="random", scaling="std", do_mask_input=False, attention_dropout=0.0,
        ff_dropout=0.0, path_dropout=0.0, head_dropout=0.0, positional_dropout=0.0, use_cls_token=False,
        pooling_type=None, share_projection=True, share_embedding=True, channel_attention=False,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return PatchTSTForPrediction(config)


def from_patchtst(theirs: Any, place: str) -> Weights:
    encoder = theirs.model.encoder
    weights = under("embed.patch", from_linear(encoder.embedder.input_embedding))
    weights["embed.position.table.weight"] = encoder.positional_encoder.position_enc
    for i, layer in enumerate(encoder.layers):
        at, attention = f"stack.blocks.{i}", layer.self_attn
        for kind in ("weight", "bias"):
            parts = [getattr(part, kind) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
            weights[f"{at}.mixer.qkv.{kind}"] = fuse(*parts, 4)
        weights |= under(f"{at}.mixer.out", from_linear(attention.out_proj))
        weights |= under(f"{at}.feed.up", from_linear(layer.ff[0])) | under(f"{at}.feed.down", from_linear(layer.ff[3]))
        weights |= under(f"{at}.around_mixer.{place}", from_norm(layer.norm_sublayer1))
        weights |= under(f"{at}.around_feed.{place}", from_norm(layer.norm_sublayer3))
    return weights | under("head.out", from_linear(theirs.head.projection))


def test_the_whole_network_equals_transformers() -> None:
    theirs = shaken(theirs_of(pre=False)).eval()
    spec = spec_of()
    embed = spec.embed.replace(repeat=False, position=Learned(5))
    block = spec.stack.block.replace(norm=spec.stack.block.norm.replace(eps=1e-5))
    ours = spec.replace(embed=embed, stack=spec.stack.replace(block=block), head=Forecast(horizon=HORIZON, patches=5))
    net = ours.build(dtype=torch.float64).eval()
    window = seeded(2, LENGTH, CHANNELS) * 3.0 + 7.0
    weights = from_patchtst(theirs, "after")
    wanted = theirs(past_values=window).prediction_outputs  # (B,horizon,V)
    leaves = [*theirs.parameters()]
    agree(call(net, weights, window).logits.unflatten(1, (HORIZON, CHANNELS)), wanted, leaves, bound=EXACT)
    mixed = embed.replace(channels=CHANNELS)  # control: channels that see each other
    other = ours.replace(embed=mixed).build(dtype=torch.float64).eval()
    weights["embed.channel.weight"] = torch.zeros(CHANNELS, 16, dtype=torch.float64)
    assert (call(other, weights, window).logits - wanted.flatten(1)).abs().max() > 1e-3


@torch.no_grad()
def test_channels_are_as_if_each_were_alone() -> None:
    net = net_of()
    window = seeded(2, LENGTH, CHANNELS, grad=False)
    together = net(window).logits.unflatten(1, (HORIZON, CHANNELS))
    for channel in range(CHANNELS):
        own = net(window[..., channel : channel + 1]).logits
        assert (together[..., channel] - own).abs().max() < EXACT


@torch.no_grad()
def test_a_forecast_moves_and_grows_with_its_window() -> None:
    """What the window's own mean and deviation were is put back: f(a x + b) = a f(x) + b."""
    net = net_of()
    window = seeded(2, LENGTH, CHANNELS, grad=False)
    plain = net(window).logits
    assert (net(window + 5.0).logits - (plain + 5.0)).abs().max() < EXACT
    large = window * 1e4  # so that the eps beside the variance does not show
    assert (net(large * 2).logits - 2 * net(large).logits).abs().max() < 1e-4 * large.abs().max()
    raw = shaken(spec_of().replace(embed=spec_of().embed.replace(scaled=False)).build(dtype=torch.float64)).eval()
    assert (raw(window + 5.0).logits - (raw(window).logits + 5.0)).abs().max() > 1e-2  # control


# ---------------------------------------------------------------- holes


def test_statistics_leave_out_what_is_missing() -> None:
    window = seeded(2, 9, 2, grad=False)
    window[0, 2:5, 1] = torch.nan
    centre, spread = statistics(window)
    known = window[0, [0, 1, 5, 6, 7, 8], 1]
    assert (centre[0, 0, 1] - known.mean()).abs() < EXACT
    assert (spread[0, 0, 1] - (known.var(correction=0) + 1e-5).sqrt()).abs() < EXACT


@torch.no_grad()
def test_a_patch_of_holes_is_padding_and_time_goes_on() -> None:
    spec = spec_of()
    block = spec.stack.block.replace(relative=Rope())
    net = shaken(spec.replace(stack=spec.stack.replace(block=block)).build(dtype=torch.float64)).eval()
    window = seeded(2, LENGTH, CHANNELS, grad=False)
    window[1, 4:12, 2] = torch.nan
    out = net(window)
    assert out.logits.isfinite().all()
    context = net.embed.layout(window)
    assert (~context.mask).nonzero().tolist() == [[5, 1]]  # steps 4 to 9 of the last channel of the last row
    assert context.positions.tolist() == [list(range(spec.embed.patches))]
    seen = context.mask[5].clone()
    whole = window.clone()
    whole[1, 4:12, 2] = statistics(window)[0][1, 0, 2]  # the mean stands for it, and nothing else of it is read
    there = net.embed(window, context=context)
    same = net.embed(whole, context=context)
    assert (there[5][seen] - same[5][seen]).abs().max() < EXACT


def test_a_channel_of_nothing_has_a_finite_answer_and_slopes() -> None:
    net = net_of()
    window = seeded(1, LENGTH, CHANNELS, grad=False)
    window[..., 1] = torch.nan
    window[..., 2] = 4.0  # and one that never moves
    out = net(window).logits
    out.square().sum().backward()
    assert out.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_half_precision_keeps_the_statistics_in_single() -> None:
    context = spec_of().embed.build(16).bfloat16().layout(seeded(1, LENGTH, CHANNELS, grad=False).bfloat16())
    assert context.centre.dtype == torch.float32


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(2, 21, 3), "expected (B, 22, channels)"), (torch.zeros(2, 22), "expected (B, 22, channels)"),
        (torch.zeros(2, 22, 3, dtype=torch.long), "floating point"), ([1.0], "a window is list"),
    ],
    ids=["too-short", "no-channels", "whole-numbers", "a-list"],
)  # fmt: skip
def test_what_is_no_window_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        spec_of().embed.build(16).layout(given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Series(length=4), "a patch of 16 does not fit"), (lambda: Series(length=64, stride=0), "below 1"),
        (lambda: Series(length=64, position=Learned(3)), "do not fit 3 positions"),
        (lambda: Forecast(horizon=0, patches=1), "below 1"),
    ],
    ids=["short", "stride", "positions", "horizon"],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert said in str(refused.value)


def test_more_tokens_than_the_head_has_places_are_refused() -> None:
    net = spec_of().replace(head=Forecast(horizon=2, patches=3)).build(dtype=torch.float64)
    window: Tensor = torch.zeros(1, LENGTH, CHANNELS, dtype=torch.float64)
    with pytest.raises(UserError, match="tokens do not fit 3"):
        net(window)
