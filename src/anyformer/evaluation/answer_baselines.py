"""What needs no network to answer questions about a text: the most frequent answer, and words in common."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
WORD = re.compile(r"\w+(?:[.,:'’-]\w+)*")  # numbers like 1,000 and words like don't are one
MOST_WORDS = 8  # of an answer


class AnswerWords(NamedTuple):
    """How much rather a word stands in a training answer than elsewhere in a context, and how rare it is."""

    gain: dict[str, float]  # log of its share among the words of answers, by that among the words of contexts
    rarity: dict[str, float]
    unseen: float  # the rarity of a word that training does not have
    unseen_gain: float


def usual_answer(truth: Sequence[Sequence[str]]) -> str:
    """The most frequent training answer, "" where most questions have none; among equals the first in the alphabet."""
    counts = Counter(answers[0] if answers else "" for answers in truth)
    return min(counts.items(), key=lambda item: (-item[1], item[0]))[0]


def learn_words(contexts: Sequence[str], truth: Sequence[Sequence[str]]) -> AnswerWords:
    """Counts of the words of contexts and answers."""
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
    """From the sentence with most of the question's words, the run of other words that is most like an answer."""
    asked = set(WORD.findall(question.lower()))

    def likeness(sentence: str) -> float:
        return sum(known.rarity.get(word, known.unseen) for word in asked & set(WORD.findall(sentence.lower())))

    sentences = [sentence for sentence in SENTENCE.split(context) if sentence.strip()]
    if not sentences:
        return ""
    sentence = max(sentences, key=likeness)
    return best_run(known, sentence, asked)


def best_run(known: AnswerWords, sentence: str, asked: set[str]) -> str:
    """The words in a row, none of them asked, whose gains add up to most; one word at least."""
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
