"""Writes docs/parts.md, one table of all parts, and its pictures: python -m docs.parts"""

from __future__ import annotations

import re
from pathlib import Path

from anyformer import (
    SAGAN,
    Attention,
    Backbone,
    Block,
    Body,
    Electra,
    Embed,
    Feed,
    FeedStack,
    Head,
    LRNet,
    Mixer,
    Model,
    Network,
    Norm,
    NumberCurve,
    Position,
    Pyramid,
    Relative,
    Replaced,
    ResNet,
    Seq2Seq,
    Stack,
    Stage,
    Streams,
    Towers,
    VisualTransformer,
    Window2D,
    preset,
)  # fmt: skip
from anyformer.spec import Spec
from docs.part_pictures import picture
from tests.laws.parts import examples, ours

HERE = Path(__file__).parent
PAGE, IMAGES = HERE / "parts.md", HERE / "images" / "parts"
SLOTS = {
    "mixer": Mixer, "feed": Feed, "norm": Norm, "position": Position, "relative": Relative, "embed": Embed,
    "curve": NumberCurve, "head": Head, "backbone": Backbone, "stack": Body, "": Network,
}  # fmt: skip
TOP = """# Every part

A model is a choice of parts. This page is made from the code (`python -m docs.parts`), and a test holds it to the code:
formula, source and cost stand in the file of the part, and the picture is made by running the part.

| picture of | what it shows: dark is much, blank is nothing |
|---|---|
| a mixer | row i, column j: how far the answer of token i moves with token j; left causal, right both ways |
| one on a grid | which cells move the one in the middle |
| one that looks at a memory | which of the memory's tokens move each answer |
| a feed, a head | which tokens (columns) move which answers (rows) |
| relative positions | the weights of attention among equal tokens, in the first and the last head |
| absolute positions, an embedding | the rows themselves: a row a token, a column a channel |
| a curve of numbers | numbers from -3 to 3, a row each, a column a channel |
| a norm | eight tokens of very different size, before and after |
| a backbone | which pixels move the middle of its maps |
| a stack | the same as a mixer after one, two and three layers: the view widens |
| a network | which tokens of each input move which answers |

Cost: multiplications of one layer and text, for T tokens, S keys, D channels, H heads of C channels, V words.

| slot | part | what it is | formula | picture | source | cost | selected by |
|---|---|---|---|---|---|---|---|
"""


# Bodies, backbones and whole networks are no parts of a block: the laws' examples do not have them.
BLOCK = Block(mixer=Attention(heads=4, window=3))
CELLS = Block(mixer=Window2D(heads=4, window=4))
SAMPLES: dict[type[Spec], Spec] = {
    Stack: Stack(width=16, depth=3, causal=True, block=BLOCK),
    FeedStack: FeedStack(width=16, depth=2),
    Pyramid: Pyramid(width=16, stages=(Stage(depth=1, block=CELLS), Stage(depth=1, block=CELLS))),
    ResNet: ResNet(depths=(1, 1, 1), width=8), LRNet: LRNet(depths=(1, 1), width=8),
    VisualTransformer: VisualTransformer(backbone=ResNet(depths=(1, 1), width=8), width=16, tokens=4),
    Model: preset("gpt2-tiny"), Seq2Seq: preset("translator-mini"), Streams: preset("vilbert-base-tiny"),
    Towers: preset("clip-b32-tiny"), SAGAN: preset("sagan-32-tiny"),
    Electra: Electra(discriminator=preset("electra-small-tiny").replace(head=Replaced())),  # type: ignore[call-arg]
}  # fmt: skip
NAMES = {Model: "gpt2", Seq2Seq: "transformer-base", Streams: "vilbert-base", Towers: "clip-b32", SAGAN: "sagan-32"}
TASKS = {Electra: "replaced"}  # networks that no preset is: a task makes them of one


def sample_of(part: type[Spec]) -> Spec | None:
    """A small one of its kind."""
    return SAMPLES.get(part) or next(iter(examples(part).values()), None)


def parts() -> list[tuple[str, type[Spec]]]:
    """Every part of every slot, in the order of the slots and then of their names."""
    return [(slot, part) for slot, kind in SLOTS.items() for part in sorted(ours(kind), key=lambda p: p.__name__)]


def row(slot: str, part: type[Spec]) -> str:
    """One line of the table."""
    about = part.about
    if about is None:
        raise ValueError(f"{part.__name__} says nothing about itself: give it `about`")
    sample = sample_of(part)
    shown = f"![{part.__name__}](images/parts/{part.__name__}.png)" if image(part).is_file() else "-"
    chosen = f"--task {TASKS[part]}" if part in TASKS else f'preset("{NAMES.get(part)}")'
    line = f"`{slot}={sample!r}`" if slot else f"`{chosen}`"
    what = first_sentence(part.__doc__ or "").rstrip(".")
    home = "../src/" + part.__module__.replace(".", "/") + ".py"
    cells = [slot or "network", f"[{part.__name__}]({home})", what, f"`{about.formula}`", shown, sources(about.source),
             about.cost, line]  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, whole; a full stop inside brackets, code or a formula ends none.

    >>> first_sentence("score = q . k (`scale` is 1. or 2.). More follows.")
    'score = q . k (`scale` is 1. or 2.).'
    """
    line = " ".join(text.strip().partition("\n\n")[0].split())
    for stop in re.finditer(r"\.(?=\s+[A-Z`]|$)", line):
        sentence = line[: stop.end()]
        if all(sentence.count(a) == sentence.count(b) for a, b in ("()", "[]")) and sentence.count("`") % 2 == 0:
            return sentence
    return line


def sources(source: str) -> str:
    """arXiv numbers as links."""
    return re.sub(r"\b(\d{4}\.\d{4,5})\b", r"[\1](https://arxiv.org/abs/\1)", source)


def image(part: type[Spec]) -> Path:
    return IMAGES / f"{part.__name__}.png"


def page() -> str:
    """The whole page."""
    return TOP + "\n".join(row(slot, part) for slot, part in parts()) + "\n"


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for _, part in parts():
        sample = sample_of(part)
        drawn = None if sample is None else picture(sample)
        if drawn is not None:
            drawn.save(image(part), optimize=True)
    for old in IMAGES.glob("*.png"):
        if old.stem not in {part.__name__ for _, part in parts()}:
            old.unlink()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
