"""Writes docs/images/pretraining/*.svg, what each pretraining task hides and asks: python -m docs.pretraining_pictures

Nothing is drawn by hand: a sentence is prepared by the task, the task's objective hides a part of it, and the picture
shows the batch that a model is given. So a new task of this kind has its picture without a line here; those that read
rows instead of running text are in docs/pretraining_row_pictures.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from anyformer.data.datasets.blocks import Blocks
from anyformer.data.sizes import Sizes
from anyformer.nets.electra import ElectraModule
from anyformer.objectives import Masked, Objective, ReplacedByGenerator
from anyformer.objectives.objective import IGNORED
from anyformer.presets import preset
from anyformer.tasks import all_tasks
from anyformer.tasks.pretraining import PretrainingTask
from anyformer.tasks.replaced import draw_waits
from docs.pretraining_drawing import DRAW, TOKENS, PictureLine, Words, draw_lines, prepare_sentence
from docs.pretraining_row_pictures import row_pictures

IMAGES = Path(__file__).parent / "images" / "pretraining"


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
    return found | row_pictures()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (IMAGES / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
