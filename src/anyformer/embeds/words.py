"""Words into vectors: one vector per word from a table of frequent words, affixes and characters."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable, LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_fraction, check_range
from anyformer.slots import Embed, Position

CODES = 4096  # letter codes; see data.columns.words.letter_codes
UNKNOWN = 0  # the id of out-of-vocabulary words


class Words(Embed):
    """table[word] + mean embedding of its affixes and shape + a max-pooled convolution over its letters.

    Inputs are word ids (B,T), 0 if out of vocabulary, hashes (B,T,K) of prefixes, suffixes and shape, and letters
    (B,T,L), padded with 0. In training a fraction `word_dropout` of the words is treated as unknown, so that spelling
    features are learned.
    """

    about: ClassVar[About | None] = About(
        "x_t = E[word] + mean_k A[hash_k] + W max_l conv(letters)_l",
        "1508.06615; 1603.01354",
        "T L kernel letters^2",
    )

    vocab: int
    """Words in the table; id 0 stands for all others."""
    affixes: int = 2**14
    """Rows for hashed affixes and shapes; 0: none."""
    letters: int = 64
    """Channels of the convolution over letters; 0: none."""
    kernel: int = 3
    """Kernel size in letters."""
    position: Position | None = None
    """Absolute positions added to the words; none if not given."""
    word_dropout: float = 0.0
    """Fraction of words treated as unknown in training."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_range("Words", "vocab", self.vocab, 1, fix="give the number of words and one for all others")
        check_range("Words", "affixes", self.affixes, 0, fix="use 0 for none")
        check_range("Words", "letters", self.letters, 0, fix="use 0 for none")
        check_range("Words", "kernel", self.kernel, 1, fix="use 3")
        for name in ("word_dropout", "dropout"):
            check_fraction("Words", name, getattr(self, name), fix="use 0.1")

    @property
    def limit(self) -> int | None:
        return None if self.position is None else self.position.limit

    def build(self, width: int) -> WordsModule:
        return WordsModule(self, width)


class WordsModule(nn.Module):
    def __init__(self, spec: Words, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.words = EmbeddingTable(spec.vocab, width)
        self.affixes = EmbeddingTable(spec.affixes, width) if spec.affixes else None
        self.letters = LetterConvolution(spec, width) if spec.letters else None
        self.position = None if spec.position is None else spec.position.build(width)

    def layout(
        self, words: Tensor, hashes: Tensor, letters: Tensor, *, mask: Mask | None = None,
        positions: Tensor | None = None, documents: Tensor | None = None, segments: Tensor | None = None,
        state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of words (B,T)."""
        for name, given, dims in (("words", words, 2), ("hashes", hashes, 3), ("letters", letters, 3)):
            if not isinstance(given, Tensor) or given.dim() != dims or given.is_floating_point():
                what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"type {type(given).__name__}"
                raise UserError(f"{name} have {what}", where="Words", fix="expected words (B, T), hashes (B, T, K) and "
                                "letters (B, T, L), whole numbers")  # fmt: skip
            if given.shape[:2] != words.shape:
                raise UserError(f"{name} have shape {tuple(given.shape)}", where="Words",
                                fix=f"give as many as there are words, {tuple(words.shape)}")  # fmt: skip
        if segments is not None:
            raise UserError("segments are given but the embedding has none", where="Words", fix="leave them out")
        return lay_out(words.shape[0], words.shape[1], words.device, mask=mask, positions=positions,
                       documents=documents, tokens=words, state=state)  # fmt: skip

    def forward(self, words: Tensor, hashes: Tensor, letters: Tensor, *, context: Context) -> Tensor:
        """Words (B,T), hashes (B,T,K) and letters (B,T,L) to (B,T,D)."""
        spec = self.spec
        if spec.word_dropout and self.training:
            words = words.masked_fill(torch.rand(words.shape, device=words.device) < spec.word_dropout, UNKNOWN)
        x = self.words(words)  # (B,T,D)
        if self.affixes is not None:
            x = x + self.affixes(hashes % spec.affixes).mean(2)
        if self.letters is not None:
            x = x + self.letters(letters)
        if self.position is not None:
            x = x + self.position(context, x.dtype)
        return F.dropout(x, spec.dropout, self.training)


class LetterConvolution(nn.Module):
    """A max-pooled convolution over the letters of each word, (B,T,L) to (B,T,D)."""

    def __init__(self, spec: Words, width: int) -> None:
        super().__init__()
        self.table = EmbeddingTable(CODES, spec.letters)
        self.around = (spec.kernel - 1) // 2, spec.kernel // 2  # padding before and after a word
        self.conv = nn.Conv1d(spec.letters, spec.letters, spec.kernel)
        self.out = LinearLayer(spec.letters, width)

    def forward(self, letters: Tensor) -> Tensor:
        there = (letters != 0).flatten(0, 1)[:, None]  # (BT,1,L)
        x = self.table(letters.flatten(0, 1)).mT * there  # (BT,letters,L)
        x = self.conv(F.pad(x, self.around)).masked_fill(~there, -torch.inf).amax(-1)  # (BT,letters)
        x = x.masked_fill(~there.any(-1), 0.0)  # padding has no letters
        return self.out(F.relu(x)).unflatten(0, letters.shape[:2])  # (B,T,D)
