"""Tokens of a pair of texts know which text they are in: BERT's token types, as bands beside a map."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import anyformer
from anyformer.inspection.answer import Query
from anyformer.inspection.axis import Token, TokenAxis, segment_words, with_segments
from anyformer.inspection.bundle import Saved
from anyformer.inspection.canvas import Label, Rectangle, Stroke
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.figure import draw
from tests.inspection import models
from tests.inspection.test_other_folders import SMALL, worded

PAIR = {"question": "Who wrote the book?", "context": "The old dog wrote a long book about the sea."}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    folder = tmp_path_factory.mktemp("model")
    worded(folder, transformers.BertForQuestionAnswering, transformers.BertConfig, **SMALL)
    return look(anyformer.load(folder), PAIR)


def test_tokens_have_the_types_that_the_network_was_given(capture: Capture) -> None:
    axis = capture.axes[""]
    types = capture.given.options["segments"][0].tolist()
    assert [token.segment for token in axis.tokens] == types
    first = types.index(1)
    assert "[SEP]" in axis.tokens[first - 1].text and set(types[first:]) == {1}
    said = f"segment 0 is tokens 0 to {first - 1}, segment 1 tokens {first} to {len(types) - 1}"
    assert segment_words(axis) == said == capture.answer("map", Query()).facts["segments"]


def test_one_text_has_no_bands() -> None:
    plain = look(models.predictor("bert"), models.TEXT)
    assert {token.segment for token in plain.axes[""].tokens} == {None}
    assert plain.answer("map").facts["segments"] == ""
    axis = TokenAxis("", tuple(Token(text) for text in "abc"))
    for given in (None, torch.zeros(1, 3), torch.tensor([[0, 1]]), torch.tensor([0, 1, 1])):
        assert with_segments(axis, given, 0) is axis
    assert with_segments(axis, torch.tensor([[0, 1, 1]]), 0) is not axis  # control


def test_a_picture_has_a_band_beside_every_token_and_a_line_between_the_texts(capture: Capture) -> None:
    drawing = draw(capture, "map", head=1)
    count, first = len(capture.axes[""]), [token.segment for token in capture.axes[""].tokens].index(1)
    bands = [mark for mark in drawing.marks if isinstance(mark, Rectangle) and 4.0 in (mark.width, mark.height)]
    down = [mark for mark in bands if mark.width == 4.0]
    assert len(bands) == 2 * count and [mark.fill for mark in down].count("#0072b2") == first
    field = next(m for m in drawing.marks if isinstance(m, Rectangle) and m.stroke and m.height > 100)
    lines = [mark for mark in drawing.marks if isinstance(mark, Stroke) and mark.stroke == "#1a1c20"]
    cell = field.height / count
    found = [place for line in lines for place in (line.y1 - field.y, line.x1 - field.x)]
    assert sorted(found) == pytest.approx([0.0, 0.0, first * cell, first * cell])
    words = " ".join(mark.text for mark in drawing.marks if isinstance(mark, Label))
    assert f"bands: segment 0 is tokens 0 to {first - 1}" in words


def test_a_file_keeps_them(capture: Capture, tmp_path: Path) -> None:
    saved = Saved.open(capture.save(tmp_path / "x.look"))
    assert [token.segment for token in saved.axes[""].tokens] == [token.segment for token in capture.axes[""].tokens]
    one, two = capture.svg(tmp_path / "a.svg", head=1), saved.svg(tmp_path / "b.svg", head=1)
    assert one.read_text() == two.read_text()
