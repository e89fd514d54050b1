"""Gradient times attention: slopes against finite differences, the product against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import LM, Attention, Block, LinearAttention, Model, Patches, Pooled, Shaw, Stack, Tokens
from anyformer.core.attend import spread, weights_of
from anyformer.errors import UserError
from anyformer.inspection import relevance as relevance_module
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.relevance import gradient_maps, relevance, why_not
from tests.inspection.test_rollout import Built, image, image_and_text, pair, sharp, streams, table, text, windows

STEP = 1e-5


def captured(build: Callable[[], Built], row: int = 0) -> Capture:
    torch.manual_seed(1)
    model, inputs = build()
    doubled = tuple(part.double() if part.is_floating_point() else part for part in inputs)
    capture = look(sharp(model).double(), doubled)
    capture.row = row
    return capture


@contextmanager
def nudged(monkeypatch: pytest.MonkeyPatch, site: int, entry: tuple[int, ...], by: float) -> Iterator[None]:
    """One weight of one attention, counted in the order of calls, is larger by a little."""
    calls = [0]

    def attend(q: Tensor, k: Tensor, v: Tensor, scores: Any, *, dropout: float = 0.0) -> Tensor:
        weights = weights_of(q, k, scores).clone()
        if calls[0] == site:
            weights[entry] += by
        calls[0] += 1
        return weights @ spread(v, q.shape[1])

    with monkeypatch.context() as patch:
        for module in ("attention", "cross", "local"):
            patch.setattr(f"anyformer.mixers.{module}.attend", attend)
        yield


def slope(
    patch: pytest.MonkeyPatch, capture: Capture, site: int, entry: tuple[int, ...], goal: tuple[int, ...]
) -> float:
    """How much the logit grows with that weight, by central differences."""
    ends = []
    for by in (STEP, -STEP):
        with nudged(patch, site, entry, by), torch.no_grad():
            ends.append(float(capture.model(*capture.given.args, **capture.given.options).logits[goal]))
    return (ends[0] - ends[1]) / (2 * STEP)


@pytest.mark.parametrize("build", [image, text, table, image_and_text, windows, pair, streams])
def test_slopes_are_those_of_finite_differences(build: Callable[[], Built], monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(build)
    logits = capture.output.logits[0]
    place = () if logits.dim() == 1 else (logits.shape[0] - 1,)
    goal = (0, *place, int(logits[place].argmax()))
    maps = gradient_maps(capture)
    assert sorted(maps) == [site.index for site in capture.sites]
    checked = 0.0
    for site in capture.sites[:: max(1, len(capture.sites) // 3)]:
        weights = capture.weights(site.index).double()
        for query, key in ((weights.shape[1] - 1, 0), (0, 0), (weights.shape[1] - 1, weights.shape[2] - 1)):
            entries = [(0, head, query, key) for head in range(weights.shape[0])]
            slopes = np.array([slope(monkeypatch, capture, site.index, entry, goal) for entry in entries])
            expected = np.maximum(slopes * weights[:, query, key].numpy(), 0).mean()
            assert float(maps[site.index][query, key]) == pytest.approx(expected, rel=1e-3, abs=1e-7)
            checked = max(checked, expected)
    assert checked > 1e-4  # something was there to compare


def rolled(maps: list[np.ndarray]) -> np.ndarray:
    result = np.eye(maps[0].shape[0])
    for raised in maps:
        result = result + raised @ result
    return result - np.eye(maps[0].shape[0])


@pytest.mark.parametrize("build", [image, text, table, image_and_text, windows])
def test_relevance_is_the_naive_product(build: Callable[[], Built]) -> None:
    capture = captured(build)
    maps = [gradient_maps(capture)[site.index].numpy() for site in capture.sites]
    found = relevance(capture)
    assert found.numpy() == pytest.approx(rolled(maps), abs=1e-12) and bool((found >= 0).all())
    assert torch.equal(capture.relevance(rows=[1], depth=2), relevance(capture, rows=[1], depth=2))
    assert found.numpy() != pytest.approx(rolled(maps[::-1]), abs=1e-6)  # control: the wrong order
    assert relevance(capture, rows=[1], depth=2).numpy() == pytest.approx(rolled(maps[:2])[1:2], abs=1e-12)


def test_relevance_reaches_the_source() -> None:
    capture = captured(pair)
    maps = gradient_maps(capture)
    source = rolled([maps[s.index].numpy() for s in capture.sites if s.stack == "encoder"]) + np.eye(6)
    own, read = np.eye(4), np.zeros((4, 6))
    for site in capture.sites:
        raised = maps[site.index].numpy()
        if site.stack == "decoder" and site.kind == "self":
            own, read = own + raised @ own, read + raised @ read
        elif site.kind == "cross":
            read = read + raised @ source
    assert relevance(capture).numpy() == pytest.approx(read, abs=1e-12)


def test_relevance_reaches_both_streams() -> None:
    capture = captured(streams)
    maps = gradient_maps(capture)
    state = {"first": np.eye(5, 10), "second": np.eye(5, 10, 5)}
    before = dict(state)
    for i, site in enumerate(capture.sites):
        raised, side = maps[site.index].numpy(), site.stack
        meets = site.kind == "cross"
        if not meets or capture.sites[i - 1].kind != "cross" or capture.sites[i - 1].stack == side:
            before = dict(state)  # both streams look at what the other was before they met
        state[side] = state[side] + raised @ (
            before["second" if side == "first" else "first"] if meets else state[side]
        )
    assert relevance(capture).numpy() == pytest.approx(state["first"] - np.eye(5, 10), abs=1e-12)
    assert float(relevance(capture)[:, 5:].max()) > 0


def test_every_answer_has_its_own_relevance() -> None:
    capture = captured(image)
    best = int(capture.output.logits[0].argmax())
    assert torch.equal(relevance(capture), relevance(capture, answer=best))
    assert not torch.allclose(relevance(capture, answer=(best + 1) % 3), relevance(capture, answer=best), atol=1e-6)


def test_later_tokens_are_irrelevant_to_an_earlier_answer() -> None:
    found = relevance(captured(text), at=3)
    assert float(found[:, 4:].abs().max()) == 0.0 and float(found[3, :4].max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pass_with_gradients_is_the_same_pass(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def shaw() -> Built:
        block = Block(mixer=Attention(heads=4, kv_heads=2), relative=Shaw(4))
        net = Model(embed=Tokens(vocab=30), stack=Stack(width=16, depth=2, causal=True, block=block), head=LM())
        return net.build(seed=0), (torch.randint(30, (1, 7)),)

    torch.manual_seed(1)
    model, inputs = shaw()
    capture, seen = look(sharp(model).to(dtype), inputs), []
    picked = relevance_module.chosen_logit
    monkeypatch.setattr(relevance_module, "chosen_logit", lambda *given: seen.append(given[1].logits) or picked(*given))
    assert float(capture.relevance().max()) > 0
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert torch.allclose(seen[0], capture.output.logits, atol=tolerance, rtol=tolerance)
    plain = relevance_module.apply_weights
    monkeypatch.setattr(relevance_module, "apply_weights", lambda w, v, s: plain(w, v, replace(s, relative=None)))
    other = look(capture.source, inputs)
    other.relevance()
    assert not torch.allclose(seen[1], capture.output.logits, atol=tolerance, rtol=tolerance)  # control: a term less


def test_rows_of_a_table_are_kept_apart() -> None:
    first, second = (relevance(captured(table, row)) for row in (0, 1))
    assert not torch.allclose(first, second, atol=1e-6)
    alone = captured(lambda: (table()[0], tuple(part[1:] for part in two_rows())))
    together = captured(lambda: (table()[0], two_rows()), 1)
    assert torch.allclose(relevance(alone), relevance(together), atol=1e-9)


def two_rows() -> tuple[Tensor, ...]:
    torch.manual_seed(5)
    return torch.randn(2, 3), torch.randint(4, (2, 2))


def test_the_model_is_left_as_it_was() -> None:
    capture = captured(image)
    before = capture.rerun().logits
    relevance(capture)
    assert torch.equal(capture.rerun().logits, before)
    assert all(parameter.grad is None for parameter in capture.source.parameters())
    assert "forward" not in vars(capture.model.get_submodule(capture.sites[0].path))


def test_one_backward_pass_serves_every_depth_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, passes = captured(image), []
    once = relevance_module.computed_maps
    monkeypatch.setattr(relevance_module, "computed_maps", lambda *given: passes.append(given) or once(*given))
    for depth in range(4):
        relevance(capture, answer=1, depth=depth, rows=[depth])
        capture.rollout(depth=depth)
    assert len(passes) == 1
    relevance(capture, answer=2)
    assert len(passes) == 2


def test_it_works_on_inputs_made_without_gradients() -> None:
    torch.manual_seed(1)
    model, _ = image()
    with torch.inference_mode():
        pixels = torch.randn(1, 3, 8, 12)
        capture = look(sharp(model), (pixels,))
    assert float(relevance(capture).max()) > 0


def test_mixers_without_plain_weights_are_named() -> None:
    stack = Stack(width=16, depth=1, block=Block(mixer=LinearAttention(heads=4)))
    net = Model(embed=Patches(size=8, patch=4), stack=stack, head=Pooled(classes=2)).build(seed=0)
    capture = look(net, (torch.randn(1, 3, 8, 8),))
    with pytest.raises(UserError, match="whose weights have no gradient of their own; use rollout"):
        relevance(capture)


def test_a_network_without_a_head_is_named() -> None:
    stack = Stack(width=16, depth=1, block=Block(mixer=Attention(heads=4)))
    capture = look(Model(embed=Patches(size=8, patch=4), stack=stack).build(seed=0), (torch.randn(1, 3, 8, 8),))
    assert why_not(capture) == "this network has no logits to take a gradient of"


@pytest.mark.parametrize("answer", [99, -1])
def test_answers_that_do_not_exist_are_refused(answer: int) -> None:
    with pytest.raises(UserError, match="answer .* is out of range"):
        relevance(captured(image), answer=answer)


def test_layers_that_share_weights_are_kept_apart() -> None:
    torch.manual_seed(1)
    stack = Stack(width=16, depth=3, groups=1, block=Block(mixer=Attention(heads=4)))
    net = Model(embed=Patches(size=8, patch=4), stack=stack, head=Pooled(classes=2)).build(seed=0)
    capture = look(sharp(net), (torch.randn(1, 3, 8, 8),))
    assert len(capture.sites) == 3 and len({site.path for site in capture.sites}) == 1
    maps = gradient_maps(capture)
    assert not torch.allclose(maps[0], maps[1], atol=1e-9) and not torch.allclose(maps[1], maps[2], atol=1e-9)
