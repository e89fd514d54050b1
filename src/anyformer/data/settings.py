"""Settings of the data: what is read, how it is split, and how each kind of column becomes numbers."""

from __future__ import annotations

from typing import Literal

from anyformer.errors import UserError, check_range, did_you_mean
from anyformer.spec import Spec, field


class Split(Spec):
    """Which rows validate and which test. Files and columns that say so win over shares.

    `column` holds train / valid / test for each row; rows with equal `group` stay on one side; `time` puts the latest
    rows last: training, then validation, then test. Exact duplicates always stay on one side. Where nothing is said,
    rows whose dates go on in regular steps are split by time, others at random; `shuffle` draws those at random too.
    """

    valid: float = 0.1
    """Share of the rows that validate."""
    test: float = 0.1
    """Share of the rows that test."""
    valid_file: tuple[str, ...] | None = None
    """Files to validate on, two for a pair of parallel files."""
    test_file: tuple[str, ...] | None = None
    """Files to test on, two for a pair of parallel files."""
    column: str | None = None
    """A column that says train, valid or test for each row."""
    group: str | None = None
    """A column whose equal values stay on one side."""
    time: str | None = None
    """A column by which the latest rows validate and test."""
    shuffle: bool = False
    """Whether rows are drawn at random even where a column of dates goes on in regular steps."""
    stratify: bool = True
    """Whether every side gets the same share of each class."""

    def check(self) -> None:
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{getattr(self, name)} is outside [0, 1)", where=f"data.split.{name}", fix="use 0.1")
        if self.valid + self.test >= 1:
            raise UserError("nothing is left to train on", where="data.split", fix="use valid 0.1 and test 0.1")
        if sum(way is not None for way in (self.column, self.group, self.time)) > 1:
            raise UserError("two ways to split at once", where="data.split", fix="give one of column, group and time")
        if self.shuffle and self.time is not None:
            raise UserError("shuffle and time are two ways to split", where="data.split", fix="give one of them")


class TokenizerSettings(Spec):
    """How text becomes tokens: a kind of tokenizer to train on the training rows, or a `folder` that holds one."""

    kind: Literal["auto", "bpe", "char-bpe", "wordpiece", "unigram", "word", "char", "byte"] = "auto"
    """The kind of tokenizer to train on the training rows."""
    folder: str | None = None
    """A folder with a tokenizer to use instead of training one."""
    vocab_size: int | None = None
    """Tokens in the vocabulary; by the amount of text if not given."""
    max_length: int | None = None
    """Tokens of a row at most, or of a window of running text."""
    lowercase: bool = False
    """Whether text is lowercased first."""

    def check(self) -> None:
        for name in ("vocab_size", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise UserError(
                    f"{name} {value} is below 2", where=f"data.tokenizer.{name}", fix="leave it out or use 256"
                )


class Columns(Spec):
    """How columns of a table become numbers. `rare`: a value seen less often in training is as good as unknown."""

    scale: Literal["quantile", "standard", "none"] = "quantile"
    """How numbers are scaled."""
    rare: int = 1
    """A category seen less often in training counts as unknown."""
    unknown: Literal["bucket", "error"] = "bucket"
    """What a category unseen in training is: a value of its own, or an error."""
    target_scale: Literal["standard", "none"] = "standard"
    """How a numeric target is scaled."""

    def check(self) -> None:
        if self.rare < 1:
            raise UserError(f"rare {self.rare} is below 1", where="data.columns.rare", fix="use 1")


class ImageSettings(Spec):
    """How images become pixels, and how they vary while training. `size` None takes the images' own."""

    size: int | None = None
    """Pixels of a side; the images' own if not given."""
    channels: Literal[1, 3] | None = None
    """1 for gray, 3 for colour; the images' own if not given."""
    crop: float = 0.1
    """Share of the size by which a training image is shifted at most; for boxes, by which its edges are moved."""
    flip: bool | None = None
    """Whether training images are flipped left-right at random; where mirrored ones mean the same if not given."""
    randaugment: int = 0
    """RandAugment operations drawn for each training image; 2 is worth it where photos are seen a hundred times."""
    magnitude: int = 9
    """Strength of those operations, of 30."""
    erase: float = 0.0
    """Probability that a rectangle of a training image is blanked."""

    def check(self) -> None:
        if self.size is not None and not 4 <= self.size <= 4096:
            raise UserError(f"size {self.size} is outside 4 to 4096", where="data.images.size", fix="use 32 or 224")
        if not 0 <= self.crop < 0.5:
            raise UserError(f"crop {self.crop} is outside [0, 0.5)", where="data.images.crop", fix="use 0.125")
        check_range("data.images", "erase", self.erase, 0, 1, fix="use 0.25")
        check_range("data.images", "randaugment", self.randaugment, 0, 8, fix="use 2")
        check_range("data.images", "magnitude", self.magnitude, 0, 30, fix="use 9")


class AudioSettings(Spec):
    """How recordings become clips, and how they vary while training. `sample_rate` None takes that of most recordings.

    A clip longer than `seconds` is cut; None takes the longest, unless few are that long, and 10.24 at most. `shift` is
    the share of a clip by which it comes earlier or later, `gain` how many decibels louder or softer it gets at most.
    """

    sample_rate: int | None = None
    """Samples a second that recordings are brought to; that of most recordings if not given."""
    seconds: float | None = None
    """Where longer clips are cut; the longest, unless few are that long, and 10.24 at most if not given."""
    shift: float = 0.1
    """Share of a clip by which it comes earlier or later in training, at most."""
    gain: float = 6.0
    """Decibels by which a clip gets louder or softer in training, at most."""

    def check(self) -> None:
        if self.sample_rate is not None and not 100 <= self.sample_rate <= 400_000:
            raise UserError(
                f"sample_rate {self.sample_rate} is outside 100 to 400000",
                where="data.audio.sample_rate",
                fix="use 16000",
            )
        if self.seconds is not None and not 0.01 <= self.seconds <= 600:
            raise UserError(
                f"seconds {self.seconds} is outside 0.01 to 600", where="data.audio.seconds", fix="use 1 to 10"
            )
        if not 0 <= self.shift < 1:
            raise UserError(f"shift {self.shift} is outside [0, 1)", where="data.audio.shift", fix="use 0.1")
        check_range("data.audio", "gain", self.gain, 0, 60, fix="use 6")


class SeriesSettings(Spec):
    """How a time series is cut: steps to look back on, and steps to foresee; None takes what the rows allow."""

    look_back: int | None = None
    """Steps of the past in a window; what the rows allow if not given."""
    horizon: int | None = None
    """Steps to forecast; what the rows allow if not given."""
    by: tuple[str, ...] | None = None
    """Columns that name the series where a file holds several, a row for each moment of each; found if not given."""

    def check(self) -> None:
        for name, least in (("look_back", 2), ("horizon", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} {value} is below {least}", where=f"data.series.{name}", fix="use 96")
        if self.by is not None and not self.by:
            raise UserError("no column is named", where="data.series.by", fix="name one, or leave it out")


class Mixture(Spec):
    """How often the tasks of a text-to-text table come in training; left alone, every row comes once in an epoch.

    A task's rate is proportional to min(rows, `cap`) ** (1 / `temperature`), as T5 mixes (1910.10683, 3.5.2), times
    its weight. `weights` are words like "summarize=2".
    """

    temperature: float = 1.0
    """1: tasks in the proportion of their rows; more evens them out."""
    cap: int | None = None
    """Rows of a task that count at most."""
    weights: tuple[str, ...] | None = None
    """Factors on the rates of tasks, as in "summarize=2"."""
    by_file: bool = False
    """Whether each of several files is a task of its own, whose name is put before its texts."""
    prefixes: tuple[str, ...] | None = None
    """Names of files' tasks where they are not those of the files, as in "news=summarize"; turns `by_file` on."""

    def check(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"temperature {self.temperature} is not positive", where="data.mixture.temperature",
                            fix="use 1 or more")  # fmt: skip
        if self.cap is not None:
            check_range("data.mixture", "cap", self.cap, 1, fix="use 10000")
        self.weight_of_task()
        self.task_of_file()

    @property
    def names_files(self) -> bool:
        """Whether the task of a row follows from its file."""
        return self.by_file or bool(self.prefixes)

    def task_of_file(self) -> dict[str, str]:
        """File to task, from `prefixes`."""
        found: dict[str, str] = {}
        for word in self.prefixes or ():
            name, _, found[name] = word.partition("=")
            if not name or not found[name]:
                raise UserError(f"{word!r} does not say file=task", where="data.mixture.prefixes",
                                fix="write news=summarize")  # fmt: skip
        return found

    def weight_of_task(self) -> dict[str, float]:
        """Task to weight, from `weights`."""
        found: dict[str, float] = {}
        for word in self.weights or ():
            name, _, factor = word.rpartition("=")
            try:
                found[name] = float(factor)
            except ValueError:
                found[name] = 0.0
            if not name or not 0 < found[name] < float("inf"):
                raise UserError(f"{word!r} does not say task=factor", where="data.mixture.weights",
                                fix="write summarize=2")  # fmt: skip
        return found


class QuestionSettings(Spec):
    """How a context too long for the model is cut into windows, and how long an answer may be."""

    stride: int = 128
    """Tokens of the context that two neighbouring windows share; half a window at most."""
    max_answer_length: int = 30
    """Tokens of an answer at most."""

    def check(self) -> None:
        check_range("data.questions", "stride", self.stride, 0, 2**20, fix="use 128")
        check_range("data.questions", "max_answer_length", self.max_answer_length, 1, 4096, fix="use 30")


class Format(Spec):
    """How files are read, where looking at them is not enough."""

    encoding: str | None = None
    """Text encoding of the files; found by looking if not given."""
    delimiter: str | None = None
    """What separates the cells of a CSV file; found by looking if not given."""
    header: bool | None = None
    """Whether the first row names the columns; found by looking if not given."""


class Data(Spec):
    """Everything about the data but the files themselves. `types` are words like "year=number"."""

    target: tuple[str, ...] | None = None
    """The columns to predict."""
    inputs: tuple[str, ...] | None = None
    """The columns to learn from; all that help if not given."""
    types: tuple[str, ...] | None = None
    """Kinds of columns, as in "year=number", where looking at them is not enough."""
    bad: Literal["skip", "error"] = "skip"
    """What a row that cannot be used does."""
    split: Split = field(default_factory=Split)
    """Which rows validate and test."""
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    """How text becomes tokens."""
    columns: Columns = field(default_factory=Columns)
    """How numbers and categories become inputs."""
    images: ImageSettings = field(default_factory=ImageSettings)
    """How images become pixels."""
    audio: AudioSettings = field(default_factory=AudioSettings)
    """How recordings become clips."""
    series: SeriesSettings = field(default_factory=SeriesSettings)
    """How a time series is cut into windows."""
    mixture: Mixture = field(default_factory=Mixture)
    """How often the tasks of a text-to-text table come."""
    questions: QuestionSettings = field(default_factory=QuestionSettings)
    """How questions about long contexts are read."""
    format: Format = field(default_factory=Format)
    """How files are read."""

    def check(self) -> None:
        self.kinds()

    def kinds(self) -> dict[str, str]:
        """Column name to kind, from `types`."""
        if not self.types:
            return {}
        from anyformer.data.columns.kinds import kind_names

        asked, known = dict[str, str](), kind_names()
        for word in self.types or ():
            name, equals, kind = word.rpartition("=")
            if not equals or not name:
                raise UserError(
                    f"{word!r} does not say column=kind", where="data.types", fix="write --types year=number"
                )
            if kind not in known:
                raise UserError(
                    f"{kind!r} is not a kind of column", where=f"data.types {name}", fix=did_you_mean(kind, known)
                )
            asked[name] = kind
        return asked
