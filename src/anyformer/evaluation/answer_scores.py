"""Exact match and F1 of answers as defined by SQuAD (1606.05250, 1806.03822)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower-case a text and remove punctuation, English articles and repeated whitespace.

    >>> normalise_answer("The  Eiffel-Tower, in Paris.")
    'eiffeltower in paris'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(predicted: str, answer: str) -> float:
    return float(normalise_answer(predicted) == normalise_answer(answer))


def overlap_f1(predicted: str, answer: str) -> float:
    """F1 of the shared words; if either has no words, 1 if both have none, else 0.

    >>> overlap_f1("in Paris", "Paris, France"), overlap_f1("", "Paris")
    (0.5, 0.0)
    """
    said, wanted = normalise_answer(predicted).split(), normalise_answer(answer).split()
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))


def right_answers(answers: Sequence[str]) -> list[str]:
    """The non-empty reference answers; without any, the empty answer is correct."""
    return [answer for answer in answers if normalise_answer(answer)] or [""]


def best_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """The best exact match and the best F1 over the reference answers."""
    right = right_answers(answers)
    return max(exact(predicted, one) for one in right), max(overlap_f1(predicted, one) for one in right)


def answer_metrics(predicted: Sequence[str], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """F1 and exact match from 0 to 1; if some questions have no answer, also for both kinds separately."""
    if not len(predicted):
        return {}
    scores = [best_scores(said, answers) for said, answers in zip(predicted, truth, strict=True)]
    found = {"f1": mean([f1 for _, f1 in scores]), "exact_match": mean([match for match, _ in scores])}
    answered = [right_answers(answers) != [""] for answers in truth]
    if all(answered) or not any(answered):
        return found
    with_one = [score for score, has_answer in zip(scores, answered, strict=True) if has_answer]
    without = [match for (match, _), has_answer in zip(scores, answered, strict=True) if not has_answer]
    return found | {"answered_f1": mean([f1 for _, f1 in with_one]),
                    "answered_exact_match": mean([match for match, _ in with_one]),
                    "unanswered_accuracy": mean(without)}  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
