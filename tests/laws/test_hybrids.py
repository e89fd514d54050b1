"""Stacks of different layers: any mixers, positions and windows in one model meet the laws together."""

from __future__ import annotations

import itertools

import pytest
import torch

from anyformer import Alibi, Attention, Block, Mixer, Model, NoRelative, Rope, Shaw, Stack, Tokens, checks
from anyformer.checks import answer_of
from tests.laws.nets import EXACT, build, gap, leak, looking, rounding, stepwise, tokens
from tests.laws.parts import VOCAB, WIDTH, examples, ours

GIVEN = tokens(3, 11)


def hybrid(*blocks: Block, causal: bool = True, depth: int | None = None) -> Model:
    stack = Stack(width=WIDTH, depth=len(blocks) if depth is None else depth, causal=causal, block=blocks)
    return Model(embed=Tokens(vocab=VOCAB), stack=stack, init="xavier")


def all_mixers() -> list[Mixer]:
    """One example of every mixer that can read text in order and needs no memory."""
    found = [next(iter(examples(part).values())) for part in ours(Mixer) if examples(part)]
    return [mixer for mixer in found if mixer.causal_form and not mixer.needs_grid and not mixer.looks_at_memory]


@torch.no_grad()
def test_every_mixer_in_one_stack_meets_the_laws() -> None:
    mixers = all_mixers()
    assert len(mixers) >= 2
    net = build(hybrid(*(Block(mixer=mixer) for mixer in mixers)))
    assert Model.from_json(net.spec.to_json()) == net.spec
    full = answer_of(net(GIVEN))
    assert leak(net, GIVEN) <= max(rounding(mixer) for mixer in mixers)
    for cuts in ([0, *range(4, 11)], [0, 2, 3, 9]):
        assert gap(stepwise(net, GIVEN, cuts, net.state(3)), full) < EXACT
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, :4] = mask[1, 7:] = mask[2, 5] = False
    padded = answer_of(net(GIVEN, mask=mask))
    for row in range(3):
        alone = answer_of(net(GIVEN[row : row + 1, mask[row]]))
        assert gap(padded[row][mask[row]], alone[0]) < EXACT
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]]).expand(3, -1)
    packed = answer_of(net(GIVEN, documents=documents))
    for a, b in ((0, 3), (3, 8), (8, 11)):
        assert gap(packed[:, a:b], answer_of(net(GIVEN[:, a:b]))) < EXACT
    assert gap(packed, full) > 1e-3  # control


@pytest.mark.quick
@torch.no_grad()
def test_positions_and_windows_may_change_from_layer_to_layer() -> None:
    """Local layers with rotary positions and a wide one without, as recent decoders have them."""
    local = Block(mixer=Attention(heads=4, kv_heads=2, window=3), relative=Rope())
    wide = Block(mixer=Attention(heads=4), relative=NoRelative())
    slanted = Block(mixer=Attention(heads=2, window=5), relative=Alibi())
    turned = Block(mixer=Attention(heads=4), relative=Shaw(2))
    net = build(hybrid(local, local, wide, slanted, turned, depth=7))
    assert [block.relative for block in net.spec.stack.layers[:5]] == [Rope(), Rope(), NoRelative(), Alibi(), Shaw(2)]
    full = answer_of(net(GIVEN))
    for cuts in ([0, *range(1, 11)], [0, 5, 6, 9]):
        assert gap(stepwise(net, GIVEN, cuts, net.state(3)), full) < EXACT
    assert checks.causal(net).measured == 0.0
    for changed in itertools.islice(itertools.permutations((local, wide, slanted)), 1, 3):  # control: the order counts
        other = build(hybrid(*changed))
        assert gap(answer_of(other(GIVEN)), answer_of(build(hybrid(local, wide, slanted))(GIVEN))) > 1e-3


@torch.no_grad()
def test_a_layer_that_looks_at_a_memory_stands_beside_others() -> None:
    seeing = [part for part in ours(Mixer) if examples(part) and next(iter(examples(part).values())).looks_at_memory]
    assert seeing
    for part in seeing:
        mixer = next(iter(examples(part).values()))
        net = build(hybrid(Block(mixer=Attention(heads=4), relative=Rope()), Block(mixer=mixer)))
        extra = looking(mixer, 3)
        full = answer_of(net(GIVEN, **extra))
        assert gap(stepwise(net, GIVEN, [0, 3, 4, 8], net.state(3), **extra), full) < EXACT
