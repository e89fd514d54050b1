"""Whole words with their letters, and a chain of tags."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.embeds.words import Words
from anyformer.heads.crf import CRF

EXAMPLES = {
    Words: {
        "words": Words(vocab=9, affixes=16, letters=4),
        "words-affixes": Words(vocab=9, affixes=16, letters=0),
        "words-letters": Words(vocab=9, affixes=0, letters=4, kernel=2),
    },
    CRF: {"crf": CRF(classes=3)},
}
ALIKE = {"words-affixes", "words-letters"}


def spelled_words(embed: Words, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Words of one to five letters."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, embed.vocab, (batch, length), generator=generator)
    hashes = torch.randint(0, 2**32, (batch, length, 3), generator=generator)
    letters = torch.randint(1, 200, (batch, length, 5), generator=generator)
    ends = torch.randint(1, 6, (batch, length, 1), generator=generator)
    return words, hashes, letters.where(torch.arange(5) < ends, 0)


INPUTS = {Words: spelled_words}
