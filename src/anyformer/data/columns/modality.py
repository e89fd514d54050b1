"""The interface of a modality: the columns that form one input of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.data.habit import TrainingDefaults
from anyformer.log import Log
from anyformer.slots import Embed

if TYPE_CHECKING:
    from anyformer.data.columns.base import Column
    from anyformer.data.columns.parsed import Parsed
    from anyformer.data.counts import ColumnCounts
    from anyformer.data.datasets.arrays import Arrays
    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.images.preprocessing import ImageSteps
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.settings import Data
    from anyformer.data.sizes import Sizes
    from anyformer.data.tokenizers.tokenizer import Tokenizer


@dataclass
class Encoding:
    """Rows being encoded into arrays. `train` are the rows that statistics are fitted on; None for new rows."""

    frame: Frame
    arrays: Arrays
    counts: ColumnCounts
    parsed: Parsed
    tokenizer: Tokenizer | None = None
    images: ImageSteps | None = None  # how a model to start from, or the trained one, prepares images
    train: np.ndarray | None = None


class ModalityInputs(NamedTuple):
    """A batch of one modality."""

    inputs: tuple[Any, ...]  # arguments of its embedding
    mask: Tensor | None = None  # with other modalities: padding mask, (B, T) per token or (B,) per row, True: visible
    named: dict[str, Any] = {}  # if it is the only modality: further keyword inputs of the network


@dataclass(frozen=True)
class Modality:
    """One input of the network: how its columns are stored in arrays, batched, and embedded.

    A subclass with only `name` and `embed` stores the encoded columns as one array (N, columns, ...).
    """

    name: ClassVar[str] = ""  # "text", "table", ...; among the parts of the sizes
    rank: ClassVar[int] = 100  # the order of the modalities in a row
    embeds: ClassVar[tuple[type[Embed], ...]] = ()  # embeddings that accept it
    presets: ClassVar[tuple[str, ...]] = ()  # presets for it as only input: on a CPU, on a GPU; () for any
    plural: ClassVar[str] = ""  # in messages: a preset "does not read images"
    habit: ClassVar[TrainingDefaults | None] = None  # training defaults for rows with only this modality
    settings: ClassVar[str] = ""  # the section of data settings that has no effect without it
    fixed_shape: ClassVar[bool] = True  # whether all batches of the same number of rows have the same shape
    keeps_embedding: ClassVar[bool] = False  # whether fine-tuning keeps the embedding of the starting model
    in_double: ClassVar[bool] = False  # whether estimators predict in float64, so that rows do not affect each other
    whole_words: ClassVar[bool] = False  # whether each token is a whole word
    smoothed: ClassVar[bool] = False  # whether classification uses label smoothing by default

    columns: tuple[Column, ...] = field(repr=False)

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        """Write the rows into arrays; returns the preprocessing with the decisions made."""
        made = []
        for column in self.columns:
            found = column.encode(column.read_from(work.parsed))
            work.counts.lost(work.frame, column.name, column.lost(found))
            made.append(found)
        work.arrays.put(self.name, np.stack(made, 1))
        return preprocess

    def settle_augmentation(self, arrays: Arrays, train: np.ndarray, settings: Data, log: Log, *, alone: bool) -> Data:
        """The settings with augmentation resolved; `alone`: there is no other input, nor a text."""
        return settings

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """A batch of rows: `at` are indices into the arrays, `chosen` those among the examples, for the `draw`."""
        return ModalityInputs((torch.from_numpy(np.array(examples.arrays[self.name][at])),))

    def sizes(self) -> dict[str, Any]:
        """Data sizes that the network depends on, as JSON-compatible values."""
        return {}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        """The embedding for data of these sizes, derived from the preset's `own` if that is one of `embeds`."""
        raise NotImplementedError

    def describe(self, preprocess: Preprocess) -> str:
        """A readable description of what was fitted to the training rows; "" if its columns describe it."""
        return ""

    @classmethod
    def preset_for(cls, rows: int | None, *, gpu: bool) -> str:
        """The preset for this many training rows with only this modality; "" for any."""
        return cls.presets[gpu] if cls.presets else ""

    @classmethod
    def habit_for(cls, rows: int | None) -> TrainingDefaults | None:
        """Training defaults for rows with only this modality; `rows` None: for any number of them."""
        return cls.habit

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        """Features of a frame's rows for baselines: numbers (N, F), categories, texts, words, images."""
        stored = np.asarray(examples.arrays[self.name][examples.rows], np.float64)
        return {"numbers": stored.reshape(len(stored), -1)}
