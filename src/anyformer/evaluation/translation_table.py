"""IBM Model 1: a word translation table from pairs of sentences, and word-by-word translation."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

ROUNDS = 5  # of expectation maximisation
MOST_LINKS = 6_000_000  # largest number of links between a source and a target word
WORD = re.compile(r"\w+|[^\w\s]")


def word_table(sources: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """Each source word with its most probable target word (Brown et al. 1993, model 1, without the empty word).

    >>> pairs = {"a dog": "ein Hund", "a cat": "eine Katze", "dog": "Hund", "cat": "Katze", "a": "ein"}
    >>> word_table(list(pairs), list(pairs.values()))["cat"]
    'Katze'
    """
    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    source_of, target_of, place_of = [], [], []  # one entry per link between a source and a target word of a pair
    links = places = 0
    for source, target in zip(sources, targets, strict=True):
        one, other = ([known.setdefault(word, len(known)) for word in WORD.findall(text)]
                      for known, text in zip(numbers, (source, target), strict=True))  # fmt: skip
        links += len(one) * len(other)
        if links > MOST_LINKS:
            break
        source_of.append(np.repeat(one, len(other)))
        target_of.append(np.tile(other, len(one)))
        place_of.append(np.tile(np.arange(places, places + len(other)), len(one)))
        places += len(other)
    if not places or not numbers[0]:
        return {}
    width = len(numbers[1])
    coded = np.concatenate(source_of).astype(np.int64) * width + np.concatenate(target_of)
    kinds, link = np.unique(coded, return_inverse=True)  # all distinct pairs of words
    place, probability = np.concatenate(place_of), np.ones(len(kinds))
    for _ in range(ROUNDS):
        share = probability[link]
        share /= np.bincount(place, share)[place]  # normalise each target word over the words of its source
        count = np.bincount(link, share)
        probability = count / np.bincount(kinds // width, count)[kinds // width]
    best = np.lexsort((probability, kinds // width))  # by source word, the most probable target last
    words = list(numbers[0]), list(numbers[1])
    return {words[0][kinds[at] // width]: words[1][kinds[at] % width] for at in best}


def word_by_word(table: dict[str, str], text: str) -> str:
    """A text with every word replaced by its translation; unseen words are kept.

    >>> word_by_word({"dog": "Hund", "a": "ein"}, "a dog, Rex.")
    'ein Hund, Rex.'
    """
    return WORD.sub(lambda word: table.get(word[0], word[0]), text)
