"""What objectives of rows ask: distill, contrast, patches and image-text. Drawn by docs/pretraining_pictures.py.

As there, an objective runs on a small batch, and the picture shows what it made of it. The batch is made here: a few
words, and pictures of 12 x 12 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data.datasets.blocks import Blocks
from anyformer.embeds.patches import paste
from anyformer.evaluation.svg import label, tag
from anyformer.objectives import Batch, Distill, ImageText, MaskedPatches, SentenceContrast
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.token_facts import TokenFacts
from anyformer.tasks import find
from docs.pretraining_drawing import (
    DRAW,
    GAP,
    HIGH,
    LEFT,
    SENTENCES,
    TOP,
    PictureLine,
    Words,
    draw_lines,
    framed,
    line_parts,
    prepare_sentence,
    width_of,
)  # fmt: skip

ROWS = (
    "a red ball on green grass",
    "the moon above a dark sea",
    "a yellow house by day",
    "one tall tree in white snow",
)
SIZE, CELL, DOT = 12, (4, 4), 7.0  # pixels of an image, pixels of a patch, points of a pixel
SHOWN = 14  # tokens in the picture of a teacher


# ---------------------------------------------------------------- distill


class Bigrams(nn.Module):
    """A teacher that has counted which word follows which."""

    def __init__(self, text: Sequence[int], size: int) -> None:
        super().__init__()
        self.counts = torch.full((size, size), 1e-4)
        for first, second in pairwise(text):
            self.counts[first, second] += 1
        self.order = 1e-5 * torch.arange(size)  # of words as likely as each other the first comes first

    def before_head(self, tokens: Tensor, **named: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden=self.counts[tokens].log() - self.order, context=None, losses=None)

    def head(self, hidden: Tensor, context: None, table: None) -> SimpleNamespace:
        return SimpleNamespace(logits=hidden)

    def table(self) -> None:
        return None


def distill_picture() -> str:
    """A language model that learns from a text and from a teacher's answers."""
    blocks, objective = prepare_sentence(find("masked")), Distill()
    words = Words(blocks)
    tokens = blocks.batch([0], DRAW).inputs[0][:, 1 : SHOWN + 2]  # without the mark of the beginning
    batch = Batch((tokens[:, :-1],), tokens[:, 1:], torch.tensor([0]))
    teacher = Bigrams(blocks.ids.tolist(), blocks.vocab)
    found = objective.student.target_outputs(teacher, batch)  # type: ignore[attr-defined]
    shares = (found.logits[0] / objective.temperature).softmax(-1)
    best, which = shares.topk(3)
    lines = [PictureLine("the model reads", words(batch.inputs[0][0].tolist()), [""] * SHOWN),
             PictureLine("the text asks for", words(found.targets[0].tolist()), ["asked"] * SHOWN)]  # fmt: skip
    for rank, name in enumerate(("the teacher: this", "or this", "or this")):
        said = [f"{word} {share:.0%}" for word, share in
                zip(words(which[:, rank].tolist()), best[:, rank].tolist(), strict=True)]  # fmt: skip
        sure = best[:, rank] > 1.5 / blocks.vocab  # it knows something of the word
        lines.append(PictureLine(name, [word if known else "" for word, known in zip(said, sure.tolist(), strict=True)],
                                 ["asked"] * SHOWN))  # fmt: skip
    return draw_lines(lines, "What --task distill asks for: the next word, and what a teacher thinks of every word")


# ---------------------------------------------------------------- contrast


def contrast_picture() -> str:
    """Where the loss pulls the cosine of every two vectors, by its gradient."""
    names = ROWS[:3]
    first = torch.eye(len(names))  # so that the components of a second vector are its cosines with the first ones
    second = torch.ones(len(names), len(names), requires_grad=True)
    SentenceContrast().losses_between(first, second).sum().backward()
    assert second.grad is not None
    wide, parts = max(map(width_of, names)), []
    for column, name in enumerate(names):
        parts.append(label(LEFT + 50 + (column + 0.5) * (wide + GAP), TOP + 15, name, "token", "middle"))
    for row, name in enumerate(names):
        y = TOP + (row + 1) * (HIGH + 2 * GAP)
        parts.append(label(LEFT + 50 - 2 * GAP, y + 15, name, "token", "end"))
        for column in range(len(names)):
            pulled = float(second.grad[column, row]) < 0
            x = LEFT + 50 + column * (wide + GAP)
            parts += box(x, y, wide, "nearer" if pulled else "apart", "asked" if pulled else "hidden")
    parts.append(label(LEFT + 50 - 2 * GAP, TOP + 15, "first vector, second vector:", "name", "end"))
    right = LEFT + 50 + len(names) * (wide + GAP)
    high = TOP + (len(names) + 1) * (HIGH + 2 * GAP)
    return framed(right, high, parts, "What --task contrast asks for: each first vector nearest to its own second")


def box(x: float, y: float, wide: float, word: str, kind: str) -> list[str]:
    return [tag("rect", x=x, y=y, width=wide, height=HIGH, rx=4.0, class_=kind),
            label(x + wide / 2, y + 15, word, "token", "middle")]  # fmt: skip


# ---------------------------------------------------------------- images


def scenes() -> Tensor:
    """An image for each of `ROWS`, (4,3,12,12) from -1 to 1."""
    y, x = np.mgrid[:SIZE, :SIZE]
    disc = (x - 6) ** 2 + (y - 4) ** 2 < 8
    images = np.empty((len(ROWS), SIZE, SIZE, 3))
    images[:] = [[[[0.5, 0.75, 1.0]]], [[[0.05, 0.05, 0.2]]], [[[0.6, 0.8, 1.0]]], [[[0.8, 0.85, 0.9]]]]
    images[0][y > 6], images[0][(x - 6) ** 2 + (y - 6) ** 2 < 8] = (0.3, 0.65, 0.25), (0.85, 0.15, 0.15)
    images[1][y > 7], images[1][disc] = (0.1, 0.2, 0.4), (0.95, 0.95, 0.8)
    images[2][(y > 5) & (abs(x - 6) < 4)], images[2][(y <= 5) & (abs(x - 6) < y)] = (0.95, 0.85, 0.3), (0.6, 0.25, 0.2)
    images[3][y > 8] = 1.0
    images[3][(abs(x - 6) < 1) & (y > 1)], images[3][(y < 8) & (abs(x - 6) * 2 < y)] = (0.4, 0.25, 0.1), (0.1, 0.4, 0.2)
    return torch.from_numpy(np.moveaxis(images, -1, 1) * 2 - 1).float()


@dataclass(frozen=True)
class Panel:
    """An image (3,H,W) from -1 to 1 and the patches (N,) that are drawn otherwise: hidden or left out, or asked for."""

    name: str
    pixels: Tensor
    blank: Tensor
    asked: Tensor | None = None


def draw_panel(panel: Panel, x: float, y: float) -> list[str]:
    """Pixels as squares; hidden patches as one square, or, where others are asked for, those in frames."""
    parts, columns = [], SIZE // CELL[1]
    for row in range(SIZE):
        for column in range(SIZE):
            if not bool(panel.blank[row // CELL[0] * columns + column // CELL[1]]):
                red, green, blue = (int(v) for v in ((panel.pixels[:, row, column].clamp(-1, 1) + 1) * 127.5).round())
                parts.append(f'<path d="M{x + column * DOT:g} {y + row * DOT:g}h{DOT:g}v{DOT:g}h-{DOT:g}z" '
                             f'fill="#{red:02x}{green:02x}{blue:02x}" shape-rendering="crispEdges"/>')  # fmt: skip
    size = CELL[0] * DOT
    for number, blank in enumerate(panel.blank.tolist()):
        left, top = x + number % columns * size, y + number // columns * size
        kind = None if panel.asked is not None else "hidden"  # what is not asked for is left out of what is
        if blank:
            parts.append(tag("rect", x=left, y=top, width=size, height=size, class_=kind))
    for number, asked in enumerate([] if panel.asked is None else panel.asked.tolist()):
        left, top = x + number % columns * size, y + number // columns * size
        if asked:
            parts.append(tag("rect", x=left, y=top, width=size, height=size, class_="asked",
                             style="fill: none; stroke-width: 2"))  # fmt: skip
    parts.append(label(x + SIZE * DOT / 2, y + SIZE * DOT + 16, panel.name, "name", "middle"))
    return parts


def patches_picture() -> str:
    """An image, what of it a model reads, and what it is asked for."""
    pixels, objective = scenes()[:1], MaskedPatches(patch=CELL)
    batch = objective.corrupt(Batch((pixels,), torch.zeros(1), torch.tensor([0])), DRAW, None)  # type: ignore[arg-type]
    seen, hidden = batch.inputs[0][0], batch.inputs[1][0]
    targets = batch.targets.nan_to_num()  # each patch with its mean and deviation taken out
    asked = paste(targets, (SIZE // CELL[0], SIZE // CELL[1]), CELL)[0] / 2
    none = torch.zeros_like(hidden)
    panels = [Panel("the image", pixels[0], none), Panel("the model reads", seen, hidden),
              Panel("and is asked for", asked, ~hidden, hidden)]  # fmt: skip
    parts = [part for at, panel in enumerate(panels) for part in draw_panel(panel, 30 + at * 130, TOP)]
    return framed(30 + 3 * 130, TOP + SIZE * DOT + 26, parts, "What --task patches hides and asks for")


# ---------------------------------------------------------------- image-text


@dataclass(frozen=True)
class Captioned:
    """Images with a text each, as the objective sees its data."""

    tokens: Tensor
    mask: Tensor
    pixels: Tensor
    facts: TokenFacts

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: Any, draw: Draw | None = None) -> Batch:
        chosen = torch.as_tensor(rows)
        return Batch((self.tokens[chosen], self.pixels[chosen]), torch.zeros(len(chosen)), chosen,
                     named={"mask": (self.mask[chosen], None)})  # fmt: skip


def captioned(blocks: Blocks) -> Captioned:
    """`ROWS` with their images; a text begins with a token that is no word."""
    assert blocks.tokenizer is not None
    texts = [blocks.tokenizer.encode(text) for text in ROWS]
    tokens, mask = blocks.tokenizer.padded(texts, side="right")
    return Captioned(tokens, mask, scenes(), blocks.facts)


def image_text_picture() -> str:
    """The three things that a row may be asked."""
    blocks = prepare_sentence(find("masked"), (*ROWS, *SENTENCES))
    source, words = captioned(blocks), Words(blocks)
    texts, images = [], []
    for name in ("words", "patches", "match"):
        objective = ImageText(patch=CELL, rate=0.3, **{"words": 0.0, "patches": 0.0, "match": 0.0, name: 1.0})
        batch = objective.corrupt(source.batch(range(len(source))), DRAW, source)
        row = 0 if name != "match" else int((batch.targets[:, 0] == 1).nonzero()[0, 0])  # one whose image is another's
        tokens, (pixels, hidden) = batch.inputs[0][row], batch.inputs[1]
        real = source.mask[row].nonzero()[:, 0]
        ids, asked = tokens[real].tolist(), batch.targets[row][real].tolist()
        lines = [PictureLine("the model reads", words(ids), ["hidden" if words.is_mark(one) else "" for one in ids])]
        if name == "words":
            kinds = ["asked" if target != IGNORED else "" for target in asked]
            lines.append(PictureLine("and is asked for", words(asked), kinds))
        if name == "match":
            lines.append(PictureLine("and is asked", ["the image is another's"], ["asked"]))
        texts.append(lines)
        images.append([Panel("the image it reads", pixels[row], hidden[row])])
        if name == "patches":
            images[-1].append(Panel("and is asked for", pixels[row], ~hidden[row], hidden[row]))
    parts: list[str] = []
    high = SIZE * DOT + 36
    edges = []
    for at, lines in enumerate(texts):
        drawn, edge = line_parts(lines, TOP + at * high)
        parts += drawn
        edges.append(edge)
    for at, panels in enumerate(images):
        for column, panel in enumerate(panels):
            parts += draw_panel(panel, max(edges) + 40 + column * 140, TOP + at * high)
    title = "What --task image-text asks for: hidden words, hidden patches, or whether image and text belong together"
    return framed(max(edges) + 300, TOP + len(texts) * high, parts, title)


def row_pictures() -> dict[str, str]:
    """The pictures by the names of their tasks."""
    return {"distill": distill_picture(), "contrast": contrast_picture(), "patches": patches_picture(),
            "image-text": image_text_picture()}  # fmt: skip
