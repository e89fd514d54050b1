"""What each token is said to write is what decoding writes, for every form of tokenizer that can be opened."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from tests.data.tokenizers.test_tokenizer_equality import FORMS, corpus
from tests.data.tokenizers.tokenizer_texts import texts, write

PLAIN = [text for text in texts(500) if text.isascii() and text.isprintable()][:100]


def misspelt(words: Tokenizer) -> list[str]:
    """Texts whose tokens, each spelt by itself, are not together what decoding makes of them."""
    spelt, drops = words.spelling
    wrong = []
    for text in PLAIN:
        ids = words.encode(text, special=False, safe=True)
        parts = [spelt[number] for number in ids]
        if not ids or any(part is None for part in parts):
            continue  # special or unknown, which no guide ever allows
        got = b"".join(part for part in parts if part is not None).decode()
        got = got[1:] if drops and got.startswith(" ") else got
        if got != words.decode(ids):
            wrong.append(text)
    return wrong


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_can_be_opened(form: str, tmp_path: Path) -> None:
    words = open_tokenizer(write(tmp_path / "a", FORMS[form]()))
    assert words is not None
    known = sum(part is not None for part in words.spelling.tokens)
    assert known > 0.6 * words.size  # T5 has a hundred special ones
    for role in (words.bos, words.eos, words.pad, words.mask):
        assert role is None or words.spelling.tokens[role] is None
    tidies = words.engine.tidy or "WordPiece" in repr(words.core.decoder)  # type: ignore[attr-defined]
    if form != "clip":  # it takes off blanks at both ends too
        assert len(misspelt(words)) <= (len(PLAIN) // 6 if tidies else 0)  # blanks around marks are taken out


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "char-bpe", "unigram", "word"])
def test_those_that_are_trained_here(kind: str) -> None:
    words = train_tokenizer(corpus(), kind, 500)  # type: ignore[arg-type]
    assert not misspelt(words)


@functools.cache
def trained() -> Tokenizer:
    return train_tokenizer(corpus(), "unigram", 500)


def test_control_a_blank_too_many_is_noticed() -> None:
    words = trained()
    assert words.spelling.drops_blank and not misspelt(words)
    words.spelling = words.spelling._replace(drops_blank=False)  # type: ignore[misc]
    assert len(misspelt(words)) > len(PLAIN) // 2
