"""Published figures, and our own figure by the same measure where it is not the run's main metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Evaluation = dict[str, Any]  # what evaluation.json holds
Measure = Callable[[Evaluation, Path], float | None]  # from an evaluation and the set's folder


@dataclass(frozen=True)
class Published:
    """A figure of others. `checked`: read in the source named; else quoted from memory of it, a guide and no bar."""

    value: float
    metric: str
    who: str
    measure: Measure
    checked: bool = True


def read_metric(name: str) -> Measure:
    """A metric of the rows that were judged last."""
    return lambda evaluation, _: judged_metrics(evaluation).get(name)


def judged_metrics(evaluation: Evaluation) -> dict[str, float]:
    return (evaluation.get("metrics") or {}).get(evaluation.get("split"), {})


def nats_per_character(evaluation: Evaluation, folder: Path) -> float | None:
    """Of ASCII text, in which a character is a byte."""
    bits = judged_metrics(evaluation).get("bits_per_byte")
    return None if bits is None else bits * math.log(2)


def word_perplexity(evaluation: Evaluation, folder: Path) -> float | None:
    """Perplexity a word, whatever the tokens of the model: words between spaces, and one end a line."""
    bits = judged_metrics(evaluation).get("bits_per_byte")
    if bits is None:
        return None
    text = (folder / "test.txt").read_bytes()
    return math.exp(bits * math.log(2) * len(text) / (len(text.split()) + text.count(b"\n")))


def matthews(evaluation: Evaluation, folder: Path) -> float | None:
    """Matthews' correlation of two classes, from the confusion matrix."""
    counts = ((evaluation.get("facts") or {}).get("confusion") or {}).get("counts")
    if counts is None or np.shape(counts) != (2, 2):
        return None
    (tn, fp), (fn, tp) = np.asarray(counts, np.float64)
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return float(tp * tn - fp * fn) / below if below else 0.0


def pearson(evaluation: Evaluation, folder: Path) -> float | None:
    """Pearson's correlation of predicted and true, over the points that the report draws."""
    numbers = (evaluation.get("facts") or {}).get("numbers")
    if not numbers:
        return None
    true, said = np.asarray(numbers[0]["points"], np.float64).T
    return float(np.corrcoef(true, said)[0, 1]) if said.std() > 0 else 0.0
