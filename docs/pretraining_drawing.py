"""How pictures of pretraining objectives are drawn: lines of tokens, in three colours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyformer.data.datasets.blocks import Blocks
from anyformer.data.prepared import DataRequest
from anyformer.data.settings import Data, Split, TokenizerSettings
from anyformer.evaluation.svg import figure, label, tag
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED
from anyformer.tasks.base import Task

SENTENCES = (
    "the cat sat on the mat and the dog ran over the hill until it was dark outside",
    "a ship left the harbour at dawn with nine men aboard and none of them ever came back home",
    "she wrote a long letter to her brother who lived abroad but he did not answer for years",
)
TOKENS = 20  # of a row
DRAW = Draw(seed=4, epoch=0)
LETTER, PAD, HIGH, GAP, LEFT, TOP = 6.7, 6.0, 22.0, 4.0, 150.0, 14.0  # points
STYLE = """
text { font: 11px ui-monospace, monospace; fill: #1c2733 } .name { fill: #5b6b7b }
rect { fill: #eef1f4; stroke: #c9d2da } .hidden { fill: #ffd9a8; stroke: #d98c1f }
.asked { fill: #bfe3c9; stroke: #2f8f4e }
"""


@dataclass(frozen=True)
class PictureLine:
    """A line of tokens: its name, the tokens, and which of them stand out as what."""

    name: str
    tokens: list[str]
    kinds: list[str]  # "" | "hidden" | "asked", one a token


class Words:
    """Tokens as a picture writes them."""

    def __init__(self, blocks: Blocks) -> None:
        assert blocks.tokenizer is not None
        self.tokenizer, self.facts = blocks.tokenizer, blocks.facts

    def __call__(self, ids: Sequence[int]) -> list[str]:
        return ["" if one == IGNORED else self.tokenizer.token(one) for one in ids]

    def is_mark(self, token: int) -> bool:
        """Whether a token stands for something hidden."""
        return token == self.facts.mask or token in self.facts.sentinels


def prepare_sentence(task: Task, sentences: Sequence[str] = SENTENCES) -> Blocks:
    """Sentences as a pretraining task prepares them, a word a token."""
    words = TokenizerSettings(kind="word", max_length=TOKENS)
    settings = Data(tokenizer=words, split=Split(valid=0.0, test=0.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text(" ".join(sentences))
        found = task.prepare(DataRequest([path], settings, Path(folder) / "cache"))
        assert isinstance(found.train, Blocks)
        found.train.ids = found.train.ids.copy()  # the folder goes away
        return found.train


def draw_lines(lines: Sequence[PictureLine], title: str) -> str:
    """The picture: lines of as many tokens have them below each other."""
    parts, right = line_parts(lines, TOP)
    return framed(right, TOP + len(lines) * (HIGH + 2 * GAP), parts, title)


def line_parts(lines: Sequence[PictureLine], top: float) -> tuple[list[str], float]:
    """The lines from a height on, and where the longest ends."""
    widths = [[width_of(token) for token in line.tokens] for line in lines]
    columns = [[max(column) for column in zip(*(each for each in widths if len(each) == len(own)), strict=True)]
               for own in widths]  # fmt: skip
    parts: list[str] = []
    right = 0.0
    for row, line in enumerate(lines):
        y, x = top + row * (HIGH + 2 * GAP), LEFT
        parts.append(label(LEFT - 2 * GAP, y + 15, line.name, "name", "end"))
        for number, (token, kind) in enumerate(zip(line.tokens, line.kinds, strict=True)):
            wide = columns[row][number]
            if token:
                parts.append(tag("rect", x=x, y=y, width=wide, height=HIGH, rx=4.0, class_=kind or None))
                parts.append(label(x + wide / 2, y + 15, token, "token", "middle"))
            x += wide + GAP
        right = max(right, x)
    return parts, right


def framed(wide: float, high: float, parts: Sequence[str], title: str) -> str:
    """A picture as a file of its own."""
    svg = figure(wide, high, [tag("style", STYLE), *parts], title)
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def width_of(token: str) -> float:
    return len(token) * LETTER + 2 * PAD
