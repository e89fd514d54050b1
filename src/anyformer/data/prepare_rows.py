"""From gathered rows to sealed arrays: decide, leave out, split, fit on training rows, encode; everything is logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from anyformer.amounts import megabytes
from anyformer.data.columns.base import Decoded, FileColumn, empty
from anyformer.data.columns.cells import texts
from anyformer.data.columns.modality import Encoding
from anyformer.data.columns.parsed import Parsed
from anyformer.data.counts import ColumnCounts
from anyformer.data.datasets.arrays import Arrays, MemoryArrays
from anyformer.data.datasets.encode_texts import encode_pairs, require_tokenizer
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, lines
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.mixing import mixing_rates
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.preprocess import Preprocess, fit_preprocess, fitting, sizes
from anyformer.data.report import log_counts, log_rows, log_split, log_target, log_wrong
from anyformer.data.settings import Data
from anyformer.data.splits import SIDES, TEST, TRAIN, Sides, split
from anyformer.data.store import facts_for, fingerprint, pad_of, read_prepared, seal
from anyformer.data.targets import UNSEEN, Classes, Encoded, TaskAnswer, Values
from anyformer.data.tokenizers.fit import tokenizer_for
from anyformer.data.tokenizers.parallel_encode import has_segments
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log


def prepare_rows(gathered: Gathered, decision: Decision, request: DataRequest, notes: list[str], log: Log) -> Prepared:
    """Prepare rows after the decision for training; `log` also appends each line to `notes`."""
    settings, seed, given = request.settings, request.seed, request.given
    for line in lines(decision, gathered.frame):
        log(line)
    work = RowPreparation(gathered, decision, settings, Arrays.new(request.cache))
    decoded = work.decode(given, log)
    same = None if decoded is None else decoded.same[work.kept]
    sides = split(work.frame, decision, settings.split, seed, fixed=work.fixed, same=same, parsed=work.parsed)
    preprocess = given_preprocess(given, decision) or fit_preprocess(
        work.frame, decision, sides.rows(TRAIN), settings, seed=seed, labels=given.labels, parsed=work.parsed
    )
    for column in preprocess.columns or ():
        preprocess = preprocess.with_column(column.started_from(given))
    sides, targets, unseen = work.known_labels(sides, preprocess)
    frame, arrays, train = work.frame, work.arrays, sides.rows(TRAIN)
    if decoded is not None:
        preprocess = preprocess.with_column(decoded.column.settle(decoded, arrays, work.kept, train))
    tokenizer, about = None, ""
    if preprocess.texts or preprocess.writes_text:
        tokenizer, about = tokenizer_for(frame, preprocess, train, settings.tokenizer, given, seed=seed)
        preprocess = settle_text(preprocess, tokenizer, settings, given)
    preprocess, counts = encode(frame, preprocess, tokenizer, arrays, train=train, parsed=work.parsed)
    if targets is not None and preprocess.target is not None:
        preprocess.target.put(arrays, targets)
    arrays.put("side", sides.side)
    for modality in preprocess.modalities:
        alone = len(preprocess.modalities) == 1 and not preprocess.writes_text
        settings = modality.settle_augmentation(arrays, train, settings, log, alone=alone)

    log_target(preprocess, decision, len(train), log)
    log_split(sides, preprocess, settings.split, log)
    if isinstance(preprocess.target, TaskAnswer):
        tasks = texts(frame.take(train).column(preprocess.target.task))
        rates = mixing_rates(tasks, settings.mixture)
        log("tasks    " + ", ".join(f"{name} {rate:.0%} ({tasks.count(name):,} rows)" for name, rate in rates.items()))
    if about:
        log(f"tokens   {about}; rows of at most {preprocess.length} tokens")
    for modality in preprocess.modalities:
        if said := modality.describe(preprocess):
            log(f"{modality.name:<8} {said}")
    log_counts(counts, preprocess, unseen, log)
    if targets is not None and UNSEEN in targets.unusable and (strange := int(targets.unusable[UNSEEN].sum())):
        log_wrong(strange, list(targets.unseen), log)
    log_rows(work.total, len(frame), work.skipped, work.places, log)
    facts = {
        **decision.plain(), "rows": work.total, "used": len(frame), "skipped": work.skipped,
        "skipped_first": work.places, "seed": seed, **counts.plain(), "duplicates": sides.duplicates,
        "split": {name: int((sides.side == number).sum()) for number, name in enumerate(SIDES)},
        "sources": [vars(source) | {"notes": list(source.notes)} for source in frame.sources],
        "tokenizer": {"about": about, "size": tokenizer.size, "sha256": tokenizer.sha256} if tokenizer else None,
        "labels": label_counts(preprocess), "sizes": sizes(preprocess, tokenizer),
        "fingerprint": fingerprint(arrays, preprocess, tokenizer),
    }  # fmt: skip
    seal(arrays, frame, preprocess, tokenizer, decoded.steps if decoded else None, facts, notes, settings)
    log(f"disk     {megabytes(arrays.bytes)}")
    made = read_prepared(arrays)
    assert made is not None
    made.notes, made.settings = notes, settings
    return made


class RowPreparation:
    """Rows during preparation: those left out are counted by reason, with the location of the first."""

    def __init__(self, gathered: Gathered, decision: Decision, settings: Data, arrays: Arrays) -> None:
        self.decision, self.settings, self.arrays = decision, settings, arrays
        frame, self.fixed = gathered.frame, gathered.fixed
        self.total = len(frame) + sum(frame.skipped.values())
        rows, skipped, self.places = usable(frame, decision, bad=settings.bad)
        self.skipped = dict(frame.skipped) | skipped
        self.places |= {reason: found[0] for reason, found in frame.skipped_at.items() if found}
        self.frame = frame
        self.parsed = Parsed(frame, arrays.folder / "read")
        self.kept = np.arange(len(frame))
        self.keep(rows)
        self.kept = np.arange(len(rows))  # counted from here on: the files of these rows are decoded

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these rows."""
        if len(rows) < len(self.frame):
            self.frame = self.frame.take(rows)
            self.fixed = None if self.fixed is None else self.fixed[rows]
            self.kept = self.kept[rows]
            self.parsed = Parsed(self.frame, self.parsed.folder)

    def decode(self, given: StartModelConstraints, log: Log) -> Decoded | None:
        """Decode the files that a column names, if any; rows whose file is unreadable are left out."""
        inputs = self.decision.inputs
        files = [(column.name, kind) for column in inputs if issubclass(kind := column.column, FileColumn)]
        if not files:
            return None
        if len(files) > 1:
            nouns = " or ".join(dict.fromkeys(kind.plural for _, kind in files))
            names = [name for name, _ in files]
            raise UserError(
                f"{len(names)} columns of {nouns} ({', '.join(names[:4])})", where="columns",
                fix=f"keep one: --types {names[1]}=skip",
            )  # fmt: skip
        ((name, kind),) = files
        found = kind.decode(
            self.frame, name, self.settings, self.arrays, given=given, log=lambda line: log(f"{kind.kind:<9}{line}")
        )
        # With further inputs, a row without its file is still usable.
        lost = found.broken if len(inputs) > 1 else ~found.there
        if lost.any():
            self.skipped[kind.unreadable] = int(lost.sum())
            self.places[kind.unreadable] = found.first or self.frame.place(int(np.flatnonzero(lost)[0]))
            self.keep(np.flatnonzero(~lost))
        return found

    def known_labels(self, sides: Sides, preprocess: Preprocess) -> tuple[Sides, Encoded | None, list[str]]:
        """Leave out rows whose label is not in training, or reject them; returns those labels. Test rows stay if they
        can count as errors: without them a model that lacks classes would look better than it is."""
        targets = encode_target(self.frame, preprocess)
        if targets is None or UNSEEN not in targets.unusable or not targets.unusable[UNSEEN].any():
            return sides, targets, []
        strange = targets.unusable[UNSEEN]
        label, row = min(targets.unseen.items(), key=lambda item: item[1])
        if self.settings.bad == "error":
            raise row_error(self.frame, row, f"the label {label[:40]!r} is in no training row")
        lost = [name for number, name in enumerate(SIDES) if (of := sides.side == number).any() and strange[of].all()]
        if lost:
            raise UserError(
                f"the label {label[:40]!r} is in no training row, nor is any other label of {lost[0]}",
                where=self.frame.place(row), fix=did_you_mean(label, preprocess.labels or ()),
            )  # fmt: skip
        if preprocess.target is not None and preprocess.target.scores_unseen:
            strange = strange & (sides.side != TEST)
        if not strange.any():
            return sides, targets, []
        left = encode_target(self.frame.take(np.flatnonzero(strange)), preprocess)
        self.skipped[UNSEEN] = int(strange.sum())
        self.places[UNSEEN] = self.frame.place(int(np.flatnonzero(strange)[0]))
        rows = np.flatnonzero(~strange)
        self.keep(rows)
        smaller = replace(sides, side=sides.side[rows])
        return smaller, encode_target(self.frame, preprocess), list(left.unseen if left is not None else ())


def given_preprocess(given: StartModelConstraints, decision: Decision) -> Preprocess | None:
    """The preprocessing of a teacher, if it reads the columns of these rows; None without a teacher."""
    found = given.preprocess
    if found is None:
        return None
    here = {column.name: column.kind for column in decision.inputs}
    there = {column.name: column.kind for column in found.columns or ()}
    names = () if found.target is None else found.target.names
    if here != there or tuple(decision.target) != tuple(names):
        wrong = next((name for name in here | there if here.get(name) != there.get(name)), ", ".join(names))
        raise UserError(f"the teacher was trained on other columns: {wrong}", where="--teacher",
                        fix=f"it reads {', '.join(f'{name} ({kind})' for name, kind in there.items())} and answers "
                            f"{', '.join(names)}")  # fmt: skip
    return found


def settle_text(
    preprocess: Preprocess, tokenizer: Tokenizer, settings: Data, given: StartModelConstraints
) -> Preprocess:
    """The preprocessing with the text settings of the tokenizer and the pretrained model."""
    limits = [limit for limit in (settings.tokenizer.max_length, given.length) if limit is not None]
    if not limits and given.tokenizer is not None and tokenizer.max_length is not None:
        limits = [min(tokenizer.max_length, 512)]
    start = given.start_for(tokenizer) if preprocess.writes_text else None
    one_answer = isinstance(preprocess.target, Classes | Values)  # a target of both texts, which a network may compare
    asked = given.segments if one_answer else None
    segments = preprocess.pair and (has_segments(tokenizer) if asked is None else asked)
    return preprocess.replace(length=min(limits) if limits else None, segments=segments, start=start)


def label_counts(preprocess: Preprocess) -> dict[str, int] | None:
    """The number of training rows (or words) with each label."""
    target = preprocess.target
    if target is None or (names := target.label_names()) is None:
        return None
    return dict(zip(names, target.label_counts() or (), strict=True))


# ---------------------------------------------------------------- new rows


def examples_for(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    cache: Path | None,
    *,
    images: ImageSteps | None = None,
) -> tuple[RowExamples, ColumnCounts]:
    """All new rows as examples, in order; missing or unknown targets are ignored.

    The arrays are in the folder `cache`, or in memory if it is None.
    """
    needed, _ = fitting(frame, preprocess)
    arrays = MemoryArrays() if cache is None else Arrays.new(cache)
    preprocess, counts = encode(needed, preprocess, tokenizer, arrays, train=None, images=images)
    targets = encode_target(needed, preprocess)
    if targets is not None and preprocess.target is not None:
        preprocess.target.put(arrays, targets)
    rows = np.arange(len(frame))
    facts = facts_for(preprocess, tokenizer)
    return RowExamples(arrays, frame, preprocess, rows, pad=pad_of(tokenizer), images=images, facts=facts), counts


def encode(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    arrays: Arrays,
    *,
    train: np.ndarray | None,
    parsed: Parsed | None = None,
    images: ImageSteps | None = None,
) -> tuple[Preprocess, ColumnCounts]:
    """Encode the inputs of every row; `train` are the rows that the text length is fitted on, None for new rows.

    Returns the preprocessing with the length, and counts of truncated, unknown and missing cells.
    """
    counts = ColumnCounts(len(frame))
    work = Encoding(frame, arrays, counts, parsed or Parsed(frame), tokenizer, images, train)
    for modality in reversed(preprocess.modalities):  # text last: reports name the columns of a table first
        preprocess = modality.encode(work, preprocess)
    if preprocess.writes_text:
        preprocess = encode_pairs(frame, preprocess, require_tokenizer(tokenizer), arrays, counts, train)
    return preprocess, counts


def encode_target(frame: Frame, preprocess: Preprocess) -> Encoded | None:
    """The targets of the rows, None if the frame lacks any of their columns."""
    target = preprocess.target
    if target is None or not set(target.names) <= set(frame.names):
        return None
    return target.encode(frame)


EMPTY, NO_TEXT = "every input is missing", "the text is empty"


def usable(frame: Frame, decision: Decision, *, bad: str) -> tuple[np.ndarray, dict[str, int], dict[str, str]]:
    """The usable rows, the numbers of others by reason, and the first of each; `bad` "error" rejects it."""
    kept = np.ones(len(frame), bool)
    skipped: dict[str, int] = {}
    places: dict[str, str] = {}
    for reason, mask in problems(frame, decision):
        found = mask & kept
        if not found.any():
            continue
        if bad == "error":
            raise row_error(frame, int(np.flatnonzero(found)[0]), reason)
        skipped[reason] = int(found.sum())
        places[reason] = frame.place(int(np.flatnonzero(found)[0]))
        kept &= ~mask
    if not kept.any():
        worst = max(skipped, key=lambda reason: skipped[reason])
        raise UserError(
            f"no row can be used: {worst} in {skipped[worst]:,} of {len(frame):,} rows", where=frame.place(0),
            fix="repair the file, or name another --target",
        )  # fmt: skip
    return np.flatnonzero(kept), skipped, places


def row_error(frame: Frame, row: int, reason: str) -> UserError:
    """The error for an unusable row."""
    return UserError(reason, where=frame.place(row), fix="repair the row, or leave such rows out with data.bad=skip")


def problems(frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
    """Reasons for which rows are unusable, each with a mask over the rows."""
    found = decision.task.target_problems(frame, decision)
    names = [column.name for column in decision.inputs]
    texts = all(column.column.is_text for column in decision.inputs)
    lost = np.ones(len(frame), bool)
    for name in names:
        lost &= empty(frame, name)
        if not lost.any():
            break
    return [*found, (NO_TEXT if texts else EMPTY, lost)]
