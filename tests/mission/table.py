"""The table of what shows what: three files of rows, and the pages of docs that say what they show."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = ("rows.toml", "examples.toml", "errata.toml")
IDS = (
    *(f"R{number:02}" for number in range(1, 116)),
    *(f"W{number:02}" for number in range(1, 32)),
    *(f"E{number:02}" for number in range(1, 29)),
)
# A row of the feature table counts when it is tested and shown; an erratum when its right form is measured too.
NEEDED = {"R": ("tests", "pages"), "W": ("tests",), "E": ("tests", "claims")}
KINDS = ("tests", "claims", "recipes", "pages")
MARK = re.compile(r"<!-- shows: ([^>]*?) -->")
HEADING = re.compile(r"^#+ +(.*)$")


@dataclass(frozen=True)
class MissionRow:
    """One promise and what shows it; `gap` is what nothing shows."""

    name: str
    title: str
    tests: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    gap: str = ""

    @property
    def missing(self) -> str:
        """What is not there, in words; empty where all is."""
        absent = [f"no {kind.removesuffix('s')}" for kind in NEEDED[self.name[0]] if not getattr(self, kind)]
        return "; ".join([*absent, *([self.gap] if self.gap else [])])

    @property
    def state(self) -> str:
        """Whole, in part or nothing."""
        if not any(getattr(self, kind) for kind in KINDS):
            return "nothing"
        return "in part" if self.missing else "whole"


def read_rows(marks: Mapping[str, list[str]] | None = None, folder: Path = HERE) -> list[MissionRow]:
    """All rows in the order of their numbers; pages that say what they show come behind those that a row names."""
    marks = page_marks() if marks is None else marks
    found = {}
    for name in FILES:
        for row, facts in tomllib.loads((folder / name).read_text(encoding="utf-8")).items():
            if row in found or row not in IDS:
                raise ValueError(f"{folder / name}: {row} is {'there twice' if row in found else 'no row'}")
            lists = {kind: tuple(facts.pop(kind, ())) for kind in KINDS}
            lists["pages"] += tuple(page for page in marks.get(row, ()) if page not in lists["pages"])
            found[row] = MissionRow(row, facts.pop("title"), **lists, gap=facts.pop("gap", ""))
            if facts:
                raise ValueError(f"{folder / name}: {row} has {', '.join(facts)}; use title, {', '.join(KINDS)} or gap")
    if absent := [name for name in IDS if name not in found]:
        raise ValueError(f"no row for {', '.join(absent)}")
    return [found[name] for name in IDS]


def page_marks(root: Path = ROOT) -> dict[str, list[str]]:
    """The sections of docs that say `<!-- shows: R01 W02 erratum-3 -->`, by row."""
    found: dict[str, list[str]] = {}
    for page in sorted((root / "docs").rglob("*.md")):
        anchor = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if heading := HEADING.match(line):
                anchor = slug(heading[1])
            for mark in MARK.findall(line):
                for name in mark.split():
                    found.setdefault(row_of(name), []).append(f"{page.relative_to(root).as_posix()}#{anchor}")
    return found


def row_of(name: str) -> str:
    """`erratum-3` is E03; other names are rows already."""
    return f"E{int(name.removeprefix('erratum-')):02}" if re.fullmatch(r"erratum-\d+", name) else name


def slug(heading: str) -> str:
    """The anchor of a heading, as Markdown's readers make it.

    >>> slug("7. Why the square root: `1/sqrt(d)`")
    '7-why-the-square-root-1sqrtd'
    """
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
