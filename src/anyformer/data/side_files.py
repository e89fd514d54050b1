"""Folders with one file per split: train.csv, valid.csv and test.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyformer.data.files.language_names import languages, parallel_sides
from anyformer.data.files.side_folders import side_of_name
from anyformer.data.settings import Data

KINDS = {"table": "table", "sentences": "conll"}  # kind of files, and the kind of their names


@dataclass(frozen=True)
class SideFiles:
    """The training files, and those of the other splits; the latter are empty if no name gives a split."""

    train: list[Path]
    valid: list[Path]
    test: list[Path]
    notes: tuple[str, ...] = ()


def find_side_files(paths: Sequence[Path], origin: str, settings: Data, files: Sequence[Path]) -> SideFiles | None:
    """The splits of one folder with these `files`, by their names; None if names give no split.

    Other settings of the split take precedence: files, a column, groups or time.
    """
    split = settings.split
    given = split.valid_file or split.test_file or split.column or split.group or split.time
    if given or len(paths) != 1 or not Path(paths[0]).is_dir():
        return None
    folder = Path(paths[0])
    if origin == "pairs":
        pairs = parallel_sides(folder)
        if pairs is None:
            return None
        found = {side: list(pair) for side, pair in pairs.items()}
        said = f"{languages(found['train'])}, by the names of the files; give two files in the other order to change it"
        return SideFiles(found["train"], found.get("valid", []), found.get("test", []), (said,))
    if origin not in KINDS:
        return None
    sides: dict[str, list[Path]] = {}
    for file in files:
        sides.setdefault(side_of_file(file.relative_to(folder)), []).append(file)
    if "train" not in sides or not set(sides) & {"valid", "test"}:
        return None
    notes = [f"{file.name} is left out: by its name it is neither train, valid nor test" for file in sides.get("", [])]
    return SideFiles(sides["train"], sides.get("valid", []), sides.get("test", []), tuple(notes[:5]))


def side_of_file(path: Path) -> str:
    """The split given by a file's name, or by its folder's.

    >>> side_of_file(Path("train.csv")), side_of_file(Path("en-ud-dev.conllu")), side_of_file(Path("test/part-1.csv"))
    ('train', 'valid', 'test')
    >>> side_of_file(Path("train-00000-of-00002.parquet")), side_of_file(Path("sample_submission.csv"))
    ('train', '')
    """
    named = side_of_name(path.name.split(".")[0])
    return named or (side_of_name(path.parts[0]) if len(path.parts) > 1 else "")
