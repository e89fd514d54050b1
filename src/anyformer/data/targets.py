"""Targets: labels, numbers, tags or text, as fitted to the training rows, and their encoding into arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from anyformer.data.columns.cells import LARGEST, as_words, clip_numbers, factorize, is_list, sort_names
from anyformer.data.columns.written import numbers_written
from anyformer.data.counts import UNKNOWN
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.panel import Panel
from anyformer.data.tag_schemes import are_spans, is_strict
from anyformer.errors import UserError
from anyformer.objectives.objective import IGNORED
from anyformer.spec import Spec

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 8  # labels listed in a message
ON, OFF = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")
ABSENT, UNSEEN = "the target is missing", "the label is not in the training rows"
NOT_NUMBER = "the target is not a number"


@dataclass
class Encoded:
    """Encoded targets, and the rows without a usable one, by reason."""

    values: np.ndarray
    unusable: dict[str, np.ndarray] = field(default_factory=dict)  # reason to mask (N,)
    unseen: dict[str, int] = field(default_factory=dict)  # label unseen in training to its first row
    lengths: np.ndarray | None = None  # words of each sentence, if there is a value per word


class Target(Spec, slot=True):
    """What a model answers with, as it was fitted on the training rows; saved in preprocess.json."""

    part: ClassVar[str] = ""  # what a row consists of, where it is not its columns: "series"
    writes_text: ClassVar[bool] = False  # whether the answer is text, read by the tokenizer
    names: tuple[str, ...]  # the columns

    def encode(self, frame: Frame) -> Encoded:
        """The targets of a frame's rows."""
        raise NotImplementedError

    def put(self, arrays: Arrays, encoded: Encoded) -> None:
        """Save the targets of all rows, in the form that batches take."""
        arrays.put("targets", encoded.values)

    def absent(self, rows: int) -> np.ndarray:
        """Placeholder targets of new rows, in the shape of the model's predictions."""
        return np.full((rows,), IGNORED)

    def label_names(self) -> tuple[str, ...] | None:
        """The names of the classes or tags, None if there are none."""
        return None

    def label_counts(self) -> tuple[int, ...] | None:
        """Training rows (or words, or objects) of each label."""
        return None

    def sizes(self) -> dict[str, Any]:
        """The data sizes that a network must be built for: classes, outputs."""
        return {}

    def describe(self, rows: int) -> str:
        """A description of the target; `rows` is the number of training rows."""
        return type(self).__name__.lower()

    def warnings(self) -> list[str]:
        """Notes on the training rows."""
        return []

    @property
    def scores_unseen(self) -> bool:
        """Whether a test row may have a label unknown to training, and counts as an error."""
        return False


class Labelled(Target):
    """A target of named classes, tags or objects."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]  # training rows, words or objects with each label

    def check(self) -> None:
        if len(self.labels) != len(self.counts) or len(set(self.labels)) != len(self.labels):
            raise UserError("labels and counts do not fit", where=type(self).__name__, fix="train again")

    def label_names(self) -> tuple[str, ...]:
        return self.labels

    def label_counts(self) -> tuple[int, ...]:
        return self.counts

    def sizes(self) -> dict[str, Any]:
        return {"classes": len(self.labels), "multi": False}

    def ranked(self) -> list[tuple[str, int]]:
        """Labels with their counts, the most frequent first."""
        return sorted(zip(self.labels, self.counts, strict=True), key=lambda pair: -pair[1])

    def describe_labels(self, what: str, total: int) -> str:
        """The number of labels, and the frequency of the most frequent ones."""
        found = self.ranked()
        shown = ", ".join(f"{label} {count / max(1, total):.1%}" for label, count in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{len(found)} {what}: {shown}{more}"


class Classes(Labelled):
    """One label a row (`one`), or several at once: spelled `a;b` in one column (`list`), or 0 and 1 in `columns`."""

    form: Literal["one", "list", "columns"] = "one"
    separator: str = ";"  # of the labels of a cell, where form is "list"

    def sizes(self) -> dict[str, Any]:
        return {"classes": len(self.labels), "multi": self.multi}

    def absent(self, rows: int) -> np.ndarray:
        return np.zeros((rows, len(self.labels)), np.float32) if self.multi else super().absent(rows)

    def describe(self, rows: int) -> str:
        if self.multi:
            return self.describe_labels("labels that may come together", rows)
        return self.describe_labels("classes", sum(self.counts))

    def warnings(self) -> list[str]:
        (most, many), (least, few) = self.ranked()[0], self.ranked()[-1]
        if self.multi or few * 10 >= many:
            return []
        uneven = f"{most} has {many:,} training rows, {least} {few:,}"
        return [f"the classes are uneven: {uneven}; class weights are one setting"]

    @property
    def multi(self) -> bool:
        """Whether a row may have several labels."""
        return self.form != "one"

    @property
    def scores_unseen(self) -> bool:
        return not self.multi

    @classmethod
    def fit(
        cls, frame: Frame, names: tuple[str, ...], form: Literal["one", "list", "columns"],
        given: Sequence[str] | None, *, separator: str = ";",
    ) -> Classes:  # fmt: skip
        """The labels of the training rows; those of a pretrained model keep their order if they include them all."""
        if form == "columns":
            found = {name: int(np.nansum(switches(frame.column(name)))) for name in names}
            return cls(names=names, labels=names, counts=tuple(found.values()), form=form)
        if form == "list":
            codes, words = factorize(flat(frame.column(names[0]), separator)[0])
        else:
            codes, words = factorize(frame.column(names[0]))
        counts = dict(zip(words, np.bincount(codes[codes >= 0], minlength=len(words)).tolist(), strict=True))
        labels = tuple(given) if given is not None and set(counts) <= set(given) else sort_names(counts)
        counted = tuple(counts.get(label, 0) for label in labels)
        return cls(names=names, labels=labels, counts=counted, form=form, separator=separator)

    def encode(self, frame: Frame) -> Encoded:
        """Class ids (N,) int64, or 0 and 1 for each label (N, C) float32."""
        if self.form == "columns":
            values = np.stack([switches(frame.column(name)) for name in self.names], 1)
            lost = np.isnan(values).any(1)
            return Encoded(values.astype(np.float32), {ABSENT: lost})
        ids = {label: number for number, label in enumerate(self.labels)}
        if self.form == "one":
            codes, words = factorize(frame.column(self.names[0]))
            table = np.array([*(ids.get(word, -2) for word in words), -1], dtype=np.int64)
            found = table[codes]
            unseen = firsts(found == -2, codes, words)
            values = np.where(found == -2, UNKNOWN, np.where(found < 0, IGNORED, found))
            return Encoded(values, {ABSENT: found == -1, UNSEEN: found == -2}, unseen)
        cells, owners, lost = flat(frame.column(self.names[0]), self.separator)
        codes, words = factorize(cells)
        table = np.array([*(ids.get(word, -2) for word in words), -1], dtype=np.int64)
        found = table[codes]
        values = np.zeros((len(frame), len(self.labels)), np.float32)
        values[owners[found >= 0], found[found >= 0]] = 1.0
        strange = np.zeros(len(frame), bool)
        strange[owners[found == -2]] = True
        unseen = {word: int(owners[row]) for word, row in firsts(found == -2, codes, words).items()}
        values[lost | strange] = np.nan
        return Encoded(values, {ABSENT: lost, UNSEEN: strange & ~lost}, unseen)


def firsts(mask: np.ndarray, codes: np.ndarray, words: list[str]) -> dict[str, int]:
    """Each word under the mask with the first row that has it."""
    rows = np.flatnonzero(mask)
    seen, at = np.unique(codes[rows], return_index=True)
    return {words[code]: int(rows[i]) for code, i in zip(seen.tolist(), at.tolist(), strict=True)}


def flat(column: pa.ChunkedArray, separator: str = ";") -> tuple[pa.ChunkedArray, np.ndarray, np.ndarray]:
    """The labels of all rows (`a;b`, or lists) concatenated, the row of each, and which rows have no list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_list(column.type):
        lists = column.cast(pa.list_(pa.string())).combine_chunks()
    else:
        lists = pc.split_pattern(as_words(column).combine_chunks(), separator)
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], pa.list_(pa.string()))
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    cells = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    there = pc.fill_null(pc.not_equal(cells, ""), False).to_numpy(zero_copy_only=False)
    lost = lists.is_null().to_numpy(zero_copy_only=False)
    return pa.chunked_array([cells.filter(pa.array(there))]), owners[there], lost


def switches(column: pa.ChunkedArray) -> np.ndarray:
    """A binary column (0 and 1, true and false, yes and no) as numbers, nan for other values."""
    codes, words = factorize(column)
    spelled = [1.0 if word.lower() in ON else 0.0 if word.lower() in OFF else np.nan for word in words]
    return np.array([*spelled, np.nan])[codes]


def read_numbers(frame: Frame, names: Sequence[str], forms: Sequence[str]) -> list[np.ndarray]:
    """The cells of some columns as numbers (N,), each in its format; no formats means plain numbers."""
    return [
        numbers_written(frame.column(name), form) for name, form in zip(names, forms or [""] * len(names), strict=True)
    ]


class Values(Target):
    """Numbers, scaled by their mean and deviation in training while the model learns; `undo` gives them back."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    forms: tuple[str, ...] | None = None  # how each is written: 1.234,5 €; None: as programs write numbers

    @classmethod
    def fit(cls, frame: Frame, names: tuple[str, ...], *, scale: str, forms: tuple[str, ...] = ()) -> Values:
        """Fit mean and standard deviation to the training rows; `forms` are number formats, if not the usual ones."""
        means, deviations = [], []
        for read in read_numbers(frame, names, forms):
            values = clip_numbers(read)
            values = values[~np.isnan(values)]
            fitted = scale == "standard" and len(values) > 0
            mean, deviation = (float(values.mean()), float(values.std())) if fitted else (0.0, 1.0)
            means.append(mean)
            deviations.append(deviation if deviation > abs(mean) * 1e-14 else 1.0)
        return cls(names=names, mean=tuple(means), deviation=tuple(deviations), forms=forms if any(forms) else None)

    def encode(self, frame: Frame) -> Encoded:
        """Scaled numbers (N,) or (N, K) in float32, nan if missing; a row needs at least one."""
        raw = clip_numbers(np.stack(read_numbers(frame, self.names, self.forms or ()), 1))
        scaled = (raw - np.asarray(self.mean)) / np.asarray(self.deviation)
        scaled = np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
        said = np.zeros(len(frame), bool)
        for name in self.names:
            said |= ~as_words(frame.column(name)).is_null().to_numpy()
        lost = np.isnan(raw).all(1)
        return Encoded(
            scaled[:, 0] if len(self.names) == 1 else scaled, {ABSENT: lost & ~said, NOT_NUMBER: lost & said}
        )

    def absent(self, rows: int) -> np.ndarray:
        return np.full((rows, len(self.names)) if len(self.names) > 1 else (rows,), np.nan, np.float32)

    def sizes(self) -> dict[str, Any]:
        return {"outputs": len(self.names)}

    def describe(self, rows: int) -> str:
        pairs = list(zip(self.mean, self.deviation, strict=True))[:6]
        spread = "; ".join(f"mean {mean:.6g}, deviation {deviation:.6g}" for mean, deviation in pairs)
        return f"{len(self.names)} number{'s' * (len(self.names) > 1)}, {spread} in training"

    def undo(self, scaled: np.ndarray) -> np.ndarray:
        """Numbers in the units of the file."""
        mean, deviation = (np.asarray(v if len(self.names) > 1 else v[0]) for v in (self.mean, self.deviation))
        return np.asarray(scaled, dtype=np.float64) * deviation + mean


class Tags(Labelled):
    """One tag for each word of a sentence."""

    strict: bool = False  # tags mark spans, and I-x stands behind B-x or I-x only

    @classmethod
    def fit(cls, frame: Frame, names: tuple[str, ...], given: Sequence[str] | None) -> Tags:
        """Fit the tags to the training sentences."""
        cells, owners, _ = flatten_lists(frame.column(names[0]))
        codes, words = factorize(cells)
        counts = dict(zip(words, np.bincount(codes[codes >= 0], minlength=len(words)).tolist(), strict=True))
        labels = tuple(given) if given is not None and set(counts) <= set(given) else sort_names(counts)
        strict = is_strict(words, codes[codes >= 0], owners[codes >= 0])
        return cls(names=names, labels=labels, counts=tuple(counts.get(label, 0) for label in labels), strict=strict)

    def sizes(self) -> dict[str, Any]:
        return super().sizes() | {"spans": are_spans(self.labels)}

    def encode(self, frame: Frame) -> Encoded:
        """Tag ids of all words concatenated, int64; `unusable` is by sentence."""
        cells, owners, lost = flatten_lists(frame.column(self.names[0]))
        codes, words = factorize(cells)
        ids = {label: number for number, label in enumerate(self.labels)}
        table = np.array([*(ids.get(word, -2) for word in words), -1], dtype=np.int64)
        found = table[codes]
        strange = np.zeros(len(frame), bool)
        strange[owners[found == -2]] = True
        unseen = {word: int(owners[row]) for word, row in firsts(found == -2, codes, words).items()}
        unusable = {ABSENT: lost, UNSEEN: strange & ~lost}
        lengths = np.bincount(owners, minlength=len(frame))
        return Encoded(np.where(found < 0, IGNORED, found), unusable, unseen, lengths)

    def put(self, arrays: Arrays, encoded: Encoded) -> None:
        """Save the tags of words that were not truncated."""
        kept = np.diff(arrays["begins_starts"])
        counts = encoded.lengths
        assert counts is not None
        place = np.arange(len(encoded.values)) - np.repeat(np.cumsum(counts) - counts, counts)
        arrays.put("tags", encoded.values[place < np.repeat(kept, counts)].astype(np.int32))

    def describe(self, rows: int) -> str:
        rule = "; they mark spans, I-x behind B-x or I-x only" if self.strict else ""
        return self.describe_labels("tags", sum(self.counts)) + rule


def flatten_lists(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray, np.ndarray]:
    """The items of a list column concatenated, the row of each, and which rows have no list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = column.cast(pa.list_(pa.string())).chunks
    lists = pa.concat_arrays(chunks) if chunks else pa.array([], pa.list_(pa.string()))
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.chunked_array([pc.list_flatten(lists)]), owners, lists.is_null().to_numpy(zero_copy_only=False)


class Answer(Target):
    """Text that the model writes."""

    writes_text = True

    def encode(self, frame: Frame) -> Encoded:
        """Only the mask of rows without text; the tokens are encoded with the inputs."""
        lost = as_words(frame.column(self.names[0])).is_null().to_numpy()
        return Encoded(np.zeros(len(frame), np.int64), {ABSENT: lost})

    def put(self, arrays: Arrays, encoded: Encoded) -> None:
        """Nothing to do: the tokens are already saved."""

    def describe(self, rows: int) -> str:
        return "text to write"


class TaskAnswer(Answer):
    """Text that the model writes, where the column `task` says what is to be done and is put before the input.

    `files` are words like "news=summarize": the tasks of files, where those of the rows came from their names.
    """

    task: str
    files: tuple[str, ...] | None = None

    @property
    def task_of_file(self) -> dict[str, str]:
        """File to task."""
        return dict(word.split("=", 1) for word in self.files or ())

    def describe(self, rows: int) -> str:
        return f"text to write, as {self.task} asks"


class Partner(Answer):
    """Another text that belongs to the one that is read."""

    def describe(self, rows: int) -> str:
        return "the text that belongs to it"


class SelfSupervised(Target):
    """The inputs themselves, a part of which is hidden and asked for; `names` are their columns."""

    def encode(self, frame: Frame) -> Encoded:
        return Encoded(np.zeros(len(frame), np.int64))

    def put(self, arrays: Arrays, encoded: Encoded) -> None:
        """Nothing to do: a batch is its own target."""

    def describe(self, rows: int) -> str:
        return "hidden in part and asked for"


class TwoViews(SelfSupervised):
    """The inputs themselves, which the model sees twice."""

    def describe(self, rows: int) -> str:
        return "two views of it must find one another"


class Future(Values):
    """The next `horizon` steps of each channel; `time` is the column that orders the rows, where there is one."""

    part = "series"
    horizon: int
    time: str | None = None
    clock: tuple[str, ...] | None = None  # columns that say the time together with it: the hour of a day
    panel: Panel | None = None  # where a file holds several series: how their rows become the channels

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns that together give the time."""
        return () if self.time is None else (self.time, *(self.clock or ()))

    def check(self) -> None:
        if self.horizon < 1:
            raise UserError(f"horizon {self.horizon} is below 1", where="Future", fix="train again")

    def sizes(self) -> dict[str, Any]:
        return {"numbers": len(self.names), "outputs": self.horizon}


class Things(Labelled):
    """Objects of an image, each of one class; `most` is how many one training image holds at most."""

    most: int

    def sizes(self) -> dict[str, Any]:
        return super().sizes() | {"objects": self.most}
