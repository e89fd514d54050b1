"""What is predicted: labels, numbers, tags or text, as found in the training rows, and rows into arrays by them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from anyformer.data.columns.cells import LARGEST, bounded, coded, in_order, is_list, worded
from anyformer.data.columns.convert import numbers
from anyformer.data.frame import Frame
from anyformer.errors import UserError
from anyformer.objectives.objective import IGNORED
from anyformer.spec import Spec

if TYPE_CHECKING:
    import pyarrow as pa

ON, OFF = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")
ABSENT, UNSEEN, NOT_NUMBER = "the target is missing", "the label is not in the training rows", "the target is no number"


@dataclass
class Encoded:
    """Targets of rows, and by reason which rows have none that can be used."""

    values: np.ndarray
    unusable: dict[str, np.ndarray] = field(default_factory=dict)  # reason to mask (N,)
    unseen: dict[str, int] = field(default_factory=dict)  # label not seen in training to the first row that has it
    lengths: np.ndarray | None = None  # words of each sentence, where there is a value for each word


class Target(Spec, slot=True):
    """What a model answers with."""

    names: tuple[str, ...]  # the columns

    def encode(self, frame: Frame) -> Encoded:
        """The targets of a frame's rows."""
        raise NotImplementedError


class Classes(Target):
    """One label a row (`one`), or several at once: spelled `a;b` in one column (`list`), or 0 and 1 in `columns`."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]  # training rows with each label
    form: Literal["one", "list", "columns"] = "one"

    def check(self) -> None:
        if len(self.labels) != len(self.counts) or len(set(self.labels)) != len(self.labels):
            raise UserError("labels and counts do not fit", where="Classes", fix="train again")

    @property
    def multi(self) -> bool:
        """Whether a row may have several labels."""
        return self.form != "one"

    @classmethod
    def fit(
        cls, frame: Frame, names: tuple[str, ...], form: Literal["one", "list", "columns"], given: list[str] | None
    ) -> Classes:
        """The labels of the training rows; those of a model to start from keep their order where they hold them all."""
        if form == "columns":
            found = {name: int(np.nansum(switches(frame.column(name)))) for name in names}
            return cls(names=names, labels=names, counts=tuple(found.values()), form=form)
        if form == "list":
            codes, words = coded(flat(frame.column(names[0]))[0])
        else:
            codes, words = coded(frame.column(names[0]))
        counts = dict(zip(words, np.bincount(codes[codes >= 0], minlength=len(words)).tolist(), strict=True))
        labels = tuple(given) if given is not None and set(counts) <= set(given) else in_order(counts)
        return cls(names=names, labels=labels, counts=tuple(counts.get(label, 0) for label in labels), form=form)

    def encode(self, frame: Frame) -> Encoded:
        """Class numbers (N,) int64, or 0 and 1 for each label (N, C) float32."""
        if self.form == "columns":
            values = np.stack([switches(frame.column(name)) for name in self.names], 1)
            lost = np.isnan(values).any(1)
            return Encoded(values.astype(np.float32), {ABSENT: lost})
        ids = {label: number for number, label in enumerate(self.labels)}
        if self.form == "one":
            codes, words = coded(frame.column(self.names[0]))
            table = np.array([*(ids.get(word, -2) for word in words), -1], dtype=np.int64)
            found = table[codes]
            unseen = firsts(found == -2, codes, words)
            return Encoded(np.where(found < 0, IGNORED, found), {ABSENT: found == -1, UNSEEN: found == -2}, unseen)
        cells, owners, lost = flat(frame.column(self.names[0]))
        codes, words = coded(cells)
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


def flat(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray, np.ndarray]:
    """The labels of all rows (`a;b`, or lists) one after the other, the row of each, and which rows have no list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_list(column.type):
        lists = column.cast(pa.list_(pa.string())).combine_chunks()
    else:
        lists = pc.split_pattern(worded(column).combine_chunks(), ";")
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], pa.list_(pa.string()))
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    cells = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    there = pc.fill_null(pc.not_equal(cells, ""), False).to_numpy(zero_copy_only=False)
    lost = lists.is_null().to_numpy(zero_copy_only=False)
    return pa.chunked_array([cells.filter(pa.array(there))]), owners[there], lost


def switches(column: pa.ChunkedArray) -> np.ndarray:
    """A column of 0 and 1 (or true and false, yes and no) as numbers, nan where it is neither."""
    codes, words = coded(column)
    spelled = [1.0 if word.lower() in ON else 0.0 if word.lower() in OFF else np.nan for word in words]
    return np.array([*spelled, np.nan])[codes]


class Values(Target):
    """Numbers, scaled by their mean and deviation in training while the model learns; `undo` gives them back."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def fit(cls, frame: Frame, names: tuple[str, ...], *, scale: str) -> Values:
        """Mean and deviation of the training rows."""
        means, deviations = [], []
        for name in names:
            values = bounded(numbers(frame.column(name)))
            values = values[~np.isnan(values)]
            fitted = scale == "standard" and len(values) > 0
            mean, deviation = (float(values.mean()), float(values.std())) if fitted else (0.0, 1.0)
            means.append(mean)
            deviations.append(deviation if deviation > abs(mean) * 1e-14 else 1.0)
        return cls(names=names, mean=tuple(means), deviation=tuple(deviations))

    def encode(self, frame: Frame) -> Encoded:
        """Scaled numbers (N,) or (N, K) in float32, nan where there is none; a row needs one of them."""
        raw = bounded(np.stack([numbers(frame.column(name)) for name in self.names], 1))
        scaled = (raw - np.asarray(self.mean)) / np.asarray(self.deviation)
        scaled = np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
        said = np.zeros(len(frame), bool)
        for name in self.names:
            said |= ~worded(frame.column(name)).is_null().to_numpy()
        lost = np.isnan(raw).all(1)
        return Encoded(
            scaled[:, 0] if len(self.names) == 1 else scaled, {ABSENT: lost & ~said, NOT_NUMBER: lost & said}
        )

    def undo(self, scaled: np.ndarray) -> np.ndarray:
        """Numbers in the units of the file."""
        mean, deviation = (np.asarray(v if len(self.names) > 1 else v[0]) for v in (self.mean, self.deviation))
        return np.asarray(scaled, dtype=np.float64) * deviation + mean


class Tags(Target):
    """One tag for each word of a sentence."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]  # training words with each tag

    @classmethod
    def fit(cls, frame: Frame, names: tuple[str, ...], given: list[str] | None) -> Tags:
        """The tags of the training sentences."""
        codes, words = coded(listed(frame.column(names[0]))[0])
        counts = dict(zip(words, np.bincount(codes[codes >= 0], minlength=len(words)).tolist(), strict=True))
        labels = tuple(given) if given is not None and set(counts) <= set(given) else in_order(counts)
        return cls(names=names, labels=labels, counts=tuple(counts.get(label, 0) for label in labels))

    def encode(self, frame: Frame) -> Encoded:
        """Tag numbers of all words one after the other, int64; `unusable` is by sentence."""
        cells, owners, lost = listed(frame.column(self.names[0]))
        codes, words = coded(cells)
        ids = {label: number for number, label in enumerate(self.labels)}
        table = np.array([*(ids.get(word, -2) for word in words), -1], dtype=np.int64)
        found = table[codes]
        strange = np.zeros(len(frame), bool)
        strange[owners[found == -2]] = True
        unseen = {word: int(owners[row]) for word, row in firsts(found == -2, codes, words).items()}
        unusable = {ABSENT: lost, UNSEEN: strange & ~lost}
        lengths = np.bincount(owners, minlength=len(frame))
        return Encoded(np.where(found < 0, IGNORED, found), unusable, unseen, lengths)


def listed(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray, np.ndarray]:
    """The items of a column of lists one after the other, the row of each, and which rows have no list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = column.cast(pa.list_(pa.string())).chunks
    lists = pa.concat_arrays(chunks) if chunks else pa.array([], pa.list_(pa.string()))
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.chunked_array([pc.list_flatten(lists)]), owners, lists.is_null().to_numpy(zero_copy_only=False)


class Answer(Target):
    """Text that the model writes."""

    def encode(self, frame: Frame) -> Encoded:
        """Nothing but which rows have no text; the tokens are made with the inputs."""
        lost = worded(frame.column(self.names[0])).is_null().to_numpy()
        return Encoded(np.zeros(len(frame), np.int64), {ABSENT: lost})
