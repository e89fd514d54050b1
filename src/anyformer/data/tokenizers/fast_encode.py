"""Fast encoding of large texts: equal to the tokenizer's, but each distinct word is encoded only once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from anyformer.data.tokenizers.tokenizer import Tokenizer

# A byte-level BPE always begins a new word here: before the last white space before a word.
WORDS = re.compile(r"(?=[ \n]\S)")
GROUP = 2**17  # words encoded at once
MOST = 2**26  # characters of cached words, after which the cache is cleared


class Encoder:
    """`encode(pieces)` equals `tokenizer.encode_batch(pieces, special=False)`, as arrays.

    `kind` is the kind of tokenizer if it was trained here without normalisation: its rules are then known, and each
    distinct word is encoded only once (bpe), or ids are looked up (char, byte). `safe` parses no special tokens in a
    text.
    """

    def __init__(self, tokenizer: Tokenizer, kind: str = "given", *, safe: bool | None = None) -> None:
        self.tokenizer, self.kind = tokenizer, kind
        self.safe = safe
        self.dtype = np.dtype(np.uint16 if tokenizer.size <= 2**16 else np.uint32)
        if kind == "char":
            self.letters = np.full(0x110000, tokenizer.unk or 0, self.dtype)
            vocab = tokenizer.core.get_vocab(with_added_tokens=False)
            known = [(ord(token), number) for token, number in vocab.items() if len(token) == 1]
            self.letters[[letter for letter, _ in known]] = [number for _, number in known]
        if kind == "byte":
            self.letters = np.array([tokenizer.core.token_to_id(name) for name in byte_names()], self.dtype)
        if kind == "bpe":  # bytes of each token; special tokens never come from a text
            vocab = tokenizer.core.get_vocab(with_added_tokens=False)
            self.sizes = np.zeros(tokenizer.size, np.int64)
            self.sizes[list(vocab.values())] = list(map(len, vocab))
        self.forget()

    def forget(self) -> None:
        """Clear the cache of words."""
        self.numbers: dict[str, int] = {}
        self.ids = np.zeros(0, self.dtype)  # of all cached words, concatenated
        self.ends = np.zeros(1, np.int64)  # the end of each word in them
        self.size = 0

    def encode(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """The ids of each piece."""
        if self.kind == "char":
            return [self.letters[np.frombuffer(p.encode("utf-32-le"), np.uint32)] for p in pieces]
        if self.kind == "byte":
            return [self.letters[np.frombuffer(p.encode(), np.uint8)] for p in pieces]
        if self.kind == "bpe":
            return self.by_words([WORDS.split(piece) for piece in pieces])
        return [np.array(row, self.dtype) for row in self.tokenizer.encode_batch(pieces, special=False, safe=self.safe)]

    def by_words(self, pieces: Sequence[list[str]]) -> list[np.ndarray]:
        new = [word for word in dict.fromkeys(word for words in pieces for word in words) if word not in self.numbers]
        if self.size > MOST:
            self.forget()
            new = list(dict.fromkeys(word for words in pieces for word in words))
        self.learn(new)
        counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
        every = (word for words in pieces for word in words)
        which = np.fromiter(map(self.numbers.__getitem__, every), np.int64, int(counts.sum()))
        starts, ends = self.ends[which], self.ends[which + 1]
        lengths = ends - starts
        before = np.cumsum(lengths) - lengths  # the start of each word in the result
        ids = self.ids[np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)]
        last = np.cumsum(counts)[:-1]  # the first word of each piece but the first; none is without words
        return np.split(ids, before[last])

    def learn(self, words: list[str]) -> None:
        """Encode new words, on all cores."""
        # Words that begin with white space are encoded as one joined text: their ends are token boundaries there too.
        inner = [word for word in words if word[:1] in (" ", "\n")]
        alone = [word for word in words if word[:1] not in (" ", "\n")]
        self.remember(alone, *self.cut_each(alone))
        for at in range(0, len(inner), GROUP):
            group = inner[at : at + GROUP]
            self.remember(group, *(self.cut_together(group) or self.cut_each(group)))

    def remember(self, words: list[str], ids: np.ndarray, lengths: np.ndarray) -> None:
        first = len(self.numbers)
        self.numbers.update(zip(words, range(first, first + len(words)), strict=True))
        self.ids = np.concatenate([self.ids, ids])
        self.ends = np.concatenate([self.ends, self.ends[-1] + np.cumsum(lengths)])
        self.size += sum(map(len, words))

    def cut_each(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all words, and the number of ids of each."""
        rows = self.tokenizer.encode_batch(words, special=False, safe=self.safe)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter((i for row in rows for i in row), self.dtype, int(lengths.sum())), lengths

    def cut_together(self, words: list[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """The same from one text of all words; None if a token would cross the end of a word."""
        pieces = ["".join(words[i : i + 1000]) for i in range(0, len(words), 1000)]
        ids, _ = self.cut_each(pieces)
        token_ends = np.cumsum(self.sizes[ids])  # in bytes
        word_ends = np.cumsum(np.fromiter((len(word.encode()) for word in words), np.int64, len(words)))
        last = np.searchsorted(token_ends, word_ends)
        if len(ids) == 0 or last[-1] >= len(ids) or (token_ends[last] != word_ends).any():
            return None
        return ids, np.diff(last + 1, prepend=0)


def byte_names() -> list[str]:
    """The token of each byte in byte-level vocabularies."""
    from anyformer.data.tokenizers.training import byte_name

    return [byte_name(byte) for byte in range(256)]
