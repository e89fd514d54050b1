"""All rows for training in one frame: the given files or Python data, and those for validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.decision import Origin
from anyformer.data.file_tasks import add_tasks_of_files
from anyformer.data.frame import Frame
from anyformer.data.settings import Data
from anyformer.data.side_files import KINDS, SideFiles, find_side_files
from anyformer.data.splits import FREE, SPELLED, TEST, TRAIN, VALID
from anyformer.errors import UserError, did_you_mean

Paths = Sequence[str | Path]


@dataclass
class Gathered:
    """Rows, their origin, and the split of those assigned by file."""

    frame: Frame
    origin: Origin
    fixed: np.ndarray | None = None  # (N,) int8: train, valid, test or FREE
    column: str | None = None  # gives the split of each row
    target: tuple[str, ...] | None = None  # the column that a test file lacks, taken as the target


def paths_of(source: Any) -> list[Path] | None:
    """The paths of a source, None if it is Python data."""
    if isinstance(source, str | Path):
        return [Path(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(item, Path) for item in source):
        return list(source)
    return None


def origin_of(paths: Paths, wanted: str | None) -> str:
    """The kind of files: table, text (running), texts (in class folders), pairs, sentences, pictures, sounds or fasta.

    `wanted` is the kind that a task reads, to resolve ambiguity; None if the task is not known yet.
    """
    from anyformer.data.files.path_kinds import kind_of_path

    if wanted in (None, "pairs") and parallel(paths):
        return "pairs"
    kinds = [kind_of_path(Path(path)) for path in paths]
    if any(kind in ("images", "image", "idx") for kind in kinds):
        return "pictures"
    if "wav" in kinds:
        return "sounds"
    if "fasta" in kinds:
        return "fasta"
    if any(kind in ("conll", "folder-of-conll") for kind in kinds) or wanted == "sentences":
        return "sentences" if all(kind != "table" for kind in kinds) else "table"
    if all(kind in ("text", "folder-of-text") for kind in kinds):
        if wanted == "pairs" and len(paths) == 2:
            return "pairs"
        if wanted in (None, "table") and class_texts(paths):
            return "texts"
        return "text" if wanted in (None, "text") or "folder-of-text" in kinds else "table"
    return "table"


def parallel(paths: Paths) -> bool:
    """Whether two file names differ only in the language, such as train.en and train.de, or a folder has such files."""
    from anyformer.data.files.language_names import are_parallel, parallel_sides
    from anyformer.data.files.path_kinds import kind_of_name

    if len(paths) == 1 and Path(paths[0]).is_dir():
        return parallel_sides(Path(paths[0])) is not None
    if len(paths) != 2:
        return False
    one, two = (bare(Path(path)) for path in paths)
    said = any(kind_of_name(path.name) not in ("", "text") for path in (one, two))
    if one.stem == two.stem and one.suffix != two.suffix and not said:
        return all(Path(path).is_file() for path in paths)
    return are_parallel(*map(Path, paths))


def class_texts(paths: Paths) -> bool:
    """Whether paths are folders of texts with one sub-folder per class."""
    from anyformer.data.files.text_folders import holds_class_texts

    return all(Path(path).is_dir() and holds_class_texts(Path(path)) for path in paths)


def bare(path: Path) -> Path:
    """A path without its compression suffix."""
    return path.with_suffix("") if path.suffix in (".gz", ".xz", ".zst", ".bz2") else path


def files_of(paths: Paths, kind: str) -> list[Path]:
    """The files themselves, those in folders sorted by name."""
    from anyformer.data.files.path_kinds import kind_of_name

    found: list[Path] = []
    for path in map(Path, paths):
        below = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        found += [file for file in below if file == path or kind_of_name(file.name) == kind]
    return found


def read_all(paths: Paths, origin: str, settings: Data, cache: Path) -> Frame:
    """Read files of one kind as one frame."""
    found = [Path(path) for path in paths]
    if origin == "pictures":
        from anyformer.data.images.decode_all import read_pictures

        return read_pictures(found)
    if origin == "sounds":
        from anyformer.data.files.audio_folders import read_sounds

        return read_sounds(found)
    if origin == "texts":
        from anyformer.data.files.text_folders import read_text_folders

        return read_text_folders(found, settings.format, bad=settings.bad)
    if origin == "sentences":
        from anyformer.data.files.conll import read_conll

        column = settings.target[0] if settings.target else None
        return read_conll(files_of(found, "conll"), settings.format, column=column, bad=settings.bad)
    if origin == "fasta":
        from anyformer.data.files.fasta import read_labelled
        from anyformer.data.files.path_kinds import kind_of_name

        tables = [path for path in found if kind_of_name(path.name) == "table"]
        records = files_of([path for path in found if path not in tables], "fasta")
        return read_labelled(records, tables, settings, cache)
    if origin == "pairs":
        from anyformer.data.files.language_names import pair_in
        from anyformer.data.files.parallel_text import read_pairs

        if len(found) == 1 and found[0].is_dir():
            found = pair_in(found[0])
        return read_pairs(found, settings.format, bad=settings.bad, cache=cache)
    from anyformer.data.files.named_files import find_named_files
    from anyformer.data.files.tables import read

    return find_named_files(read(files_of(found, "table"), settings.format, bad=settings.bad, cache=cache))


def gather(source: Any, origin: str, settings: Data, cache: Path, *, whole: bool = False) -> Gathered:
    """The rows of a source, then of its validation and test files; `whole` does not split a folder by file names."""
    paths, sides_ = paths_of(source), None
    if paths is not None and not whole and (sides_ := side_files(paths, origin, settings)) is not None:
        return gather_sides(sides_, origin, settings, cache)
    if paths is None:
        from anyformer.data.files.tables import frame_of

        frame, kind = frame_of(source), "table"
    else:
        frame, kind = read_all(paths, origin, settings, cache / "train"), origin
    if kind == "pictures" and (settings.split.valid_file or settings.split.test_file):
        frame = frame.of(["image", "label"])  # the split comes from files, so folder names do not give it
    if kind == "sounds" and (settings.split.valid_file or settings.split.test_file):
        frame = frame.of(["audio", "label"])
    frames, sides = [frame], [np.full(len(frame), FREE, np.int8)]
    for name, side, files in (
        ("--valid", VALID, settings.split.valid_file),
        ("--test", TEST, settings.split.test_file),
    ):
        if files is None:
            continue
        extra = read_all(files, kind, settings, cache / name.strip("-"))
        frames.append(fit_to_columns(extra, frame, name))
        sides.append(np.full(len(extra), side, np.int8))
    joined = concatenate_frames(frames)
    if settings.mixture.names_files and not whole:
        joined = add_tasks_of_files(joined, settings.mixture, trained=len(frame.sources))
    origin_: Origin = kind if kind in ("sentences", "pairs", "pictures", "sounds") else "table"  # type: ignore[assignment]
    fixed = np.concatenate(sides) if len(sides) > 1 else None
    column = settings.split.column or (None if fixed is not None else find_split_column(joined, settings))
    return Gathered(joined, origin_, fixed, column)


def side_files(paths: Sequence[Path], origin: str, settings: Data) -> SideFiles | None:
    """The files of one folder split by their names, or None."""
    if len(paths) != 1 or not Path(paths[0]).is_dir():
        return None
    files = files_of(paths, KINDS[origin]) if origin in KINDS else []
    return find_side_files(paths, origin, settings, files)


def gather_sides(found: SideFiles, origin: str, settings: Data, cache: Path) -> Gathered:
    """Gather the rows of files whose names give their split.

    A file without the target cannot be used for evaluation: it is left out with a note on how to predict it. If no
    target is named, it is the only column that such a file lacks.
    """
    target = None
    frame = read_all(found.train, origin, settings, cache / "train")
    frames, sides, remarks = [frame], [np.full(len(frame), FREE, np.int8)], list(found.notes)
    for name, side, files in (("valid", VALID, found.valid), ("test", TEST, found.test)):
        if not files:
            continue
        extra = read_all(files, origin, settings, cache / name)
        lost = [column for column in frame.names if column not in extra.names]
        if lost and (settings.target is None or set(lost) & set(settings.target)):
            shown = lost[0] if len(lost) == 1 else f"{lost[0]} and {len(lost) - 1} more"
            if settings.target is None and len(lost) == 1:
                target, shown = (lost[0],), f"{shown}, which is therefore the target"
            remarks.append(f"{files[0].name} has no column {shown}; nothing is scored on it; when the model is "
                           f"trained, anyformer predict RUN {files[0]} answers its rows")  # fmt: skip
            continue
        frames.append(fit_to_columns(extra, frame, f"--{name}"))
        sides.append(np.full(len(extra), side, np.int8))
    whole = replace(concatenate_frames(frames), remarks=tuple(remarks))
    if settings.mixture.names_files:
        whole = add_tasks_of_files(whole, settings.mixture, trained=len(frame.sources))
    kind: Origin = origin  # type: ignore[assignment]
    return Gathered(whole, kind, np.concatenate(sides) if len(sides) > 1 else None, target=target)


def find_split_column(frame: Frame, settings: Data) -> str | None:
    """The column that gives the split, by its name and all of its values, unless the split is determined otherwise."""
    from anyformer.data.columns.cells import factorize

    split = settings.split
    name = next((name for name in frame.names if name.lower() == "split"), None)
    if name is None or split.group or split.time or name in (settings.target or ()) or name in (settings.inputs or ()):
        return None
    if name in settings.kinds():
        return None
    codes, words = factorize(frame.column(name))
    sides = {SPELLED.get(word.lower()) for word in words}
    return name if (codes >= 0).all() and None not in sides and TRAIN in sides and len(sides) > 1 else None


def fit_to_columns(extra: Frame, frame: Frame, option: str) -> Frame:
    """Another file's rows with the columns of the first; a missing one is reported."""
    if extra.names == frame.names:
        return extra
    if set(extra.names) != set(frame.names) and len(extra.names) == len(frame.names) and no_header(extra, frame):
        return replace(extra, table=extra.table.rename_columns(frame.names))
    lost = [name for name in frame.names if name not in extra.names]
    if lost:
        where = extra.sources[0].name if extra.sources else option
        raise UserError(
            f"{lost[0]!r} is a column of the training rows but not of this file", where=where,
            fix=did_you_mean(lost[0], extra.names),
        )  # fmt: skip
    return replace(extra, table=extra.table.select(frame.names))


def no_header(*frames: Frame) -> bool:
    return all(any("no header" in note for source in frame.sources for note in source.notes) for frame in frames)


def concatenate_frames(frames: Sequence[Frame]) -> Frame:
    """Frames concatenated; rows keep their locations."""
    if len(frames) == 1:
        return frames[0]
    import pyarrow as pa

    tables = [frame.table for frame in frames]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # no common type: both as strings
        table = pa.concat_tables([worded_table(table, tables[0].schema) for table in tables])
    numbers, before = [], 0
    for frame in frames:
        own = np.arange(len(frame)) if frame.numbers is None else frame.numbers
        numbers.append(own + before)
        before += sum(source.rows for source in frame.sources) if frame.sources else len(frame)
    skipped: dict[str, int] = {}
    for frame in frames:
        for reason, count in frame.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    places: dict[str, tuple[str, ...]] = {}
    for frame in frames:
        for reason, found in frame.skipped_at.items():
            places[reason] = (*places.get(reason, ()), *found)[:5]
    sources = tuple(source for frame in frames for source in frame.sources)
    remarks = tuple(remark for frame in frames for remark in frame.remarks)
    return Frame(table, sources, skipped, np.concatenate(numbers), places, remarks)


def worded_table(table: Any, schema: Any) -> Any:
    """A table with every column as strings."""
    import pyarrow as pa

    from anyformer.data.columns.cells import as_words

    return pa.table({name: as_words(table.column(name)) for name in schema.names})
