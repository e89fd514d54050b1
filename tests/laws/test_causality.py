"""Causality: what comes later changes nothing before it, exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import Alibi, Feed, Head, Learned, Mixer, Norm, Position, Relative, Rope, Sinusoid, checks
from anyformer.core.context import lay_out
from tests.laws.broken import Peeking
from tests.laws.nets import build, filled, language, leak, looking, model, pair, rounding, tokens
from tests.laws.parts import MEMORY_WIDTH, every, mixers, of_images

PLACES = ("pre", "post", "branch", "sandwich")
GIVEN = tokens(2, 7)


def run(spec: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    net = build(spec, dtype)
    return torch.no_grad()(lambda given: net(given, **options))


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("mixer", mixers(causal=True))
def test_the_future_does_not_reach_the_past(mixer: Mixer, dtype: torch.dtype) -> None:
    options = looking(mixer, dtype=dtype)
    assert leak(run(language(mixer=mixer), dtype, **options), GIVEN) <= rounding(mixer, dtype)
    assert leak(run(language(mixer=Peeking(inner=mixer)), dtype, **options), GIVEN) > 1e-2  # control


@pytest.mark.parametrize("relative", every(Relative))
def test_no_relative_position_lets_the_future_in(relative: Relative) -> None:
    assert leak(run(language(relative=relative)), GIVEN) == 0.0
    assert leak(run(language(relative=relative, causal=False)), GIVEN) > 1e-2  # control: without causal order it flows


@pytest.mark.parametrize("position", every(Position))
def test_no_absolute_position_lets_the_future_in(position: Position) -> None:
    if of_images(position):
        return patches_can_be_read_in_order(position)
    assert leak(run(language(position=position)), GIVEN) == 0.0
    assert leak(run(language(position=position, causal=False)), GIVEN) > 1e-2


def patches_can_be_read_in_order(position: Position) -> None:
    """Grid positions are for images: there the future is the patches further down."""
    from anyformer import Patches

    for causal, bound in ((True, 0.0), (False, 1e-2)):
        net = build(model(embed=Patches(size=8, patch=4, channels=2, position=position), causal=causal))
        pixels = torch.randn(1, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        changed = pixels.clone()
        changed[..., 4:, 4:] = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        moved = (net(pixels).hidden - net(changed).hidden)[:, :4].abs().max().item()  # class token and three patches
        assert moved == 0.0 if causal else moved > bound


@pytest.mark.parametrize("order", ["serial", "parallel"])
@pytest.mark.parametrize("place", PLACES)
def test_no_place_or_order_lets_the_future_in(place: str, order: str) -> None:
    assert leak(run(language(place=place, order=order, layer_scale=0.5)), GIVEN) == 0.0
    assert leak(run(language(place=place, order=order, layer_scale=0.5, causal=False)), GIVEN) > 1e-2


@pytest.mark.parametrize("part", every(Norm, Feed))
def test_norms_and_feeds_stay_within_a_token(part: Any) -> None:
    spec = language(norm=part) if isinstance(part, Norm) else language(feed=part)
    long = tokens(2, 40)  # enough that many tokens choose one expert
    assert leak(run(spec), long) <= (rounding(part) if isinstance(part, Feed) else 0.0)
    # Control: the same part over time instead of channels mixes tokens.
    module = filled(part.build(GIVEN.shape[1]).double())
    x = torch.randn(1, 16, GIVEN.shape[1], dtype=torch.float64)
    changed = x.clone()
    changed[..., -1] += 3.0
    context = lay_out(1, 16, torch.device("cpu"))
    moved = (answered(module, x, context) - answered(module, changed, context))[..., :-1].abs().max().item()
    assert moved > 1e-3 or type(part).__name__ == "NoNorm"


def answered(module: Any, x: torch.Tensor, context: Any) -> torch.Tensor:
    """A norm takes tokens alone; a feed takes the context too, and may give losses besides."""
    out = (
        module(x)
        if isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm | torch.nn.Identity)
        else module(x, context)
    )
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("head", every(Head))
def test_heads_of_tokens_keep_the_order(head: Head) -> None:
    """A head that answers for each token reads that token only; one that pools is measured at the tokens below it."""
    assert leak(run(model(head=head)), GIVEN) == 0.0
    assert leak(run(model(head=head, causal=False)), GIVEN) > 1e-2


def test_the_decoder_of_a_pair_keeps_the_order_and_its_encoder_does_not() -> None:
    net = build(pair(relative=Rope()))
    source = tokens(2, 5, seed=3)
    with torch.no_grad():
        assert leak(lambda given: net(source, given), GIVEN) == 0.0
        assert leak(lambda given: net(given, source), GIVEN) > 1e-2  # every source token reaches every target
    assert MEMORY_WIDTH != 16  # so that a mix-up of the two widths would not fit


@pytest.mark.parametrize("relative", [Rope(), Alibi()], ids=["rope", "alibi"])
def test_shifted_and_stretched_positions_cannot_break_the_order(relative: Relative) -> None:
    """Causal order compares ranks, never the positions a caller gives."""
    turned = torch.arange(GIVEN.shape[1]).flip(0)[None]
    assert leak(run(language(relative=relative), positions=turned), GIVEN) == 0.0
    assert leak(run(language(relative=relative), positions=turned * 3 + 5), GIVEN) == 0.0


def test_the_gradient_of_a_future_token_is_exactly_zero() -> None:
    net = build(language(position=Sinusoid()))
    rows = []
    net.embed.register_forward_hook(lambda *seen: rows.append(seen[2]))
    context_free = net(GIVEN).logits
    (hidden,) = rows
    hidden.retain_grad()
    context_free[:, 3].square().sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[:, 4:].abs().max() == 0.0
    assert hidden.grad[:, :4].abs().amax((0, 2)).min() > 1e-6  # control: every earlier token has one


def test_the_callable_check_agrees() -> None:
    assert checks.causal(build(language(position=Learned(24))))
    report = checks.causal(build(language(position=Learned(24), causal=False)))
    assert not report and report.measured > 1e-2 and "BROKEN" in str(report)
