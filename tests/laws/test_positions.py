"""Positions: relative ones depend on the difference only, and order is seen exactly where some position says it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import Embed, Joint, Learned, LinearScaling, Position, Relative, Rope, Sinusoid, checks, preset
from tests.laws.nets import build, gap, inputs, language, model, tokens
from tests.laws.parts import every, named, of_images

GIVEN = tokens(2, 8)
PLACES = torch.arange(8)[None]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("relative", every(Relative))
@torch.no_grad()
def test_relative_positions_depend_on_the_difference_only(relative: Relative, causal: bool) -> None:
    net = build(language(relative=relative, causal=causal))
    base = net(GIVEN).logits
    for shift in (1, 100, 5000):
        # 1e-6: float64 angles of large positions lose some digits to the size of the position itself
        assert gap(net(GIVEN, positions=PLACES + shift).logits, base) < 1e-6
    stretched = gap(net(GIVEN, positions=PLACES * 3).logits, base)  # control: other differences, other answers
    assert stretched > 1e-2 or type(relative).__name__ == "NoRelative"


@pytest.mark.parametrize("position", [Learned(24), Sinusoid()], ids=["learned", "sinusoid"])
@torch.no_grad()
def test_absolute_positions_do_not(position: Position) -> None:
    """The control of the law above."""
    net = build(language(position=position))
    assert gap(net(GIVEN, positions=PLACES + 5).logits, net(GIVEN).logits) > 1e-2


@torch.no_grad()
def test_a_score_turned_by_rope_depends_on_the_difference() -> None:
    """One query and one key, turned to (m, n) and to (m + s, n + s)."""
    from dataclasses import replace

    from anyformer.core.context import lay_out

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    for spec in (Rope(), Rope(layout="interleaved"), Rope(width=4), Rope(scaling=LinearScaling(factor=4.0))):
        module = spec.build(1, 8, 8, True)

        def score(m: int, n: int, spec: Rope = spec, module: Any = module) -> float:
            turned = []
            for x, place in ((q, m), (k, n)):
                context = replace(lay_out(1, 1, torch.device("cpu")), positions=torch.tensor([[place]]))
                turned.append(spec.rotate(x, module(context, torch.float64)))
            return (turned[0] * turned[1]).sum().item()

        for m, n in ((0, 0), (3, 1), (7, 2), (100, 3)):
            assert abs(score(m, n) - score(m + 1000, n + 1000)) < 1e-9
            assert abs(score(m, n) - score(m + 1, n)) > 1e-3  # control


@torch.no_grad()
def test_interpolated_rope_is_rope_at_fractions() -> None:
    net, stretched = build(language(relative=Rope())), build(language(relative=Rope(scaling=LinearScaling(factor=4.0))))
    assert gap(net(GIVEN, positions=PLACES / 4).logits, stretched(GIVEN).logits) < 1e-12
    assert gap(net(GIVEN).logits, stretched(GIVEN).logits) > 1e-3  # control


@pytest.mark.quick
@torch.no_grad()
def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    report = checks.permutation(build(model(causal=False)), GIVEN)
    assert report and report.measured <= 1e-6
    causal = checks.permutation(build(model(causal=True)), GIVEN)  # control: causal order alone shows which came first
    assert not causal and causal.measured > 1e-2


@pytest.mark.parametrize("position", [*every(Position), *every(Relative)])
@torch.no_grad()
def test_any_position_makes_the_order_matter(position: Any) -> None:
    if type(position).__name__ == "NoRelative":
        assert checks.permutation(build(model(causal=False, relative=position)), GIVEN).measured <= 1e-6
        return
    if of_images(position):
        return images_are_ordered_by_their_grid(position)
    place = {"relative": position} if isinstance(position, Relative) else {"position": position}
    report = checks.permutation(build(model(causal=False, **place)), GIVEN)
    assert not report and report.measured > 1e-2


def images_are_ordered_by_their_grid(position: Position) -> None:
    """Patches moved within the image: without positions the same tokens in another order, with them other tokens."""
    from anyformer import Patches

    pixels = torch.randn(1, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    swapped = torch.cat([pixels[..., 4:], pixels[..., :4]], -1)  # left and right half
    order = [0, 2, 1, 4, 3]
    bare = build(model(embed=Patches(size=8, patch=4, channels=2, position=None), causal=False))
    assert gap(bare(swapped).hidden, bare(pixels).hidden[:, order]) < 1e-6
    placed = build(model(embed=Patches(size=8, patch=4, channels=2, position=position), causal=False))
    assert gap(placed(swapped).hidden, placed(pixels).hidden[:, order]) > 1e-2


@pytest.mark.parametrize("embed", every(Embed))
@torch.no_grad()
def test_any_input_is_a_set_without_positions_and_none_with_them(embed: Embed) -> None:
    given = inputs(embed)
    relative = build(model(embed=embed, causal=False, relative=Rope()))
    assert max(checks.permutation(relative, *given, seed=seed).measured for seed in range(4)) > 1e-2
    placed = any(isinstance(part, Position) for _, part in embed.walk())
    if placed:
        found = checks.permutation(build(model(embed=embed, causal=False)), *given)
        assert not found and found.measured > 1e-2
    bare = without_positions(embed)
    found = [checks.permutation(build(model(embed=bare, causal=False)), *given, seed=seed) for seed in range(4)]
    assert all(found) and max(report.measured for report in found) <= 1e-6


def without_positions(embed: Embed) -> Any:
    if isinstance(embed, Joint):
        return embed.replace(parts=tuple(without_positions(part) for part in embed.parts))
    if embed.settings().get("every_layer"):
        embed = embed.replace(every_layer=False)
    return embed.replace(position=None) if embed.settings().get("position") is not None else embed


@torch.no_grad()
def test_a_published_vit_is_no_set_of_patches() -> None:
    """Positions are added before the stack, so a law that shuffled what reaches it would see none."""
    spec, pixels = preset("vit-b16-tiny"), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    placed, bare = (each.build(seed=0) for each in (spec, spec.replace(embed=spec.embed.replace(position=None))))
    for net in (placed, bare):
        net.embed.patch.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    placed.embed.position.table.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(2))
    assert checks.permutation(bare, pixels, bound=1e-5) and not checks.permutation(placed, pixels, bound=1e-2)


@torch.no_grad()
def test_sinusoids_turn_by_a_fixed_angle() -> None:
    """PE(p + k) is one rotation of PE(p), the same for every p; and any length needs no new table."""
    from anyformer.positions.sinusoid import sinusoid

    where = torch.arange(200)[None]
    table = sinusoid(where, 16, torch.float64)[0].unflatten(-1, (8, 2))  # (p, pair, sine and cosine)
    k = 7
    angles = k * 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    sin, cos = table[:-k, :, 0], table[:-k, :, 1]
    turned = torch.stack([sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin()], -1)
    assert gap(turned, table[k:]) < 1e-9
    assert gap(turned, table[k - 1 : -1]) > 1e-2  # control
    net = build(language(position=Sinusoid()))
    assert net(tokens(1, 300)).logits.isfinite().all()


@torch.no_grad()
def test_an_image_of_another_size_resamples_its_grid() -> None:
    embed = named(Embed)["patches"]
    net = build(model(embed=embed, causal=False))
    for height, width in ((8, 8), (16, 16), (12, 20)):
        pixels = torch.randn(1, 2, height, width, dtype=torch.float64)
        out = net(pixels).hidden
        assert out.shape[1] == 1 + (height // 4) * (width // 4) and out.isfinite().all()
    context = net.embed.layout(torch.zeros(1, 2, 8, 8, dtype=torch.float64))
    assert torch.equal(net.embed.position(context, torch.float64)[0], net.embed.position.table.weight)  # same size
