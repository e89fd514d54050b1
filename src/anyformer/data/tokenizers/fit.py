"""The tokenizer for rows of text: given, or trained on the training rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.frame import Frame
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import TokenizerSettings
from anyformer.data.tokenizers.parallel_encode import pieces
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from anyformer.data.tokenizers.training import Kind
from anyformer.errors import UserError

MOST = 16_000  # default maximum vocabulary for input text: most words are one token
MOST_TO_WRITE = 8000  # for generated text, where every step computes logits for all of them
LEAST = 512
PIECES = 256  # bytes, the base of every byte-level vocabulary; a word of several pieces takes a token for each
SAMPLE = 50_000_000  # maximum characters to train a tokenizer on
NAMES = {
    "bpe": "byte-level BPE", "char-bpe": "BPE of characters", "wordpiece": "WordPiece", "unigram": "unigram",
    "word": "words", "char": "characters", "byte": "bytes",
}  # fmt: skip


def tokenizer_for(
    frame: Frame,
    preprocess: Preprocess,
    rows: np.ndarray,
    words: TokenizerSettings,
    given: StartModelConstraints,
    *,
    seed: int,
) -> tuple[Tokenizer, str]:
    """A tokenizer for the rows' texts and a description; trained on the training `rows` if none is given."""
    if given.tokenizer is not None:
        return given.tokenizer, f"{given.tokenizer.size:,} tokens, the model's own"
    given.check_tokenizer(words.folder)
    if words.folder is not None:
        found = open_tokenizer(Path(words.folder))
        if found is None:
            raise UserError("no tokenizer in the folder", where=words.folder, fix="give one with tokenizer.json")
        return found, f"{found.size:,} tokens, from {Path(words.folder).name}"
    kind: Kind = "bpe" if words.kind == "auto" else words.kind
    sample, part = sample_texts(frame, preprocess, rows, seed)
    if not any(sample):
        raise UserError("the training rows hold no text", where="tokenizer", fix="give rows with text")
    size = words.vocab_size or {"char": 2**16, "byte": 512}.get(
        kind, vocabulary(sample, MOST_TO_WRITE if preprocess.writes_text else MOST)
    )
    both = not preprocess.writes_text  # an input text ends in </s>; a generated one gets its start token elsewhere
    tokenizer = train_tokenizer(sample, kind, size, add_bos=both and kind != "wordpiece", add_eos=kind != "wordpiece",
                                lower=words.lowercase, leading_blank=both)  # fmt: skip
    of = f"{len(rows):,} training rows" if part == 1 else f"{part:.0%} of {len(rows):,} training rows"
    return tokenizer, f"{NAMES[kind]}, {tokenizer.size:,} tokens, trained on {of}"


def vocabulary(sample: Sequence[str], most: int) -> int:
    """The vocabulary size for the texts: one token per distinct word and for its pieces, within bounds."""
    different: set[str] = set()
    for text in sample:
        different.update(text.split())
        if PIECES + 2 * len(different) > most:
            return most
    return max(LEAST, PIECES + 2 * len(different))


def sample_texts(frame: Frame, preprocess: Preprocess, rows: np.ndarray, seed: int) -> tuple[list[str], float]:
    """The texts to train a tokenizer on: those of all training rows or of a random sample; and the sampled fraction."""
    readers: dict[str, Callable[[Any], list[str]]] = {column.name: column.as_texts for column in preprocess.texts}
    if preprocess.target is not None and preprocess.target.writes_text:
        readers |= dict.fromkeys(preprocess.target.names, texts)
    held = sum(frame.column(name).nbytes for name in readers) * len(rows) / max(1, len(frame))
    share = min(1.0, SAMPLE / max(1.0, held))
    if share < 1:
        rows = np.sort(np.random.default_rng((seed, 1)).permutation(rows)[: max(1, int(len(rows) * share))])
    found: list[str] = []
    for name, read in readers.items():
        column: Any = frame.column(name)
        for piece in pieces(len(rows)):
            found += read(column.take(rows[piece]))
    return found, share
