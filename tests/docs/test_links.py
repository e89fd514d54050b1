"""Every page of docs/ is reached from the README by links, and every link from page to page leads to a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.quick


def links_of(page: Path) -> list[Path]:
    """The files that a page links to."""
    found = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [(page.parent / link).resolve() for link in found if "://" not in link and not link.startswith("mailto:")]


def reached(root: Path) -> set[Path]:
    """The pages that links lead to, from README.md on."""
    found: set[Path] = set()
    ahead = [(root / "README.md").resolve()]
    while ahead:
        page = ahead.pop()
        if page not in found and page.suffix == ".md" and page.is_file():
            found.add(page)
            ahead += links_of(page)
    return found


def orphans(root: Path) -> list[str]:
    """Pages of docs/ that no link leads to."""
    there = {path.resolve() for path in (root / "docs").rglob("*.md")}
    return sorted(path.relative_to(root.resolve()).as_posix() for path in there - reached(root))


def test_every_page_is_reached_from_the_readme() -> None:
    assert len(reached(ROOT)) > 40
    assert orphans(ROOT) == []


def test_links_between_pages_lead_to_files() -> None:
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in reached(ROOT) for link in links_of(page)
              if not link.exists()]  # fmt: skip
    assert broken == []


def test_control_a_page_without_a_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("[a](docs/a.md) and [elsewhere](https://example.org/docs/c.md)\n")
    (tmp_path / "docs" / "a.md").write_text("[part of b](b.md#part)\n```\n[c](c.md)\n```\n")
    for name in "bc":
        (tmp_path / "docs" / f"{name}.md").write_text("[a](a.md)\n")
    assert orphans(tmp_path) == ["docs/c.md"]
    (tmp_path / "docs" / "b.md").write_text("[c](c.md)\n")
    assert orphans(tmp_path) == []
