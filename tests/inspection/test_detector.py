"""A trained detector, looked into: which object it is surest of, and where that one looked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.inspection.answer import Query
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.views import remove
from tests.training.test_detection import annotated


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    folder = tmp_path_factory.mktemp("objects")
    data = annotated(folder / "a")
    anyformer.train(data, task="detect", model="detr-mini-tiny", steps=3, out=folder / "run", device="cpu", quiet=True)
    return look(anyformer.load(folder / "run"), Path(data.parent / "images" / "0.png"))


def test_the_surest_object_is_followed(capture: Capture) -> None:
    logits = capture.output.logits[0]
    surest = int(logits.softmax(-1)[:, :-1].amax(-1).argmax())
    found = capture.prediction()
    assert {one.name for one in found} == {"bright", "dark", "no object"}
    assert found[0].logit == pytest.approx(float(logits[surest].max()), abs=1e-5)
    assert [token.text for token in capture.axes["decoder"].tokens][:2] == ["object 0", "object 1"]


def test_cross_attention_is_over_the_cells_of_the_image(capture: Capture) -> None:
    weights = capture.attention(layer=0, kind="cross")  # (H, objects, cells)
    assert weights.shape[1:] == (capture.output.logits.shape[1], len(capture.axes["encoder"]))
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5) and capture.trust.ok


def test_what_is_removed_is_measured_at_the_same_object(capture: Capture) -> None:
    facts = remove.answer(capture, Query(options={"heads": "0.0"})).facts
    assert facts["place"] == int(capture.output.logits[0].softmax(-1)[:, :-1].amax(-1).argmax())
    assert facts["removed"]["change"] != 0.0
