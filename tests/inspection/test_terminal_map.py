"""Attention maps in a terminal: every cell is the weight it stands for, with and without colours."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console

from anyformer import UserError
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.terminal_map import draw_map, pool
from anyformer.terminal.colour import SHADES, shade
from anyformer.terminal.words import visible
from tests.inspection import models
from tests.inspection.models import inputs, predictor
from tests.laws.nets import build, language, tokens

COLOURS = re.compile(r"\x1b\[(?:38;2;(\d+);(\d+);(\d+))?;?(?:48;2;(\d+);(\d+);(\d+))?m▀")


@pytest.fixture(scope="module")
def text() -> Capture:
    return look(predictor("gpt"), inputs("gpt"))


@pytest.fixture(scope="module")
def long() -> Capture:
    return look(build(language(), dtype=torch.float32), tokens(1, 50))


def terminal(**settings: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=100, **settings)


def plain() -> Console:
    return Console(file=io.StringIO(), width=100, no_color=True)


def drawn_weights(capture: Capture, site: int, head: int) -> torch.Tensor:
    weights = capture.weights(site)[head]
    return (weights / weights.max()).sqrt()


def test_shades_stand_for_the_weights(text: Capture) -> None:
    """Without colours each cell is two characters, the darker the larger its weight."""
    picture = draw_map(text, 1, 2, 100, console=plain())
    words = [visible(word)[:10] for word in text.axes[""].texts]
    lines = picture.splitlines()
    assert lines[0] == "Layer 1 · head 2"
    margin = max(map(len, words)) + 1
    wanted = drawn_weights(text, 1, 2)
    rows = [line for line in lines if line[: margin - 1].strip() in words and len(line) > margin][-len(words) :]
    assert len(rows) == len(words)
    for i, line in enumerate(rows):
        assert line[: margin - 1].strip() == words[i]
        cells = line[margin:].ljust(2 * len(words))
        shades = [SHADES.index(cells[2 * j]) / 4 for j in range(len(words))]
        assert max(abs(a - b) for a, b in zip(shades, wanted[i].tolist(), strict=True)) <= 0.126  # half a shade
    assert max(map(len, lines)) <= 100
    assert f"from 0 to {text.weights(1)[2].max():.3g}" in lines[-1]
    other = draw_map(text, 1, 3, 100, console=plain())
    assert other.splitlines()[-len(rows) - 3 :] != lines[-len(rows) - 3 :]  # control: another head, another map


def test_half_blocks_carry_two_rows(long: Capture) -> None:
    picture = draw_map(long, 0, 1, 80, console=terminal())
    lines = [line for line in picture.splitlines() if "▀" in line]
    wanted = drawn_weights(long, 0, 1)
    assert len(lines) == 25
    for i, line in enumerate(lines):
        cells = COLOURS.findall(line)
        assert len(cells) == line.count("▀") == 50
        for j, cell in enumerate(cells):
            numbers = tuple(map(int, cell))
            assert numbers[:3] == shade(float(wanted[2 * i, j])) and numbers[3:] == shade(float(wanted[2 * i + 1, j]))


def test_a_map_too_wide_is_pooled(long: Capture) -> None:
    picture = draw_map(long, 0, 0, 40, console=plain())
    assert "a cell is the largest of 2 by 2 tokens" in picture
    assert max(map(len, picture.splitlines()[:-2])) <= 40
    weights = long.weights(0)[0]
    found = pool(weights, 2)
    assert found.shape == (25, 25)
    for i, j in ((0, 0), (12, 3), (24, 24)):
        block = weights[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        assert float(found[i, j]) == max(block.flatten().tolist())


def test_colours_are_written_to_a_terminal_that_has_them(text: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in draw_map(text, 0, 0, 100, console=terminal())
    assert "\x1b" not in draw_map(text, 0, 0, 100, console=Console(file=io.StringIO()))  # a file
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in draw_map(text, 0, 0, 100, console=terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in draw_map(text, 0, 0, 100, console=Console(file=io.StringIO(), force_terminal=True))


@pytest.mark.parametrize("kind", ["t5", "vit"])
def test_every_site_can_be_drawn(kind: str) -> None:
    capture = look(predictor(kind), inputs(kind))
    for site in capture.sites:
        picture = draw_map(capture, site.index, 0, 72, console=plain())
        assert site.label in picture and max(map(len, picture.splitlines())) <= 90


def test_a_head_that_does_not_exist_is_refused(text: Capture) -> None:
    for head, width, word in ((4, 80, "head 4 is out of range"), (0, 10, "too narrow")):
        with pytest.raises(UserError, match=word):
            draw_map(text, 0, head, width)
    with pytest.raises(UserError, match="site 9 is out of range"):
        draw_map(text, 9, 0, 80)


def test_rows_of_cross_attention_are_what_is_written():
    capture = look(models.translator(), " ".join(models.PAIRS))
    site = next(site.index for site in capture.sites if site.kind == "cross")
    assert "rows are written, columns read (·zwei ... </s> → ·two ... </s>" in draw_map(capture, site, 0)
