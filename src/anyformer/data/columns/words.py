"""Sentences read word by word: each word by a table of frequent words, and by its spelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import torch

from anyformer.data.columns.base import ColumnValues
from anyformer.data.columns.modality import Encoding, Modality, ModalityInputs
from anyformer.data.columns.text import Sentence
from anyformer.data.datasets.encode_texts import LONGEST, sentences
from anyformer.data.habit import TrainingDefaults
from anyformer.data.tokenizers.parallel_encode import Flat, longest, pieces
from anyformer.embeds.words import CODES, UNKNOWN, Words
from anyformer.slots import Embed

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.prepared import StartModelConstraints
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.settings import Columns
    from anyformer.data.sizes import Sizes

MOST_KNOWN = 50_000  # size of the table
FIRST, LAST = 12, 8  # letters kept at either end of a long word
AFFIX = 4  # maximum length of a prefix or suffix
PADDING = 0  # the row of `word_ids`, `hashes` and `letters` for padding


class WordsModality(Modality):
    """The words of a sentence. Each distinct word is encoded once; tokens are indices of distinct words."""

    name: ClassVar[str] = "words"
    rank: ClassVar[int] = 15
    embeds: ClassVar[tuple[type[Embed], ...]] = (Words,)
    presets: ClassVar[tuple[str, ...]] = ("tagger-mini", "tagger-small")
    plural: ClassVar[str] = "whole words"
    # A few sentences are overfitted after five epochs, many keep improving; half precision saves nothing with such
    # small models.
    habit: ClassVar[TrainingDefaults | None] = TrainingDefaults(
        epochs=15, batch_size=16, lr=2e-3, weight_decay=0.1, gpu_batch_size=32, gpu_lr=2e-3, patience=8,
        settings={"precision": "fp32"},
    )  # fmt: skip
    fixed_shape: ClassVar[bool] = False
    keeps_embedding: ClassVar[bool] = True
    whole_words: ClassVar[bool] = True

    @property
    def sentence(self) -> WordList:
        """Its only column."""
        (column,) = self.columns
        assert isinstance(column, WordList)
        return column

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        """Sentences as indices of distinct words, and each of those as id, hashes and letters."""
        name = self.sentence.name
        if preprocess.length is None:
            lengths = np.array([len(words) for piece in pieces(len(work.frame))
                                for words in sentences(work.frame, name, piece)], np.int64)  # fmt: skip
            most = int((lengths if work.train is None else lengths[work.train]).max(initial=0))
            preprocess = preprocess.replace(length=longest([most], most=LONGEST))
        room = preprocess.length or LONGEST
        rows: dict[str, int] = {}
        tokens, begins = Flat(work.arrays, "tokens", np.int32), Flat(work.arrays, "begins", np.int32)
        cut = np.zeros(len(work.frame), bool)
        for piece in pieces(len(work.frame)):
            kept = []
            for number, words in enumerate(sentences(work.frame, name, piece), piece.start):
                cut[number] = len(words) > room
                kept.append([rows.setdefault(word, PADDING + 1 + len(rows)) for word in words[:room]])
            tokens.add(kept)
            begins.add([range(len(words)) for words in kept])
        tokens.close()
        begins.close()
        self.sentence.put_words(work, list(rows))
        work.arrays.put("cut", cut)
        work.counts.cut = int(cut.sum())
        return preprocess

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Word ids (B, T), hashes (B, T, K) and letters (B, T, L), padded on the right."""
        tokens, mask = examples.padded("tokens", at, PADDING)
        made = (examples.arrays[name][tokens.numpy()].astype(np.int64) for name in ("word_ids", "hashes", "letters"))
        return ModalityInputs(tuple(torch.from_numpy(part) for part in made), mask, {"mask": mask})

    def sizes(self) -> dict[str, Any]:
        return {"vocab": len(self.sentence.known) + 1}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        return (own if isinstance(own, Words) else Words(vocab=1)).replace(vocab=sizes.vocab)

    def describe(self, preprocess: Preprocess) -> str:
        known = f"{len(self.sentence.known):,} known, met more than once in training"
        read = "each with its letters, affixes and shape (in pieces: data.tokenizer.kind=bpe)"
        return f"{known}; {read}; rows of at most {preprocess.length} words"

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        return {"words": frame.column(self.sentence.name).to_pylist()}


class WordList(Sentence):
    """A sentence cut into words, each read whole: by its place among the `known` words, its affixes and its letters."""

    kind: ClassVar[str] = "words"
    modality: ClassVar[type[Modality]] = WordsModality
    rank: ClassVar[int] = 75
    is_text: ClassVar[bool] = False  # no tokenizer reads it

    known: tuple[str, ...] = ()  # the words of the table in lower case, the most frequent first

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        return cells

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Columns, *, seed: int = 0, form: str = "") -> WordList:
        """The words that occur more than once in training; rarer ones share the unknown id, so that it is trained."""
        counts: Counter[str] = Counter()
        for words in values.to_pylist():
            counts.update(str(word).lower() for word in words or () if word is not None)
        often = sorted((-count, word) for word, count in counts.items() if count > 1)
        return cls(name=name, known=tuple(word for _, word in often[:MOST_KNOWN]))

    def started_from(self, given: StartModelConstraints) -> WordList:
        """With the words of the pretrained table."""
        return next(
            (self.replace(known=column.known) for column in given.columns if isinstance(column, WordList)), self
        )

    def put_words(self, work: Encoding, words: Sequence[str]) -> None:
        """Write the distinct words of some rows, after a row of padding."""
        ids = {word: UNKNOWN + 1 + place for place, word in enumerate(self.known)}
        work.arrays.put("word_ids", np.array([UNKNOWN, *(ids.get(word.lower(), UNKNOWN) for word in words)], np.int32))
        work.arrays.put("hashes", np.array([hash_spelling(word) for word in ["", *words]], np.uint32))
        work.arrays.put("letters", np.array([letter_codes(word) for word in ["", *words]], np.uint16))


def hash_spelling(word: str) -> list[int]:
    """Hashes of a spelling: its prefixes and suffixes in lower case, and its shape, long and short."""
    low, shape = word.lower(), "".join(map(shape_of, word))
    short = "".join(mark for at, mark in enumerate(shape) if mark != shape[at - 1 : at])
    seen = [f"{at}<{low[:at]}" for at in range(1, AFFIX + 1)] + [f"{at}>{low[-at:]}" for at in range(1, AFFIX + 1)]
    return [crc32(part.encode("utf-8", "surrogatepass")) for part in [*seen, f"={shape[:FIRST]}", f"~{short}"]]


def shape_of(letter: str) -> str:
    """A letter's class: A, a and 0 for upper case, lower case and digits, else itself.

    >>> "".join(map(shape_of, "iPhone-4S"))
    'aAaaaa-0A'
    """
    return "A" if letter.isupper() else "a" if letter.islower() else "0" if letter.isdigit() else letter


def letter_codes(word: str) -> list[int]:
    """The letters of a word as codes below CODES, only the first and last ones if it is long, padded with 0.

    Letters of European and near-eastern scripts have their own codes; others share the upper half.
    """
    kept = word if len(word) <= FIRST + LAST else word[:FIRST] + word[-LAST:]
    half = CODES // 2
    codes = [ord(letter) if 0 < ord(letter) < half else half + ord(letter) % half for letter in kept]
    return codes + [0] * (FIRST + LAST - len(codes))
