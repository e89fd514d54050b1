"""Padding, neighbours in the batch and packed documents change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Attention, Embed, Head, Joint, Learned, Mixer, Patches, Pooled, Position, Relative, Table, Tokens
from anyformer.checks import padding
from tests.laws.nets import EXACT, around, build, gap, inputs, language, looking, model, pair, tokens
from tests.laws.parts import every, mixers, of_images

LENGTHS = (8, 5, 3)
GIVEN = tokens(3, 8)


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Three texts of different lengths in one batch, random words as padding, and the mask that says so."""
    mask = torch.zeros(3, 8, dtype=torch.bool)
    text = tokens(3, 8, seed=11)
    for row, length in enumerate(LENGTHS):
        at = slice(8 - length, 8) if side == "left" else slice(0, length)
        mask[row, at] = True
        text[row, at] = GIVEN[row, :length]
    return text, mask


@torch.no_grad()
def worst(net: Any, side: str, *, blind: bool = False, **options: Any) -> float:
    """Each row of a padded batch against the same text alone."""
    text, mask = padded(side)
    out = net(text, mask=None if blind else mask, **options)
    found = 0.0
    for row, length in enumerate(LENGTHS):
        single = {name: given[row : row + 1] for name, given in options.items()}
        alone = net(GIVEN[row : row + 1, :length], **single)
        found = max(found, gap(out.hidden[row][mask[row]], alone.hidden[0]))
        if alone.logits is not None and alone.logits.dim() == 2:  # a pooled answer
            found = max(found, gap(out.logits[row], alone.logits[0]))
        elif alone.logits is not None:
            found = max(found, gap(out.logits[row][mask[row]], alone.logits[0]))
        if alone.pooled is not None:
            found = max(found, gap(out.pooled[row], alone.pooled[0]))
    return found


both_sides = pytest.mark.parametrize("side", ["left", "right"])
both_orders = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])


@pytest.mark.quick
@both_sides
@both_orders
@pytest.mark.parametrize("mixer", mixers())
def test_padding_changes_nothing(mixer: Mixer, causal: bool, side: str) -> None:
    causal = causal and mixer.causal_form
    net = build(language(mixer=mixer, position=Learned(24), causal=causal))
    options = looking(mixer, 3)
    assert worst(net, side, **options) < EXACT
    if side == "left" or not (causal or options):  # a causal model does not see what stands right of it
        assert worst(net, side, blind=True, **options) > 1e-3


@both_sides
@both_orders
@pytest.mark.parametrize("relative", every(Relative))
def test_padding_moves_no_relative_position(relative: Relative, causal: bool, side: str) -> None:
    for mixer in (Attention(heads=4), Attention(heads=4, window=3)):
        net = build(language(relative=relative, mixer=mixer, causal=causal))
        assert worst(net, side) < EXACT
    if side == "left":
        assert worst(net, side, blind=True) > 1e-3


@both_sides
@pytest.mark.parametrize("position", every(Position))
def test_padding_moves_no_absolute_position(position: Position, side: str) -> None:
    if of_images(position):
        return  # an image has no padding; test_grid shows that the grid refuses text
    for causal in (True, False):
        assert worst(build(language(position=position, causal=causal)), side) < EXACT
    assert worst(build(language(position=position)), "left", blind=True) > 1e-3


@both_sides
@pytest.mark.parametrize("head", every(Head))
def test_padding_reaches_no_answer(head: Head, side: str) -> None:
    for causal in (True, False):
        assert worst(build(model(head=head, position=Learned(24), causal=causal)), side) < EXACT
    assert worst(build(model(head=head, causal=False)), side, blind=True) > 1e-3


@both_sides
@torch.no_grad()
def test_padding_of_a_source_and_of_a_target_changes_nothing(side: str) -> None:
    net = build(pair(position=Learned(24)))
    text, mask = padded(side)
    out = net(text, text, source_mask=mask, target_mask=mask).logits
    for row, length in enumerate(LENGTHS):
        alone = GIVEN[row : row + 1, :length]
        assert gap(out[row][mask[row]], net(alone, alone).logits[0]) < EXACT
    blind = net(text, text, target_mask=mask).logits
    assert gap(out[2], blind[2]) > 1e-3  # control: source padding that is seen


@pytest.mark.parametrize("embed", every(Embed))
@torch.no_grad()
def test_a_batch_is_its_rows_one_by_one(embed: Embed) -> None:
    for causal in (True, False):
        net = build(model(embed=embed, causal=causal, head=Pooled(classes=3, pool="mean")))
        given = inputs(embed, batch=3)
        out = net(*given)
        for row in range(3):
            single = tuple(one(part, row) for part in given)
            alone = net(*single)
            assert gap(out.hidden[row], alone.hidden[0]) < EXACT and gap(out.logits[row], alone.logits[0]) < EXACT
            assert gap(out.hidden[row], net(*(one(part, (row + 1) % 3) for part in given)).hidden[0]) > 1e-3


def one(part: Any, row: int) -> Any:
    if part is None:
        return None
    return tuple(one(piece, row) for piece in part) if isinstance(part, tuple) else part[row : row + 1]


@torch.no_grad()
def test_a_part_hidden_from_a_row_is_as_if_left_out() -> None:
    embed = Joint(parts=(Tokens(vocab=17, position=Learned(24)), Patches(size=8, patch=4, channels=2)))
    net = build(model(embed=embed, causal=False, head=Pooled(classes=3, pool="mean")))
    text, pixels = inputs(embed, batch=2)
    out = net(text, pixels, mask=(None, torch.tensor([True, False])))
    assert gap(out.logits[0], net(text, pixels).logits[0]) < EXACT
    assert gap(out.logits[1], net(text, None).logits[1]) < EXACT
    assert gap(out.logits[1], net(text, pixels).logits[1]) > 1e-3  # control


@torch.no_grad()
def test_a_missing_value_takes_its_own_vector() -> None:
    net = build(model(embed=Table(numbers=2, categories=(3,), missing=True), causal=False))
    numbers, kinds = torch.tensor([[1.0, torch.nan]], dtype=torch.float64), torch.tensor([[-1]])
    out = net(numbers, kinds).hidden
    assert out.isfinite().all()
    assert gap(out, net(torch.tensor([[1.0, 0.0]], dtype=torch.float64), kinds).hidden) > 1e-3
    assert gap(out, net(numbers, torch.tensor([[2]])).hidden) > 1e-3


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
CUTS = ((0, 3), (3, 7), (7, 8))


@pytest.mark.parametrize("relative", every(Relative))
@torch.no_grad()
def test_packed_documents_equal_separate_passes(relative: Relative) -> None:
    """Positions restart with each document unless the caller gives others."""
    for causal, window in ((True, None), (False, None), (True, 2), (False, 2)):
        mixer = Attention(heads=4, window=window)
        net = build(language(relative=relative, mixer=mixer, position=Learned(24), causal=causal))
        packed = net(GIVEN, documents=DOCUMENTS.expand(3, -1)).logits
        for a, b in CUTS:
            assert gap(packed[:, a:b], net(GIVEN[:, a:b]).logits) < EXACT
        assert gap(net(GIVEN).logits, packed) > 1e-3  # control: read as one text
        assert gap(net(GIVEN, documents=DOCUMENTS).logits, packed) < EXACT  # one row of documents serves all


@both_orders
@pytest.mark.parametrize("mixer", mixers())
@torch.no_grad()
def test_every_mixer_keeps_documents_apart(mixer: Mixer, causal: bool) -> None:
    net, extra = build(around(mixer, causal=causal and mixer.causal_form)), looking(mixer, 3)
    packed = net(GIVEN, documents=DOCUMENTS.expand(3, -1), **extra).logits
    for a, b in CUTS:
        assert gap(packed[:, a:b], net(GIVEN[:, a:b], **extra).logits) < EXACT
    mask = torch.tensor([[True, True, False, True, True, True, False, False]])
    single = {name: given[:1] for name, given in extra.items()}
    holed = net(GIVEN[:1], mask=mask, documents=torch.tensor([[4, 4, 4, 9, 9, 9, 9, 0]]), **single).logits
    assert gap(holed[:, :2], net(GIVEN[:1, :2], **single).logits) < EXACT
    assert gap(holed[:, 3:6], net(GIVEN[:1, 3:6], **single).logits) < EXACT


@torch.no_grad()
def test_packed_documents_with_padding_between_and_behind() -> None:
    mask = torch.tensor([[True, True, False, True, True, True, False, False]])
    documents = torch.tensor([[4, 4, 4, 9, 9, 9, 9, 0]])
    net = build(language(position=Learned(24)))
    packed = net(GIVEN[:1], mask=mask, documents=documents).logits
    assert gap(packed[:, :2], net(GIVEN[:1, :2]).logits) < EXACT
    assert gap(packed[:, 3:6], net(GIVEN[:1, 3:6]).logits) < EXACT


def test_the_callable_check_agrees() -> None:
    net = build(language(position=Learned(24)))
    assert padding(net, side="left") and padding(net, side="right")
    assert not padding(lambda_net(net), side="left")


def lambda_net(net: Any) -> Any:
    """The same model, deaf to masks."""

    class Deaf(torch.nn.Module):
        spec = net.spec

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, given: Tensor, mask: Tensor | None = None) -> Any:
            return self.net(given)

    return Deaf()
