"""Exact match and F1 of answers, as SQuAD counts them (1606.05250, 1806.03822)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, English articles and doubled blanks.

    >>> normalise_answer("The  Eiffel-Tower, in Paris.")
    'eiffeltower in paris'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(predicted: str, answer: str) -> float:
    return float(normalise_answer(predicted) == normalise_answer(answer))


def overlap_f1(predicted: str, answer: str) -> float:
    """F1 of the words that both have; where one of them has none, whether both have none.

    >>> overlap_f1("in Paris", "Paris, France"), overlap_f1("", "Paris")
    (0.5, 0.0)
    """
    said, wanted = normalise_answer(predicted).split(), normalise_answer(answer).split()
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))


def right_answers(answers: Sequence[str]) -> list[str]:
    """The answers that count; where there are none, the empty answer is right."""
    return [answer for answer in answers if normalise_answer(answer)] or [""]


def best_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 with the right answer that is nearest."""
    right = right_answers(answers)
    return max(exact(predicted, one) for one in right), max(overlap_f1(predicted, one) for one in right)


def answer_metrics(predicted: Sequence[str], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """F1 and exact match, from 0 to 1; with questions that have no answer also of both sorts apart."""
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
