"""Whether what a row names is there: test functions, claims, recipes, sections of pages."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from tests.mission.table import HEADING, IDS, ROOT, MissionRow, page_marks, slug


def broken_references(rows: Iterable[MissionRow], claims: Collection[str], root: Path = ROOT) -> list[str]:
    """One line for each thing that a row names and that is not there."""
    found = []
    for row in rows:
        found += [f"{row.name}: {test} is no test" for test in row.tests if not has_test(root, test)]
        found += [f"{row.name}: no claim is called {claim}" for claim in row.claims if claim not in claims]
        found += [f"{row.name}: {recipe} is no file" for recipe in row.recipes if not (root / recipe).is_file()]
        found += [f"{row.name}: {page} is no section of a page" for page in row.pages if not has_section(root, page)]
    return found


def unknown_marks(root: Path = ROOT) -> list[str]:
    """Names that pages say they show and that no row has."""
    return [f"{pages[0]} shows {name}, which is no row" for name, pages in page_marks(root).items() if name not in IDS]


def has_test(root: Path, test: str) -> bool:
    path, _, name = test.partition("::")
    return name in named_tests(root / path)


@cache
def named_tests(path: Path) -> frozenset[str]:
    """The test functions of a file, those of its classes too; none where no such file."""
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def has_section(root: Path, page: str) -> bool:
    """Whether a page has a heading of that anchor, or a table of parts a row of that name."""
    path, _, anchor = page.partition("#")
    return (root / path).is_file() and (not anchor or anchor in anchors(root / path))


@cache
def anchors(path: Path) -> frozenset[str]:
    """Headings outside of code, and the parts that a table links in its second column: `| mixer | [Attention](...`."""
    found, code = set(), False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            code = not code
        elif not code and (heading := HEADING.match(line)):
            found.add(slug(heading[1]))
        elif line.startswith("|") and "| [" in line:
            found.add(line.split("| [", 1)[1].partition("]")[0])
    return frozenset(found)
