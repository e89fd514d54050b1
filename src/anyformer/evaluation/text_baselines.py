"""Baselines of generated text: copying the source, its first sentences, or translating word by word."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.translation_table import word_by_word, word_table

SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
SHORT = 0.5  # fraction of the source's words below which a target counts as a summary
COPY, LEAD = "copying the source", "the first sentences of the source"

Writer = Callable[[str], str]


def copy_or_lead(train: RawRows, truth: Sequence[str], test: RawRows) -> tuple[str, list[str]]:
    """The trivial texts for the test rows: the baseline's name, and the texts.

    If the training targets are much shorter than their sources, the first sentences, which are hard to beat for news;
        else the whole source.
    """
    ways: dict[str, tuple[str, Writer]] = {}
    for task, (sources, texts) in by_task(train, truth).items():
        words = mean_words(texts)
        is_short = words < SHORT * mean_words(sources)
        ways[task] = (LEAD, partial(lead, words=words)) if is_short else (COPY, str)
    said = [ways.get(task, (COPY, str))[1](text) for task, text in zip(tasks_of(test), test.sources or (), strict=True)]
    names = sorted({name for name, _ in ways.values()}) or [COPY]
    return " or ".join(names), said


def translate_words(train: RawRows, truth: Sequence[str], test: RawRows) -> list[str]:
    """Translate each word of the test rows to its most probable translation in the training rows of the same task."""
    tables = {task: word_table(sources, texts) for task, (sources, texts) in by_task(train, truth).items()}
    return [
        word_by_word(tables[task], text) if task in tables else text
        for task, text in zip(tasks_of(test), test.sources or (), strict=True)
    ]


def lead(text: str, words: float) -> str:
    """The first sentences of a text, up to about that many words; at least one.

    >>> lead("A storm came. It took roofs. Nobody slept.", 5)
    'A storm came. It took roofs.'
    """
    said: list[str] = []
    for sentence in SENTENCE.split(text.strip()):
        if said and len(" ".join(said).split()) + len(sentence.split()) / 2 > words:
            break
        said.append(sentence)
    return " ".join(said)


def mean_words(texts: Sequence[str]) -> float:
    return float(np.mean([len(text.split()) for text in texts])) if len(texts) else 0.0


def tasks_of(rows: RawRows) -> Sequence[str]:
    """The task of each row; "" for all if there are no tasks."""
    return rows.tasks if rows.tasks is not None else [""] * len(rows.sources or ())


def by_task(rows: RawRows, truth: Sequence[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Sources and targets of each task."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for task, source, text in zip(tasks_of(rows), rows.sources or (), truth, strict=True):
        sources, texts = found.setdefault(task, ([], []))
        sources.append(source)
        texts.append(text)
    return found
