"""A page that names a test as its evidence names one that exists."""

from __future__ import annotations

import re

import pytest

from tests.repository.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")])
# `tests/data/test_prepare.py`, `test_rows.py`: a bare name lies in the folder of the path before it.
NAMED = re.compile(r"tests/[\w/.-]*\w|`test_\w+\.py`")


def missing(page: str) -> list[str]:
    """What a page names under tests/ that is not there."""
    found, folder = [], ROOT / "tests"
    for name in NAMED.findall(page):
        path = folder / name.strip("`") if name.startswith("`") else ROOT / name
        folder = path.parent if path.suffix else path
        if not path.exists():
            found.append(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_named_on_a_page_exist(page) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_a_wrong_name_is_noticed() -> None:
    assert missing("`tests/repository/test_no_machine_paths.py`, `test_imports.py`, `tests/repository`") == []
    assert missing("`tests/repository/test_no_machine_paths.py`, `test_none.py`") == ["`test_none.py`"]
    assert missing("tests/nowhere/test_words.py") == ["tests/nowhere/test_words.py"]
