"""Columns of text, and of sentences split into words: the inputs of a tokenizer."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from anyformer.data.answer_spans import AnswerSpan
from anyformer.data.columns.base import Column, ParsedCells, is_scalar
from anyformer.data.columns.category import parse_word
from anyformer.data.columns.cells import is_list, texts
from anyformer.data.columns.convert import is_words
from anyformer.data.columns.modality import Encoding, Modality, ModalityInputs
from anyformer.data.columns.values import is_none, spelled
from anyformer.data.datasets.encode_questions import encode_questions
from anyformer.data.datasets.encode_texts import encode_sentences, encode_texts, require_tokenizer
from anyformer.data.habit import TrainingDefaults
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.positions import Learned
from anyformer.slots import Embed

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.sizes import Sizes

MOST_WORDS = 4096  # words of a sentence in a request


class TextModality(Modality):
    """The tokens of a row: its texts as a pair or concatenated, or the words of its sentence."""

    name: ClassVar[str] = "text"
    rank: ClassVar[int] = 10
    embeds: ClassVar[tuple[type[Embed], ...]] = (Tokens,)
    presets: ClassVar[tuple[str, ...]] = ("encoder-mini", "encoder-small")
    plural: ClassVar[str] = "text"
    habit: ClassVar[TrainingDefaults | None] = TrainingDefaults(
        epochs=20, batch_size=32, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=1e-3
    )
    smoothed: ClassVar[bool] = True  # else an overconfident Transformer outweighs the n-grams
    settings: ClassVar[str] = "data.tokenizer"
    fixed_shape: ClassVar[bool] = False
    keeps_embedding: ClassVar[bool] = True

    @property
    def sentence(self) -> Sentence | None:
        """The row's column of words, if any."""
        return next((column for column in self.columns if isinstance(column, Sentence)), None)

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        if preprocess.writes_text:
            return preprocess  # source and target texts are encoded together: both decide the length
        encode = encode_sentences if self.sentence is not None else encode_texts
        if isinstance(preprocess.target, AnswerSpan):
            encode = encode_questions
        tokenizer = require_tokenizer(work.tokenizer)
        return encode(work.frame, preprocess, tokenizer, work.arrays, work.counts, work.train)

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Token ids (B, T), padded on the right; for a pair also the token types."""
        tokens, mask = examples.padded("tokens", at, examples.pad)
        named = {"mask": mask}
        if "second" in examples.arrays:
            second = torch.from_numpy(examples.arrays["second"][at].astype(np.int64))
            named["segments"] = (torch.arange(tokens.shape[1]) >= second[:, None]).long() * mask
        return ModalityInputs((tokens,), mask, named)

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        return embed_tokens(own if isinstance(own, Tokens) else Tokens(vocab=sizes.vocab, position=Learned(512)), sizes)

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        if self.sentence is not None:
            return {"words": frame.column(self.sentence.name).to_pylist()}
        written = [texts(frame.column(column.name)) for column in self.columns]
        return {"texts": [" ".join(parts) for parts in zip(*written, strict=True)]}


def embed_tokens(embed: Tokens, sizes: Sizes) -> Tokens:
    """An embedding of text for this vocabulary and length."""
    changes: dict[str, Any] = {"vocab": sizes.vocab}
    if isinstance(embed.position, Learned) and sizes.length is not None:
        changes["position"] = embed.position.replace(length=max(sizes.length, 8))
    if sizes.segments and not embed.segments:
        changes["segments"] = sizes.segments
    return embed.replace(**changes)


class Text(Column):
    """Running text; what it becomes is the tokenizer's business."""

    kind: ClassVar[str] = "text"
    noun: ClassVar[str] = "a text"
    modality: ClassVar[type[Modality]] = TextModality
    rank: ClassVar[int] = 60  # it takes whatever words are left
    is_text: ClassVar[bool] = True

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        """Lists of words, and words that no other kind recognises."""
        if seen.holds == "lists of words":
            return seen.made(cls.kind, "lists of words")
        if seen.holds != "words":
            return None
        what = "" if seen.hint else seen.telling_apart()
        if what:
            keeps = f"--types {shlex.quote(f'{seen.name}={cls.kind}')} reads them"
            return seen.made(cls.kind, "", dropped=f"{what}, nearly all different: like an id, no text; {keeps}")
        how = "mostly different" if seen.share() > 0.5 else f"{seen.counted} different texts"
        about = f"{seen.words:.0f} words" if seen.words >= 1.5 else f"{seen.length:.0f} letters"
        return seen.made(cls.kind, f"{about} on average, {how}{seen.hint}")

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        import pyarrow as pa

        if is_scalar(cells.type) or (is_list(cells.type) and is_words(cells.type.value_type)):
            return pa.array(texts(cells), pa.string()), {}
        return super().parse_cells(cells, known=known)

    def parse_value(self, value: Any) -> str:
        """A text, or a list of its words."""
        if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
            return spelled(" ".join(value), self.name)
        text = parse_word(value, self.name)
        if text is None:
            raise self.wrong(value)
        return text

    def example(self) -> str:
        return "Hello"


class Sentence(Column):
    """A sentence already cut into words: a list of strings a row."""

    kind: ClassVar[str] = "sentence"
    noun: ClassVar[str] = "a list of words"
    modality: ClassVar[type[Modality]] = TextModality
    rank: ClassVar[int] = 70
    by_name: ClassVar[bool] = False  # words are a sentence where there is a tag for each of them
    is_text: ClassVar[bool] = True
    needed: ClassVar[bool] = True

    def as_texts(self, cells: pa.ChunkedArray) -> list[str]:
        return [" ".join(str(word) for word in words or () if word is not None) for words in cells.to_pylist()]

    def parse_value(self, value: Any) -> list[str]:
        """A list of words; a text is split at its spaces."""
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list | tuple | np.ndarray) or not all(isinstance(word, str) for word in words):
            raise self.wrong(value)
        if not len(words):
            raise self.wrong(value)
        return [spelled(str(word), self.name) for word in words]

    def arrow(self, values: list[Any], bad: dict[int, UserError]) -> pa.Array:
        import pyarrow as pa

        return pa.array(values, pa.list_(pa.string()))

    def is_missing(self, value: Any) -> bool:
        return is_none(value) or (isinstance(value, str | list | tuple | np.ndarray) and not len(value))

    def from_request(self, value: Any) -> Any:
        words = len(value.split()) if isinstance(value, str) else len(value) if isinstance(value, list) else 0
        if words > MOST_WORDS:
            raise UserError(f"{words:,} words are too many", where=self.name, fix=f"send {MOST_WORDS:,}")
        return value

    def example(self) -> list[str]:
        return ["Once", "upon", "a", "time"]
