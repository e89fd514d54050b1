"""Decoding with a state: fed in any pieces, a text gets the answers of one full pass."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from anyformer import Alibi, Attention, Learned, Mixer, Norm, Position, Relative, RMSNorm, Rope, Shaw, Sinusoid, checks
from anyformer.checks import answer_of
from tests.laws.broken import Forgetful
from tests.laws.nets import EXACT, around, build, gap, language, looking, model, pair, stepwise, tokens
from tests.laws.parts import every, mixers, named, of_images

LENGTH = 9
GIVEN = tokens(3, LENGTH)
ONE_BY_ONE = list(range(LENGTH))
CUTS = {
    "from-nothing": ONE_BY_ONE,
    "prefill-1": [0, *ONE_BY_ONE[1:]],
    "prefill-5": [0, *ONE_BY_ONE[5:]],
    "prefill-all-but-one": [0, LENGTH - 1],
    "whole": [0],
    "chunks": [0, 2, 3, 7],
}
MASKED = torch.ones(3, LENGTH, dtype=torch.bool)
MASKED[0, :3] = MASKED[1, :1] = False  # left padding, as batched generation has it


@torch.no_grad()
def error(spec: Any, cuts: list[int], *, limit: int | None = None, rolling: bool = True, **options: Any) -> float:
    net = build(spec)
    full = answer_of(net(GIVEN, **options))
    return gap(stepwise(net, GIVEN, cuts, net.state(3, limit, rolling=rolling), **options), full)


@pytest.mark.parametrize("limit", [None, LENGTH], ids=["growing", "static"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("mixer", mixers(causal=True))
def test_pieces_equal_the_full_pass(mixer: Mixer, cuts: list[int], limit: int | None) -> None:
    assert error(language(mixer=mixer, position=Sinusoid()), cuts, limit=limit, **looking(mixer, 3)) < EXACT


@pytest.mark.quick
def test_a_cache_that_forgets_is_noticed() -> None:
    """The control of every law in this file."""
    for mixer in named(Mixer).values():
        if isinstance(mixer, Attention) and mixer.window != 2:
            assert error(language(mixer=Forgetful(inner=mixer)), CUTS["prefill-5"]) > 1e-3


@pytest.mark.parametrize("relative", every(Relative))
@pytest.mark.parametrize("mixer", [Attention(heads=4), Attention(heads=4, kv_heads=2, window=3)], ids=["mha", "window"])
def test_relative_positions_go_on_where_they_were(relative: Relative, mixer: Mixer) -> None:
    for cuts in (CUTS["prefill-5"], CUTS["chunks"]):
        assert error(language(relative=relative, mixer=mixer), cuts) < EXACT


@pytest.mark.parametrize("position", [*every(Position), pytest.param(None, id="none")])
@pytest.mark.parametrize("norm", every(Norm))
def test_absolute_positions_go_on_where_they_were(position: Position | None, norm: Norm) -> None:
    if of_images(position):
        position = None  # an image is there from the beginning; the grid refuses text (test_grid)
    assert error(language(position=position, norm=norm), CUTS["prefill-5"]) < EXACT


@pytest.mark.parametrize("place", ["pre", "post", "branch", "sandwich"])
@pytest.mark.parametrize("order", ["serial", "parallel"])
def test_places_orders_and_shared_layers_decode(place: str, order: str) -> None:
    assert error(language(place=place, order=order), CUTS["prefill-5"]) < EXACT
    shared = language(place=place, order=order, depth=4, stack={"groups": 2})
    assert error(shared, CUTS["chunks"]) < EXACT  # layers that share weights remember apart


@pytest.mark.parametrize("mixer", mixers(causal=True))
@torch.no_grad()
def test_every_mixer_decodes_padded_prompts_and_documents(mixer: Mixer) -> None:
    """Padding left and right of a prompt, and packed texts: each row goes on as if it were alone."""
    net, extra = build(around(mixer)), looking(mixer, 3)
    right = torch.ones(3, 6, dtype=torch.bool)
    right[0, 4:] = right[2, 5:] = False
    for mask in (MASKED[:, :6], right):
        state = net.state(3)
        net(GIVEN[:, :6], mask=mask, state=state, **extra)
        steps = [net(GIVEN[:, 6:8], state=state, **extra).logits, net(GIVEN[:, 8:], state=state, **extra).logits]
        for row in range(3):
            real = torch.cat([GIVEN[row, :6][mask[row]], GIVEN[row, 6:]])[None]
            alone = net(real, **{name: given[row : row + 1] for name, given in extra.items()}).logits
            assert gap(torch.cat(steps, 1)[row : row + 1], alone[:, -3:]) < EXACT
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]).expand(3, -1)
    full, state = net(GIVEN, documents=documents, **extra).logits, net.state(3)
    for a, b in itertools.pairwise([0, 2, 5, 6, 7, 8, 9]):
        got = net(GIVEN[:, a:b], documents=documents[:, a:b], state=state, **extra).logits
        assert gap(got, full[:, a:b]) < EXACT
    if not mixer.looks_at_memory or mixer.exact:
        assert gap(full[:, :3], net(GIVEN[:, :3], **extra).logits) < EXACT


@pytest.mark.parametrize("mixer", mixers(causal=True))
@torch.no_grad()
def test_every_mixer_reorders_its_rows_and_takes_tokens_back(mixer: Mixer) -> None:
    """Beams repeat and drop rows; speculation takes back what was refused, where the state was made for it."""
    net, extra = build(around(mixer)), looking(mixer, 3)
    full = net(GIVEN, **extra).logits
    rows = torch.tensor([2, 0, 0])
    state = net.state(3)
    net(GIVEN[:, :5], state=state, **extra)
    state.select(rows)
    picked = {name: given[rows] for name, given in extra.items()}
    assert gap(net(GIVEN[rows, 5:], state=state, **picked).logits, full[rows, 5:]) < EXACT
    state = net.state(3, rolling=False)
    net(GIVEN[:, :4], state=state, **extra)
    net((GIVEN[:, 4:7] + 1) % 17, state=state, **extra)  # refused, and taken back
    assert gap(net(GIVEN[:, 4:], state=state.truncate(4), **extra).logits, full[:, 4:]) < EXACT
    wrong = net.state(3)  # control: rows left where they were
    net(GIVEN[:, :5], state=wrong, **extra)
    assert mixer.looks_at_memory or gap(net(GIVEN[rows, 5:], state=wrong, **picked).logits, full[rows, 5:]) > 1e-6


@torch.no_grad()
def test_a_padded_prompt_decodes_as_if_alone() -> None:
    """Left padding in the prefill, then steps without any mask: each row equals the same row alone, unpadded."""
    for mixer in (Attention(heads=4), Attention(heads=4, kv_heads=1, window=3)):
        for relative in (Rope(), Alibi(), Shaw(2)):
            net = build(language(mixer=mixer, relative=relative, position=Learned(24)))
            state = net.state(3)
            parts = [net(GIVEN[:, :5], mask=MASKED[:, :5], state=state).logits]
            parts += [net(GIVEN[:, t : t + 1], state=state).logits for t in range(5, LENGTH)]
            got = torch.cat(parts, 1)
            for row in range(3):
                pads = int((~MASKED[row]).sum())
                alone = net(GIVEN[row : row + 1, pads:]).logits
                assert gap(got[row : row + 1, pads:], alone) < EXACT
            blind = net(GIVEN[:1]).logits  # control: the padding taken for text
            assert gap(got[:1, 3:], blind[:, 3:]) > 1e-3


@torch.no_grad()
def test_padding_on_the_right_of_a_prompt_decodes_too() -> None:
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, 4:] = mask[2, 5:] = False
    for mixer in (Attention(heads=4), Attention(heads=4, window=3)):
        net = build(language(mixer=mixer, position=Sinusoid()))
        state = net.state(3)
        net(GIVEN[:, :6], mask=mask, state=state)
        steps = torch.cat([net(GIVEN[:, t : t + 1], state=state).logits for t in range(6, LENGTH)], 1)
        for row in range(3):
            real = torch.cat([GIVEN[row, :6][mask[row]], GIVEN[row, 6:]])[None]
            assert gap(steps[row : row + 1], net(real).logits[:, -3:]) < EXACT


@torch.no_grad()
def test_chunks_padded_on_the_left_keep_what_a_window_needs() -> None:
    """Padding between real tokens: the newest keys of a row are then not its last tokens."""
    net = build(language(mixer=Attention(heads=4, window=3), depth=1))
    state = net.state(1)
    first, second, last = GIVEN[:1, :3], GIVEN[:1, 3:7], GIVEN[:1, 7:8]
    net(first, state=state)
    net(second, mask=torch.tensor([[False, False, False, True]]), state=state)
    got = net(last, state=state).logits
    real = torch.cat([first, second[:, 3:], last], 1)
    assert gap(got, net(real).logits[:, -1:]) < EXACT


@torch.no_grad()
def test_positions_count_against_the_limit_without_padding() -> None:
    """Eight real tokens fit eight learned positions, however much padding stands before them."""
    net = build(language(position=Learned(8)))
    mask = torch.ones(1, 10, dtype=torch.bool)
    mask[:, :4] = False
    state = net.state(1)
    padded = torch.cat([tokens(1, 4, seed=9), GIVEN[:1, :6]], 1)
    net(padded, mask=mask, state=state)
    steps = torch.cat([net(GIVEN[:1, t : t + 1], state=state).logits for t in (6, 7)], 1)
    assert gap(steps, net(GIVEN[:1, :8]).logits[:, 6:]) < EXACT


@torch.no_grad()
def test_documents_decode_as_separate_texts() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]).expand(3, -1)
    for mixer in (Attention(heads=4), Attention(heads=4, window=2)):
        net = build(language(mixer=mixer, relative=Rope(), position=Learned(24)))
        full = net(GIVEN, documents=documents).logits
        state = net.state(3)
        cuts = [0, 2, 5, 6, 7, 8, 9]
        parts = [
            net(GIVEN[:, a:b], documents=documents[:, a:b], state=state).logits for a, b in itertools.pairwise(cuts)
        ]
        assert gap(torch.cat(parts, 1), full) < EXACT
        assert gap(full, net(GIVEN).logits) > 1e-2  # control: without documents the answers are others


def test_the_callable_check_agrees() -> None:
    assert checks.cache(build(language(norm=RMSNorm(), relative=Rope())))
    assert not checks.cache(build(language(mixer=Forgetful(inner=Attention(heads=4)))))


@torch.no_grad()
def test_an_encoder_decoder_decodes_and_computes_the_source_once() -> None:
    source, source_mask = tokens(3, 5, seed=4), torch.ones(3, 5, dtype=torch.bool)
    source_mask[0, 3:] = False
    net = build(pair(relative=Rope(), position=Sinusoid()))
    full = net(source, GIVEN, source_mask=source_mask).logits
    calls = {"encoder": 0, "kv": 0, "q": 0}

    def count(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    net.encoder.register_forward_hook(count("encoder"))
    for layer in net.decoder.stack.blocks:
        layer.cross.kv.register_forward_hook(count("kv"))
        layer.cross.q.register_forward_hook(count("q"))
    state = net.state(3)
    first = net(source, GIVEN[:, :2], source_mask=source_mask, state=state).logits
    rest = [net(None, GIVEN[:, t : t + 1], state=state).logits for t in range(2, LENGTH)]
    assert gap(torch.cat([first, *rest], 1), full) < EXACT
    depth = len(net.decoder.stack.blocks)
    assert calls == {"encoder": 1, "kv": depth, "q": depth * (LENGTH - 1)}  # q: the control, once a pass
    given = net(None, GIVEN, memory=net.encode(source, source_mask), source_mask=source_mask).logits
    assert gap(given, full) < EXACT


@torch.no_grad()
def test_a_joint_sequence_decodes() -> None:
    """An image, then text word by word: the text's own positions go on where they were."""
    from anyformer import Joint, Patches, Tokens

    for position in (None, Learned(24), Sinusoid()):
        embed = Joint(parts=(Patches(size=8, patch=4, channels=2), Tokens(vocab=17, position=position)))
        net = build(model(embed=embed))
        pixels = torch.randn(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        full = net(pixels, GIVEN).hidden
        state = net.state(3)
        parts = [net(pixels, GIVEN[:, :3], state=state).hidden]
        parts += [net(None, GIVEN[:, t : t + 1], state=state).hidden for t in range(3, LENGTH)]
        assert gap(torch.cat(parts, 1), full) < EXACT
