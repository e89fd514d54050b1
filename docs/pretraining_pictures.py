"""Writes docs/images/pretraining/*.svg, what each pretraining task hides and asks: python -m docs.pretraining_pictures

Nothing is drawn by hand: a sentence is prepared by the task, the task's objective hides a part of it, and the picture
shows the batch that a model is given. So a new task of this kind has its picture without a line here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anyformer.data.datasets.blocks import Blocks
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.settings import Data, Split, TokenizerSettings
from anyformer.data.sizes import Sizes
from anyformer.evaluation.svg import figure, label, tag
from anyformer.nets.electra import ElectraModule
from anyformer.objectives import Masked, Objective, ReplacedByGenerator
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED
from anyformer.presets import preset
from anyformer.tasks import all_tasks
from anyformer.tasks.pretraining import PretrainingTask
from anyformer.tasks.replaced import draw_waits

IMAGES = Path(__file__).parent / "images" / "pretraining"
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


def lines_of(task: PretrainingTask, objective: Objective) -> list[PictureLine]:
    """What a batch of one row holds before and after an objective has hidden a part of it."""
    blocks = prepare_sentence(task)
    plain = blocks.batch([0], DRAW)
    batch = objective.corrupt(plain, DRAW, blocks)
    words = Words(blocks)
    text, targets = plain.inputs[0][0].tolist(), batch.targets[0].tolist()
    lines = [PictureLine("the text", words(text), [""] * len(text))]
    for number, given in enumerate(batch.inputs):
        ids = given[0].tolist()
        changed = len(ids) == len(text) and len(batch.inputs) == 1
        before = padded(text, ids)
        kinds = ["hidden" if (changed and a != b) or words.is_mark(a) else "" for a, b in zip(ids, before, strict=True)]
        lines.append(PictureLine("the decoder is given" if number else "the model reads", words(ids), kinds))
    if isinstance(objective, ReplacedByGenerator):
        return [lines[0], *replaced_lines(task, objective, blocks, words)]
    asked = ["" if target == IGNORED else word for target, word in zip(targets, words(targets), strict=True)]
    lines.append(PictureLine("and is asked for", asked, ["asked" if word else "" for word in asked]))
    if batch.pair is not None:
        said = "the second text is another" if int(batch.pair[0]) else "the second text follows"
        lines.append(PictureLine("and for the pair", [said], ["asked"]))
    return lines


def replaced_lines(
    task: PretrainingTask, objective: ReplacedByGenerator, blocks: Blocks, words: Words
) -> list[PictureLine]:
    """What a generator without training puts in the place of hidden tokens, and what a discriminator is asked."""
    name = "electra-small-tiny"
    spec = task.fit_network(preset(name), name, Sizes(parts=["text"], vocab=blocks.vocab, length=TOKENS))
    model = spec.build(seed=1)
    assert isinstance(model, ElectraModule)
    batch = objective.corrupt(blocks.batch([0], DRAW), DRAW, blocks)
    with torch.no_grad():
        made = objective.replace_tokens(model.eval(), batch, draw_waits(batch, model))
    ids, replaced = made.tokens[0].tolist(), made.targets[0].tolist()
    hidden = batch.inputs[0][0].tolist()
    said = ["replaced" if one == 1 else "=" for one in replaced]
    return [
        PictureLine("the generator reads", words(hidden), ["hidden" if words.is_mark(one) else "" for one in hidden]),
        PictureLine("and puts instead", words(ids), ["hidden" if one == 1 else "" for one in replaced]),
        PictureLine("what is asked", said, ["asked"] * len(said)),
    ]


def padded(text: Sequence[int], other: Sequence[int]) -> list[int]:
    """A text as long as another, for comparing place by place."""
    return [*text, *other[len(text) :]][: len(other)]


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


def prepare_sentence(task: PretrainingTask) -> Blocks:
    """The sentence as the task prepares it, a word a token."""
    words = TokenizerSettings(kind="word", max_length=TOKENS)
    settings = Data(tokenizer=words, split=Split(valid=0.0, test=0.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text(" ".join(SENTENCES))
        cache = Path(folder) / "cache"
        found = task.prepare(
            [path], settings, seed=0, cache=cache, given=StartModelConstraints(), say=lambda line: None
        )
        assert isinstance(found.train, Blocks)
        found.train.ids = found.train.ids.copy()  # the folder goes away
        return found.train


def draw_lines(lines: Sequence[PictureLine], title: str) -> str:
    """The picture: lines of as many tokens have them below each other."""
    widths = [[width_of(token) for token in line.tokens] for line in lines]
    columns = [[max(column) for column in zip(*(each for each in widths if len(each) == len(own)), strict=True)]
               for own in widths]  # fmt: skip
    parts = [tag("style", STYLE)]
    right = 0.0
    for row, line in enumerate(lines):
        y, x = TOP + row * (HIGH + 2 * GAP), LEFT
        parts.append(label(LEFT - 2 * GAP, y + 15, line.name, "name", "end"))
        for number, (token, kind) in enumerate(zip(line.tokens, line.kinds, strict=True)):
            wide = columns[row][number]
            if token:
                parts.append(tag("rect", x=x, y=y, width=wide, height=HIGH, rx=4.0, class_=kind or None))
                parts.append(label(x + wide / 2, y + 15, token, "token", "middle"))
            x += wide + GAP
        right = max(right, x)
    high = TOP + len(lines) * (HIGH + 2 * GAP)
    return figure(right, high, parts, title).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def width_of(token: str) -> float:
    return len(token) * LETTER + 2 * PAD


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    found = {}
    for task in all_tasks():
        if isinstance(task, PretrainingTask):
            asked: dict[str, Objective] = {task.name: task.objective()}
            if isinstance(asked[task.name], Masked):
                asked["masked-pairs"] = Masked(pairs="next")
            for name, objective in asked.items():
                found[name] = draw_lines(lines_of(task, objective), f"What --task {name} hides and asks for")
    return found


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (IMAGES / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
