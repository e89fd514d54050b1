"""Sentence pairs [CLS] first [SEP] second [SEP], true or false ones (BERT, ALBERT)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource
from anyformer.objectives.token_facts import TokenFacts

PairKind = Literal["next", "order"]
STREAM = 2**32  # row offset of the generators for pairs: those without it choose what is masked


def make_pairs(batch: Batch, kind: PairKind, draw: Draw, source: BatchSource, facts: TokenFacts) -> Batch:
    """Rows of one text each, split into a first and a second half; half of the rows are false pairs.

    For "next", the second half of these comes from another row (1810.04805, 3.1); for "order", the halves are swapped
    (1909.11942, 3.1). One token of the text is dropped to make room for the second [SEP].
    """
    if facts.cls is None or facts.sep is None:
        raise UserError("the tokenizer has no tokens to begin and to part texts with", where="objective.pairs",
                        fix="let one be trained, or use --preset bert-base")  # fmt: skip
    if kind == "next" and len(source) < 2:
        raise UserError("a text of one row has no other second half", where="objective.pairs",
                        fix="use order, or add --set data.tokenizer.max_length=64")  # fmt: skip
    numbers = batch.rows.tolist()
    random = [draw.generator(STREAM + number) for number in numbers]
    apart = np.array([each.random() < 0.5 for each in random])
    texts = texts_of(batch)
    seconds = texts
    if kind == "next":
        steps = [int(each.integers(1, len(source))) for each in random]
        others = [(number + step) % len(source) for number, step in zip(numbers, steps, strict=True)]
        seconds = texts_of(source.batch(others, draw))
    rows = []
    for text, other, wrong in zip(texts, seconds, apart.tolist(), strict=True):
        middle, stop = len(text) // 2, len(text) - 1
        first, second = text[:middle], text[middle:stop]
        if wrong:
            first, second = (first, other[max(0, len(other) - len(second)) :]) if kind == "next" else (second, first)
        rows.append((first, second))
    return replace(framed_pairs(batch, rows, facts), pair=torch.from_numpy(apart.astype(np.int64)))


def texts_of(batch: Batch) -> list[np.ndarray]:
    """The text tokens of each row."""
    asked = batch.targets.numpy() != IGNORED
    return [tokens[real] for tokens, real in zip(batch.inputs[0].numpy(), asked, strict=True)]


def framed_pairs(batch: Batch, rows: list[tuple[np.ndarray, np.ndarray]], facts: TokenFacts) -> Batch:
    """Each pair of texts with its special tokens and segments, padded to the length of the batch."""
    shape = tuple(batch.inputs[0].shape)
    tokens, targets = np.full(shape, facts.pad, np.int64), np.full(shape, IGNORED, np.int64)
    segments, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, (first, second) in enumerate(rows):
        middle, stop = 1 + len(first), 2 + len(first) + len(second)
        tokens[row, : stop + 1] = [facts.cls, *first, facts.sep, *second, facts.sep]
        targets[row, 1:middle], targets[row, middle + 1 : stop] = first, second
        segments[row, middle + 1 : stop + 1] = 1
        mask[row, : stop + 1] = True
    named = {"segments": torch.from_numpy(segments)} | ({} if mask.all() else {"mask": torch.from_numpy(mask)})
    return replace(batch, inputs=(torch.from_numpy(tokens),), targets=torch.from_numpy(targets), named=named)
