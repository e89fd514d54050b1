"""The pages on the design name files that are there."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from tests.generation import test_same_tokens
from tests.laws import test_cache

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
FILE = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*[\w-]+\.(?:py|md|cpp))(?![\w/])")
# A row of a table, or a sentence, may leave out what the words before it say.
BELOW = ("", "src/anyformer", "src/anyformer/core", "src/anyformer/training", "src/anyformer/inference",
         "src/anyformer/generation/cache", "docs/design")  # fmt: skip
TESTS = {path.name for path in (ROOT / "tests").rglob("*.py")}
pytestmark = pytest.mark.quick


def absent(page: str) -> list[str]:
    """Files that the page names in backticks and that are not there."""
    named = {name for span in re.findall(r"`([^`\n]+)`", page) for name in FILE.findall(span)}
    missing = [name for name in named if not any((ROOT / folder / name).exists() for folder in BELOW)]
    return sorted(name for name in missing if name not in TESTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    assert not absent(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_control_a_file_that_is_gone_is_noticed() -> None:
    assert absent("`core/attend.py`, `trainer.py` and `setup/new_run.py` are there") == []
    assert absent("`session.py` and `core/attends.py` are not") == ["core/attends.py", "session.py"]


def cells(test: Callable[..., None]) -> int:
    """How many tests its parameters make."""
    marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    return prod(len(mark.args[1]) for mark in marks)


def test_the_page_has_the_number_of_cells_of_the_cache_matrix() -> None:
    page = (ROOT / "docs" / "design" / "reliability.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(test_\w+)` \|.*\| (\d+) \|$", page, re.MULTILINE))
    tests = [test_cache.test_pieces_equal_the_full_pass, test_same_tokens.test_decoders,
             test_same_tokens.test_encoder_decoders]  # fmt: skip
    assert said == {test.__name__: str(cells(test)) for test in tests}
