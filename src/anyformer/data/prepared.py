"""DataRequest: what to prepare for training. Prepared: the result, after all decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.data.examples import Examples
from anyformer.errors import UserError
from anyformer.log import Log, silence

if TYPE_CHECKING:
    from anyformer.data.columns.base import Column
    from anyformer.data.images.preprocessing import ImageSteps
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.settings import Data
    from anyformer.data.tokenizers.tokenizer import Tokenizer
    from anyformer.slots import Network


@dataclass
class StartModelConstraints:
    """Constraints of a pretrained model, which the data must fit rather than the other way round."""

    tokenizer: Tokenizer | None = None
    reads_words: bool = False  # whether it has a token embedding, which is meaningless without its own tokenizer
    images: ImageSteps | None = None
    labels: list[str] | None = None
    length: int | None = None  # maximum number of positions
    segments: bool | None = None  # whether it separates two texts by token types; None: as its tokenizer does
    start: int | None = None  # the decoder's start token
    columns: tuple[Column, ...] = ()  # its fitted columns
    network: Network | None = None  # the network to be trained, if named
    slow: bool = False  # trained from scratch on a CPU, where large images would leave time for few steps
    preprocess: Preprocess | None = None  # of a teacher, which must read the same rows: nothing is fitted again

    @property
    def chooses_inputs(self) -> bool:
        """Whether a network or its columns are given, which determine the inputs."""
        return bool(self.columns) or not (self.network is None and self.tokenizer is None and self.preprocess is None)

    def check_tokenizer(self, folder: str | None) -> None:
        """Reject training a new tokenizer for a pretrained token embedding; `folder` has one."""
        if self.reads_words and self.tokenizer is None and folder is None:
            raise UserError("the folder has no tokenizer, and its table of tokens means nothing without it",
                            where="--from", fix="add --set data.tokenizer.folder=FOLDER with its own")  # fmt: skip

    def start_for(self, tokenizer: Tokenizer) -> int:
        """The decoder's start token."""
        known = (self.start, tokenizer.bos, tokenizer.pad, tokenizer.eos)
        return next((token for token in known if token is not None), 0)


@dataclass(frozen=True)
class DataRequest:
    """What to prepare for training, and how: the argument of `Task.prepare`."""

    source: Any  # files (paths) or Python data
    settings: Data
    cache: Path  # the folder for the prepared examples
    seed: int = 0
    given: StartModelConstraints = field(default_factory=StartModelConstraints)
    log: Log = silence
    why: str = ""  # how the task was recognised, if none was named


@dataclass
class Prepared:
    """The result of `prepare`. `facts["sizes"]` is what a network must be built for: vocab, classes, numbers, ..."""

    task: str
    train: Examples
    valid: Examples | None
    test: Examples | None
    preprocess: Preprocess
    tokenizer: Tokenizer | None = None
    images: ImageSteps | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # saved in data.json: sources, split, columns, counts
    notes: list[str] = field(default_factory=list)  # the printed lines
    settings: Data | None = None  # with open settings resolved, if any
