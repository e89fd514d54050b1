"""The contract of a modality: the columns that enter the network together, as one of its inputs."""

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
    """Rows on their way into arrays. `train` are the rows that may still decide something; None for new rows."""

    frame: Frame
    arrays: Arrays
    counts: ColumnCounts
    parsed: Parsed
    tokenizer: Tokenizer | None = None
    images: ImageSteps | None = None  # how a model to start from, or the trained one, prepares images
    train: np.ndarray | None = None


class ModalityInputs(NamedTuple):
    """A batch of one modality."""

    inputs: tuple[Any, ...]  # what its embedding is called with
    mask: Tensor | None = None  # beside other modalities: (B, T) tokens or (B,) rows that may be seen
    named: dict[str, Any] = {}  # where it is the only modality: further inputs of the network, by name


@dataclass(frozen=True)
class Modality:
    """One input of the network: how its columns are kept in arrays, made into batches, and embedded.

    A subclass that says no more than `name` and `embed` keeps what its columns encode as one array (N, columns, ...).
    """

    name: ClassVar[str] = ""  # "text", "table", ...; among the parts of the sizes
    rank: ClassVar[int] = 100  # the order of the modalities in a row
    embeds: ClassVar[tuple[type[Embed], ...]] = ()  # the embeddings that read it
    presets: ClassVar[tuple[str, ...]] = ()  # those that read it alone: on a CPU, on a GPU; () for any
    plural: ClassVar[str] = ""  # in messages: a preset "does not read images"
    habit: ClassVar[TrainingDefaults | None] = None  # how rows of it alone are usually trained
    settings: ClassVar[str] = ""  # the section of data settings that is idle without it
    fixed_shape: ClassVar[bool] = True  # whether batches of as many rows all have one shape
    keeps_embedding: ClassVar[bool] = False  # whether a model to start from reads it with its embedding as it is
    in_double: ClassVar[bool] = False  # whether estimators answer in double precision, so that no row sees another
    whole_words: ClassVar[bool] = False  # whether its tokens are words, one each
    smoothed: ClassVar[bool] = False  # whether classes are learned with label smoothing where nothing is said

    columns: tuple[Column, ...] = field(repr=False)

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        """Write the rows into arrays; gives the preprocessing with what was decided on the way."""
        made = []
        for column in self.columns:
            found = column.encode(column.read_from(work.parsed))
            work.counts.lost(work.frame, column.name, column.lost(found))
            made.append(found)
        work.arrays.put(self.name, np.stack(made, 1))
        return preprocess

    def settle_augmentation(self, arrays: Arrays, train: np.ndarray, settings: Data, log: Log, *, alone: bool) -> Data:
        """The settings with all decided about how training rows vary; `alone`: there is no other input, nor a text."""
        return settings

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Rows as a batch: `at` are their numbers in the arrays, `chosen` those among the examples, for the `draw`."""
        return ModalityInputs((torch.from_numpy(np.array(examples.arrays[self.name][at])),))

    def sizes(self) -> dict[str, Any]:
        """What the network must be built for, as JSON holds it."""
        return {}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        """The embedding for data of these sizes, in the style of the preset's `own` where that is one of `embeds`."""
        raise NotImplementedError

    def describe(self, preprocess: Preprocess) -> str:
        """What was fitted on the training rows, in words for people; "" where its columns say it all."""
        return ""

    @classmethod
    def preset_for(cls, rows: int | None, *, gpu: bool) -> str:
        """The preset that reads this many training rows of it alone; "" for any."""
        return cls.presets[gpu] if cls.presets else ""

    @classmethod
    def habit_for(cls, rows: int | None) -> TrainingDefaults | None:
        """How this many training rows of it alone are usually trained; None for any number."""
        return cls.habit

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        """The rows of a frame as a simple learner is given them: numbers (N, F), categories, texts, words, images."""
        stored = np.asarray(examples.arrays[self.name][examples.rows], np.float64)
        return {"numbers": stored.reshape(len(stored), -1)}
