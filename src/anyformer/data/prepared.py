"""DataRequest: what is to be made ready for training. Prepared: the same after everything has been decided."""

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
    """What a model to start from brings along; data must then fit it rather than the other way round."""

    tokenizer: Tokenizer | None = None
    reads_words: bool = False  # whether it has a table of tokens, which mean nothing without its own tokenizer
    images: ImageSteps | None = None
    labels: list[str] | None = None
    length: int | None = None  # tokens it can place at most
    segments: bool | None = None  # whether it tells two texts apart by token types; None: as its tokenizer says
    start: int | None = None  # the token its decoder begins with
    columns: tuple[Column, ...] = ()  # that it was trained on, as they were fitted
    network: Network | None = None  # the one to be trained, where it was named
    slow: bool = False  # whether it learns from nothing on a CPU, where large images would leave a few steps
    preprocess: Preprocess | None = None  # of a teacher, who must be able to read the same rows: nothing is fitted anew

    @property
    def chooses_inputs(self) -> bool:
        """Whether a network or its columns are there already, which say what is read."""
        return bool(self.columns) or not (self.network is None and self.tokenizer is None and self.preprocess is None)

    def check_tokenizer(self, folder: str | None) -> None:
        """Refuse to train a tokenizer for a table of words that another one belongs to; `folder` holds one."""
        if self.reads_words and self.tokenizer is None and folder is None:
            raise UserError("the folder has no tokenizer, and its table of tokens means nothing without it",
                            where="--from", fix="add --set data.tokenizer.folder=FOLDER with its own")  # fmt: skip

    def start_for(self, tokenizer: Tokenizer) -> int:
        """What a text that is written begins with."""
        known = (self.start, tokenizer.bos, tokenizer.pad, tokenizer.eos)
        return next((token for token in known if token is not None), 0)


@dataclass(frozen=True)
class DataRequest:
    """What is to be made ready for training, and how: what `Task.prepare` is given."""

    source: Any  # files (paths) or Python data
    settings: Data
    cache: Path  # the folder that the examples are written into
    seed: int = 0
    given: StartModelConstraints = field(default_factory=StartModelConstraints)
    log: Log = silence
    why: str = ""  # how the task was recognised, where nobody named one


@dataclass
class Prepared:
    """What `prepare` gives. `facts["sizes"]` is what a network must be built for: vocab, classes, numbers, ..."""

    task: str
    train: Examples
    valid: Examples | None
    test: Examples | None
    preprocess: Preprocess
    tokenizer: Tokenizer | None = None
    images: ImageSteps | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # goes to data.json: sources, split, columns, counts
    notes: list[str] = field(default_factory=list)  # what was printed
    settings: Data | None = None  # with everything decided that was left open, where something was
