"""Settings of the data: what is read, how it is split, and how each kind of column becomes numbers."""

from __future__ import annotations

from typing import Literal

from anyformer.errors import UserError, check_range, did_you_mean
from anyformer.spec import Spec, field


class Split(Spec):
    """Which rows validate and which test. Files and columns that say so win over shares.

    `column` holds train / valid / test for each row; rows with equal `group` stay on one side; `time` puts the latest
    rows last: training, then validation, then test. Exact duplicates always stay on one side.
    """

    valid: float = 0.1
    test: float = 0.1
    valid_file: tuple[str, ...] | None = None  # two for a pair of parallel files
    test_file: tuple[str, ...] | None = None
    column: str | None = None
    group: str | None = None
    time: str | None = None
    stratify: bool = True

    def check(self) -> None:
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{getattr(self, name)} is not a share below 1", where=f"data.split.{name}", fix="use 0.1"
                )
        if self.valid + self.test >= 1:
            raise UserError("nothing is left to train on", where="data.split", fix="use valid 0.1 and test 0.1")
        if sum(way is not None for way in (self.column, self.group, self.time)) > 1:
            raise UserError("two ways to split at once", where="data.split", fix="give one of column, group and time")


class TokenizerSettings(Spec):
    """How text becomes tokens: a kind of tokenizer to train on the training rows, or a `folder` that holds one."""

    kind: Literal["auto", "bpe", "char-bpe", "wordpiece", "unigram", "word", "char", "byte"] = "auto"
    folder: str | None = None
    vocab_size: int | None = None
    max_length: int | None = None  # tokens of a row at most, or of a window of a language model
    lowercase: bool = False

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
    rare: int = 1
    unknown: Literal["bucket", "error"] = "bucket"
    target_scale: Literal["standard", "none"] = "standard"

    def check(self) -> None:
        if self.rare < 1:
            raise UserError(f"rare {self.rare} is below 1", where="data.columns.rare", fix="use 1")


class ImageSettings(Spec):
    """How images become pixels, and how they vary while training. `size` None takes the images' own."""

    size: int | None = None
    channels: Literal[1, 3] | None = None
    crop: float = 0.125  # share of the size by which a training image is shifted at most
    flip: bool = True
    randaugment: int = 2  # operations drawn for each training image; 0 turns it off
    magnitude: int = 9  # of 30
    erase: float = 0.0  # probability that a rectangle is blanked

    def check(self) -> None:
        if self.size is not None and not 4 <= self.size <= 4096:
            raise UserError(f"size {self.size} is outside 4 to 4096", where="data.images.size", fix="use 32 or 224")
        if not 0 <= self.crop < 0.5:
            raise UserError(f"crop {self.crop} is not a share below 0.5", where="data.images.crop", fix="use 0.125")
        check_range("data.images", "erase", self.erase, 0, 1, fix="use 0.25")
        check_range("data.images", "randaugment", self.randaugment, 0, 8, fix="use 2")
        check_range("data.images", "magnitude", self.magnitude, 0, 30, fix="use 9")


class AudioSettings(Spec):
    """How recordings become clips, and how they vary while training. `sample_rate` None takes that of most recordings.

    A clip longer than `seconds` is cut; None takes the longest, unless few are that long, and 10.24 at most. `shift` is
    the share of a clip by which it comes earlier or later, `gain` how many decibels louder or softer it gets at most.
    """

    sample_rate: int | None = None
    seconds: float | None = None
    shift: float = 0.1
    gain: float = 6.0

    def check(self) -> None:
        if self.sample_rate is not None and not 100 <= self.sample_rate <= 400_000:
            raise UserError(
                f"sample_rate {self.sample_rate} is outside 100 to 400000",
                where="data.audio.sample_rate",
                fix="use 16000",
            )
        if self.seconds is not None and not 0.01 <= self.seconds <= 600:
            raise UserError(f"{self.seconds} seconds are no clip", where="data.audio.seconds", fix="use 1 to 10")
        if not 0 <= self.shift < 1:
            raise UserError(f"shift {self.shift} is not a share below 1", where="data.audio.shift", fix="use 0.1")
        check_range("data.audio", "gain", self.gain, 0, 60, fix="use 6")


class SeriesSettings(Spec):
    """How a time series is cut: steps to look back on, and steps to foresee; None takes what the rows allow."""

    look_back: int | None = None
    horizon: int | None = None

    def check(self) -> None:
        for name, least in (("look_back", 2), ("horizon", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} {value} is below {least}", where=f"data.series.{name}", fix="use 96")


class Format(Spec):
    """How files are read, where looking at them is not enough."""

    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None


class Data(Spec):
    """Everything about the data but the files themselves. `types` are words like "year=number"."""

    target: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None  # the columns to learn from; None: all that help
    types: tuple[str, ...] | None = None
    bad: Literal["skip", "error"] = "skip"  # what a row that cannot be used does
    split: Split = field(default_factory=Split)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    columns: Columns = field(default_factory=Columns)
    images: ImageSettings = field(default_factory=ImageSettings)
    audio: AudioSettings = field(default_factory=AudioSettings)
    series: SeriesSettings = field(default_factory=SeriesSettings)
    format: Format = field(default_factory=Format)

    def check(self) -> None:
        self.kinds()

    def kinds(self) -> dict[str, str]:
        """Column name to kind, as asked for by `types`."""
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
                    f"{kind!r} is no kind of column", where=f"data.types {name}", fix=did_you_mean(kind, known)
                )
            asked[name] = kind
        return asked
