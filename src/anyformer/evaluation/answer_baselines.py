"""Question-answering baselines without a network: the most frequent answer, and word overlap."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
WORD = re.compile(r"\w+(?:[.,:'’-]\w+)*")  # numbers like 1,000 and words like don't are one word
MOST_WORDS = 8  # of an answer


class AnswerWords(NamedTuple):
    """Log-odds of each word to be in a training answer rather than elsewhere in a context, and its rarity."""

    gain: dict[str, float]  # log of its frequency in answers over its frequency in contexts
    rarity: dict[str, float]
    unseen: float  # the rarity of a word not in the training data
    unseen_gain: float


def usual_answer(truth: Sequence[Sequence[str]]) -> str:
    """The most frequent training answer, "" if most questions have none; ties go to the first in the alphabet."""
    counts = Counter(answers[0] if answers else "" for answers in truth)
    return min(counts.items(), key=lambda item: (-item[1], item[0]))[0]


def learn_words(contexts: Sequence[str], truth: Sequence[Sequence[str]]) -> AnswerWords:
    """Gain and rarity of words, from their counts in contexts and answers."""
    in_contexts: Counter[str] = Counter()
    texts_with: Counter[str] = Counter()
    for text in dict.fromkeys(contexts):
        words = WORD.findall(text.lower())
        in_contexts.update(words)
        texts_with.update(set(words))
    in_answers = Counter(word for answers in truth for text in answers[:1] for word in WORD.findall(text.lower()))
    answers_total, contexts_total = sum(in_answers.values()) + 1, sum(in_contexts.values()) + 1
    gain = {word: math.log((in_answers[word] + 0.1) / answers_total) - math.log((count + 1) / contexts_total)
            for word, count in in_contexts.items()}  # fmt: skip
    texts = max(1, len(set(contexts)))
    rarity = {word: math.log((texts + 1) / count) for word, count in texts_with.items()}
    return AnswerWords(gain, rarity, math.log(texts + 1), math.log(contexts_total / answers_total))


def answer_by_words(known: AnswerWords, question: str, context: str) -> str:
    """The most answer-like run of other words in the sentence that shares most with the question."""
    asked = set(WORD.findall(question.lower()))

    def likeness(sentence: str) -> float:
        return sum(known.rarity.get(word, known.unseen) for word in asked & set(WORD.findall(sentence.lower())))

    sentences = [sentence for sentence in SENTENCE.split(context) if sentence.strip()]
    if not sentences:
        return ""
    sentence = max(sentences, key=likeness)
    return best_run(known, sentence, asked)


def best_run(known: AnswerWords, sentence: str, asked: set[str]) -> str:
    """The contiguous words, none of them in the question, with the largest summed gain; at least one word."""
    found, best = "", -math.inf
    words = list(WORD.finditer(sentence))
    for first in range(len(words)):
        total = 0.0
        for last in range(first, min(first + MOST_WORDS, len(words))):
            word = words[last].group().lower()
            if word in asked:
                break
            total += known.gain.get(word, known.unseen_gain)
            if total > best:
                found, best = sentence[words[first].start() : words[last].end()], total
    return found
