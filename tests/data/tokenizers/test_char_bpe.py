"""BPE on characters: the worked example of its paper, the library's own, and texts that come back as they were."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tokenizers import SentencePieceBPETokenizer

from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from tests.data.tokenizers.tokenizer_texts import corpus

PAPER = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # Sennrich, Haddow and Birch, 1508.07909
TEXT = " ".join(word for word, count in PAPER.items() for _ in range(count))


def merges(words: Tokenizer) -> list[tuple[str, str]]:
    found = json.loads(words.core.to_str())["model"]["merges"]
    return [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in found]


def counted(words: dict[tuple[str, ...], int]) -> Counter[tuple[str, str]]:
    """How often two symbols stand beside each other."""
    pairs: Counter[tuple[str, str]] = Counter()
    for word, count in words.items():
        for pair in pairwise(word):
            pairs[pair] += count
    return pairs


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


def test_the_example_of_the_paper() -> None:
    """Every merge is of a pair that stands most often in the words as they are then; the first ones are the paper's."""
    learned = merges(train_tokenizer([TEXT], "char-bpe", 40))
    assert learned[:3] == [("e", "s"), ("es", "t"), ("l", "o")]
    words = {("▁", *word): count for word, count in PAPER.items()}
    for pair in learned:
        pairs = counted(words)
        assert pairs[pair] == max(pairs.values()), pair
        words = {merged(word, pair): count for word, count in words.items()}
    assert len(learned) > 10 and ("▁newest",) in words and ("▁lower",) in words


def test_rare_words_are_cut_into_known_parts() -> None:
    words = train_tokenizer([TEXT], "char-bpe", 40)
    cut = [words.token(i) for i in words.encode("lowest newer", special=False)]
    assert cut == ["▁low", "est", "▁new", "er"]


def test_it_cuts_as_the_library_does() -> None:
    """Their tokenizer of this kind, trained on the same rows, gives the same pieces."""
    rows = [" ".join(row.split()) for row in corpus() if row.strip()]
    letters = sorted({letter for row in rows for letter in row if letter != " "} | {"▁"})
    theirs = SentencePieceBPETokenizer(add_prefix_space=True)
    theirs._tokenizer.normalizer = None  # theirs changes letters (NFKC); ours leaves them
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    theirs.train_from_iterator(rows, 600, special_tokens=special, initial_alphabet=letters, show_progress=False)
    ours = train_tokenizer(rows, "char-bpe", 600)
    assert ours.core.get_vocab() == theirs.get_vocab()
    for row in rows[:300]:
        assert [ours.token(i) for i in ours.encode(row, special=False)] == theirs.encode(row).tokens


def test_texts_of_known_characters_come_back(tmp_path: Path) -> None:
    rows = [*corpus(), "line\nends\tand tabs"]
    words = train_tokenizer(rows, "char-bpe", 2000)
    words.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again is not None
    letters = sorted({letter for row in rows for letter in row if letter != "▁"})
    known = [letter for letter in letters if words.unk not in words.encode(letter, special=False)]
    assert {"\n", "\t", " ", "e"} <= set(known)
    chance = random.Random(0)
    for _ in range(500):
        text = "".join(chance.choices(known + [" "] * 20, k=chance.randrange(40)))
        ids = words.encode(text, special=False)
        assert words.decode(ids) == text and again.encode(text, special=False) == ids


def test_what_training_did_not_have_is_unknown() -> None:
    words = train_tokenizer([TEXT], "char-bpe", 40)
    assert words.encode("low 猫", special=False)[-1] == words.unk
    assert words.unk not in words.encode("low newest", special=False)  # control
    lower = train_tokenizer([TEXT], "char-bpe", 40, lower=True)
    assert lower.encode("LOW", special=False) == words.encode("low", special=False)
