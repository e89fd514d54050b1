"""The badge: green for every kind of model and precision, amber as soon as a term of the scores or the norm is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anyformer import (
    LM,
    Alibi,
    Attention,
    Block,
    Buckets,
    LinearAttention,
    Model,
    NoRelative,
    Relative,
    Rope,
    Shaw,
    Stack,
    Tokens,
)
from anyformer.inspection import trust as module
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.trust import TOLERANCE, Trust, TrustCheck, trust_of
from tests.inspection import models
from tests.laws.nets import build, language, tokens

NAMES = [
    "Rows of the maps sum to 1",
    "Maps times values give the mixers' outputs",
    "Lens of the last layer gives the logits",
]


def net(dtype: torch.dtype = torch.float32, **settings: Any) -> torch.nn.Module:
    return build(language(**({"mixer": Attention(heads=4)} | settings)), dtype=dtype)


def checks(capture: Capture) -> dict[str, bool]:
    return {check.name: check.ok for check in trust_of(capture).checks}


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_of_model_is_trusted(kind: str) -> None:
    capture = look(models.predictor(kind), models.inputs(kind))
    assert capture.trust.ok and [check.name for check in capture.trust.checks] == NAMES
    assert all(check.value < 1e-5 for check in capture.trust.checks)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "relative", [NoRelative(), Rope(), Alibi(), Buckets(), Shaw(4)], ids=lambda r: type(r).__name__
)
def test_every_precision_and_position_is_within_its_tolerance(relative: Relative, dtype: torch.dtype) -> None:
    mixer = Attention(heads=4, kv_heads=2)
    capture = look(net(dtype, mixer=mixer, relative=relative), tokens(2, 24))
    assert capture.trust.ok, capture.trust.text()
    assert [check.tolerance for check in capture.trust.checks] == [1e-5, TOLERANCE[dtype], TOLERANCE[dtype]]


def tampered(capture: Capture, **changes: Any) -> Capture:
    """The same capture whose maps are made from other scores than the kernel was given."""
    own = capture.inputs_of
    capture.kept.clear()

    def inputs_of(site: int, *, row: int | None = None) -> Any:
        given = own(site, row=row)
        return given._replace(scores=replace(given.scores, **changes))

    capture.inputs_of = inputs_of
    return capture


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "change", [{"scale": 0.25}, {"relative": NoRelative(), "tables": ()}, {"causal": False}, {"window": 2}]
)
def test_control_a_lost_term_of_the_scores_is_amber(change: dict[str, Any], dtype: torch.dtype) -> None:
    model = net(dtype, mixer=Attention(heads=4, scale="none"), relative=Alibi())
    assert look(model, tokens(1, 12)).trust.ok
    assert checks(tampered(look(model, tokens(1, 12)), **change)) == dict(zip(NAMES, (True, False, True), strict=True))


def test_control_a_lost_bias_given_by_the_user_is_amber() -> None:
    bias = torch.zeros(1, 1, 12, 12)
    bias[..., 3] = 2.0
    capture = look_with(net(), tokens(1, 12), bias)
    assert checks(capture)[NAMES[1]]
    assert not checks(tampered(capture, added=None))[NAMES[1]]


def look_with(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> Capture:
    """A look at a call with a mask of its own."""
    from anyformer.inspection.given import NetworkInputs
    from anyformer.inspection.replay import replay
    from anyformer.inspection.shadow import shadow

    copied, given = shadow(model), NetworkInputs((ids,), {"mask": mask})
    return Capture(model, ids, None, copied, given, replay(copied, given.args, given.options, lambda *_: True))


def test_control_weights_that_are_no_shares_are_amber(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = look(models.gpt(), models.TEXT)
    own = capture.weights
    monkeypatch.setattr(capture, "weights", lambda site, **named: 1.001 * own(site, **named))
    assert not checks(capture)[NAMES[0]]


def test_control_a_lens_without_the_norm_is_amber(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("gpt", "t5", "vit"):
        capture = look(models.predictor(kind), models.inputs(kind))
        own = module.readout_of
        monkeypatch.setattr(module, "readout_of", lambda *given, own=own: replace(own(*given), norm=None))
        assert checks(capture) == dict(zip(NAMES, (True, True, False), strict=True))
        monkeypatch.undo()
        assert trust_of(capture).ok


def test_control_a_missing_value_is_amber() -> None:
    assert not TrustCheck("x", float("nan"), 1.0).ok
    assert not Trust((TrustCheck("x", 0.0, 1.0), TrustCheck("y", 2.0, 1.0))).ok


def test_rows_that_see_nothing_are_no_error() -> None:
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 2, :] = False
    capture = look_with(net(), tokens(1, 6), mask)
    assert capture.weights(0)[:, 2].sum() == 0 and capture.trust.ok


def test_a_long_input_is_measured_at_both_ends_without_a_whole_map() -> None:
    capture = look(net(depth=1), tokens(1, 1500), budget="16MB")  # a map would be 36 MB
    asked: list[int] = []
    own = capture.weights

    def weights(site: int, *, rows: slice = slice(None), row: int | None = None) -> torch.Tensor:
        asked.extend(range(rows.start, rows.stop))
        return own(site, rows=rows, row=row)

    capture.weights = weights
    assert trust_of(capture).ok and asked == [*range(128), *range(1372, 1500)]


def test_a_mixer_without_values_is_measured_by_its_rows() -> None:
    stack = Stack(width=16, depth=1, causal=True, block=Block(mixer=LinearAttention(heads=2)))
    model = Model(embed=Tokens(vocab=17), stack=stack, head=LM()).build(seed=0)
    found = look(model, tokens(1, 8)).trust
    assert found.ok and [check.name for check in found.checks] == [NAMES[0], NAMES[2]]


def test_the_badge_in_words() -> None:
    lines = look(models.gpt(), models.TEXT).trust.text().splitlines()
    assert len(lines) == 3 and all(line.startswith("ok ") for line in lines)
