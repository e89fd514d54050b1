"""`prepare`: from files or Python data to examples, with every decision said. What `train` and `check` call first."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.arrays import Arrays
from anyformer.data.columns import Image, Sentence, Text
from anyformer.data.decide import Decision, decide, lines
from anyformer.data.encode_rows import Counts, encode, encode_target
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered, gather, origin_of, paths_of
from anyformer.data.images import ImageSteps
from anyformer.data.picture_rows import decode_pictures
from anyformer.data.prepared import Given, Prepared, Say
from anyformer.data.preprocess import Preprocess, fit_preprocess, fitting, sizes
from anyformer.data.rows import RowExamples
from anyformer.data.settings import Data, Pictures
from anyformer.data.splits import SIDES, TRAIN, Sides, split
from anyformer.data.store import fingerprint, opened, pad_of, seal
from anyformer.data.targets import UNSEEN, Encoded, Tags
from anyformer.data.telling import tell_counts, tell_files, tell_rows, tell_split, tell_target
from anyformer.data.tokenizer import Tokenizer
from anyformer.data.tokens import has_segments
from anyformer.data.usable import refused, usable
from anyformer.data.vocabulary import tokenizer_for
from anyformer.errors import UserError, did_you_mean

UNREADABLE = "the image cannot be read"


def prepare(
    source: Any,
    *,
    task: str | None = None,
    settings: Data | None = None,
    seed: int = 0,
    cache: Path,
    given: Given | None = None,
    say: Say = lambda line: None,
) -> Prepared:
    """Files (paths) or Python data, ready to train on; every decision is said, and kept in `notes` and `facts`."""
    settings, given = settings or Data(), given or Given()
    paths = paths_of(source)
    origin = "table" if paths is None else origin_of(paths, task)
    if task == "lm" or (task is None and origin == "text"):
        from anyformer.data.text import prepare_text, prepare_texts

        if paths is not None and origin == "text":
            return prepare_text(paths, settings, seed=seed, cache=cache, given=given, say=say)
        return prepare_texts(texts_of(source, origin, settings, cache), settings, seed=seed, cache=cache, given=given,
                             say=say)  # fmt: skip
    reading = cache / "read"
    try:
        gathered = gather(source, origin, settings, reading)
        return prepare_rows(gathered, task, settings, seed=seed, cache=cache, given=given, say=say)
    finally:
        shutil.rmtree(reading, ignore_errors=True)


def texts_of(source: Any, origin: str, settings: Data, cache: Path) -> list[str]:
    """The texts of a table's one text column, for a language model."""
    from anyformer.data.cells import texts
    from anyformer.data.kinds import look

    frame = gather(source, origin, settings, cache / "read").frame
    asked = settings.inputs or settings.target
    names = (
        list(asked)
        if asked
        else [name for name, facts in look(frame, settings.kinds()).items() if facts.kind == "text"]
    )
    if len(names) != 1 or names[0] not in frame.names:
        raise UserError(
            "which column holds the text is not said",
            where="--task lm",
            fix=f"add --inputs {(names or frame.names)[0]}",
        )
    return texts(frame.column(names[0]))


def prepare_rows(
    gathered: Gathered, task: str | None, settings: Data, *, seed: int, cache: Path, given: Given, say: Say
) -> Prepared:
    """Rows of a frame, ready to train on."""
    notes: list[str] = []

    def tell(line: str) -> None:
        notes.append(line)
        say(line)

    frame, fixed = gathered.frame, gathered.fixed
    chosen = (
        settings.split if gathered.column == settings.split.column else settings.split.replace(column=gathered.column)
    )
    # Of a file of tagged words the target only names the column that was read.
    settings = settings.replace(split=chosen, target=None if gathered.origin == "sentences" else settings.target)
    tell_files(frame, tell)
    decision = decide(frame, settings, task=task, origin=gathered.origin)
    for line in lines(decision, frame):
        tell(line)
    rows, skipped, places = usable(frame, decision, bad=settings.bad)
    skipped = dict(frame.skipped) | skipped
    places |= {reason: found[0] for reason, found in frame.skipped_at.items() if found}
    total = len(frame) + sum(frame.skipped.values())
    if len(rows) < len(frame):
        frame, fixed = frame.take(rows), None if fixed is None else fixed[rows]
    arrays = Arrays.new(cache)
    pictured, places_in = None, np.arange(len(frame))
    if decision.of("image"):
        pictured = decode_pictures(frame, one_image(decision), settings.pictures, arrays, steps=given.images, say=tell,
                                   bad=settings.bad)  # fmt: skip
        # Where a row is more than its picture, one without it is still a row.
        lost = pictured.broken if len(decision.inputs) > 1 else ~pictured.there
        if lost.any():
            skipped[UNREADABLE] = int(lost.sum())
            places[UNREADABLE] = frame.place(int(np.flatnonzero(lost)[0]))
            places_in = np.flatnonzero(~lost)
            frame, fixed = frame.take(places_in), None if fixed is None else fixed[places_in]
    sides = split(frame, decision, chosen, seed, fixed=fixed, same=pictured.same[places_in] if pictured else None)
    preprocess = fit_preprocess(frame, decision, sides.rows(TRAIN), settings, seed=seed, labels=given.labels)
    frame, sides, targets, unseen, kept = known_labels(frame, sides, preprocess, settings.bad)
    if unseen:
        skipped[UNSEEN] = sum(unseen.values())
    if pictured is not None:
        preprocess = with_picture(preprocess, pictured.size, pictured.channels)
        arrays.put("pictured", places_in[kept])
        arrays.put("seen", pictured.there[places_in[kept]])
    train = sides.rows(TRAIN)
    tokenizer, about = None, ""
    if preprocess.of(Text, Sentence):
        tokenizer, about = tokenizer_for(frame, preprocess, train, settings.words, given, seed=seed)
        preprocess = worded(preprocess, tokenizer, settings, given)
    preprocess, counts = encode(frame, preprocess, tokenizer, arrays, train=train)
    put_targets(arrays, preprocess, targets)
    arrays.put("side", sides.side)

    tell_target(preprocess, decision, len(train), tell)
    tell_split(sides, preprocess, chosen, tell)
    if about:
        tell(f"tokens   {about}; rows of at most {preprocess.length} tokens")
    tell_counts(counts, preprocess, unseen, frame, tell)
    tell_rows(total, len(frame), skipped, places, tell)
    facts = {
        **decision.plain(), "rows": total, "used": len(frame), "skipped": skipped,
        "split": {name: int((sides.side == number).sum()) for number, name in enumerate(SIDES)},
        "duplicates": sides.duplicates, **counts.plain(), "seed": seed,
        "sources": [vars(source) | {"notes": list(source.notes)} for source in frame.sources],
        "tokenizer": {"about": about, "size": tokenizer.size, "sha256": tokenizer.sha256} if tokenizer else None,
        "labels": label_counts(preprocess), "sizes": sizes(preprocess, tokenizer),
        "fingerprint": fingerprint(arrays, preprocess, tokenizer),
    }  # fmt: skip
    images = pictured.steps if pictured else None
    seal(arrays, frame, preprocess, tokenizer, images, facts, notes, settings.pictures)
    tell(f"disk     {arrays.bytes / 1e6:,.1f} MB")
    reopened = open_prepared(cache)
    assert reopened is not None
    reopened.notes = notes
    return reopened


def one_image(decision: Decision) -> str:
    """The column of pictures; more than one is not learned from."""
    names = decision.of("image")
    if len(names) > 1:
        raise UserError(
            f"{len(names)} columns of images ({', '.join(names[:4])})", where="columns",
            fix=f"keep one: --types {names[1]}=skip",
        )  # fmt: skip
    return names[0]


def with_picture(preprocess: Preprocess, size: int, channels: int) -> Preprocess:
    """The preprocessing with the size of its pictures."""
    columns = tuple(
        column.replace(size=size, channels=channels) if isinstance(column, Image) else column
        for column in preprocess.columns or ()
    )
    return preprocess.replace(columns=columns)


def worded(preprocess: Preprocess, tokenizer: Tokenizer, settings: Data, given: Given) -> Preprocess:
    """The preprocessing with what the tokenizer and the model to start from say about text."""
    limits = [limit for limit in (settings.words.length, given.length) if limit is not None]
    if not limits and given.tokenizer is not None and tokenizer.max_length is not None:
        limits = [min(tokenizer.max_length, 512)]
    start = None
    if preprocess.task == "translate":
        known = (given.start, tokenizer.bos, tokenizer.pad, tokenizer.eos)
        start = next((token for token in known if token is not None), 0)
    segments = preprocess.pair and (has_segments(tokenizer) if given.segments is None else given.segments)
    return preprocess.replace(length=min(limits) if limits else None, segments=segments, start=start)


def known_labels(
    frame: Frame, sides: Sides, preprocess: Preprocess, bad: str
) -> tuple[Frame, Sides, Encoded | None, dict[str, int], np.ndarray]:
    """Rows whose label training has, and which they are; others are counted by label, or refused."""
    targets = encode_target(frame, preprocess)
    if targets is None or UNSEEN not in targets.unusable or not targets.unusable[UNSEEN].any():
        return frame, sides, targets, {}, np.arange(len(frame))
    strange = targets.unusable[UNSEEN]
    if bad == "error":
        label, row = min(targets.unseen.items(), key=lambda item: item[1])
        raise refused(frame, row, f"the label {label[:40]!r} is in no training row")
    kept = np.flatnonzero(~strange)
    label, row = min(targets.unseen.items(), key=lambda item: item[1])
    lost = [name for number, name in enumerate(SIDES) if (of := sides.side == number).any() and strange[of].all()]
    if lost:
        raise UserError(
            f"the label {label[:40]!r} is in no training row, nor is any other label of {lost[0]}",
            where=frame.place(row), fix=did_you_mean(label, preprocess.labels or ()),
        )  # fmt: skip
    unseen = {f"{label[:40]!r}, first {frame.place(row)}": int(strange.sum())}
    smaller = Sides(sides.side[kept], sides.duplicates, sides.notes)
    frame = frame.take(kept)
    return frame, smaller, encode_target(frame, preprocess), unseen, kept


def put_targets(arrays: Arrays, preprocess: Preprocess, targets: Encoded | None) -> None:
    """Write the targets; tags only of words that were not cut off."""
    if targets is None or preprocess.task == "translate":
        return
    if not isinstance(preprocess.target, Tags):
        arrays.put("targets", targets.values)
        return
    kept = np.diff(arrays["begins_starts"])
    counts = targets.lengths
    assert counts is not None
    place = np.arange(len(targets.values)) - np.repeat(np.cumsum(counts) - counts, counts)
    arrays.put("tags", targets.values[place < np.repeat(kept, counts)].astype(np.int32))


def label_counts(preprocess: Preprocess) -> dict[str, int] | None:
    """Training rows (or words) of each label."""
    target: Any = preprocess.target
    return None if preprocess.labels is None else dict(zip(target.labels, target.counts, strict=True))


def open_prepared(cache: Path) -> Prepared | None:
    """What was prepared in a folder, to the same bits; None where it is not there, damaged or of another kind."""
    arrays = Arrays.of(cache)
    return None if arrays is None else opened(arrays)


# ---------------------------------------------------------------- new rows


def frame_for(source: Any, preprocess: Preprocess, settings: Data, cache: Path) -> tuple[Frame, list[str]]:
    """New files or data with the columns a model was trained on, in any order, and what is worth saying about them."""
    paths = paths_of(source)
    origin = (
        "table" if paths is None else origin_of(paths, {"translate": "translate", "tag": "tag"}.get(preprocess.task))
    )
    plain = settings.replace(split=settings.split.replace(valid_file=None, test_file=None, column=None))
    frame = gather(source, origin, plain, cache / "read").frame
    _, notes = fitting(frame, preprocess)
    return frame, notes


def examples_for(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    cache: Path,
    *,
    images: ImageSteps | None = None,
    say: Say = lambda line: None,
) -> tuple[RowExamples, Counts]:
    """New rows as examples, all of them, in their order; targets that are missing or new do not count."""
    needed, _ = fitting(frame, preprocess)
    arrays = Arrays.new(cache)
    preprocess, counts = encode(needed, preprocess, tokenizer, arrays, train=None)
    put_targets(arrays, preprocess, encode_target(needed, preprocess))
    for column in preprocess.of(Image):
        found = decode_pictures(needed, column.name, Pictures(), arrays, steps=images, say=say, bad="skip")
        arrays.put("seen", found.there)
    rows = np.arange(len(frame))
    return RowExamples(arrays, frame, preprocess, rows, pad=pad_of(tokenizer), images=images), counts
