"""docs/design/walk.md names files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anyformer"
PAGE = ROOT / "docs" / "design" / "walk.md"
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (?:`([\w.]+)`)? ?\| (.+) \|$", re.MULTILINE)
pytestmark = pytest.mark.quick


def definitions(source: str) -> set[str]:
    """Names of functions and classes, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body
                      if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
    return found


def wrong_rows(page: str) -> list[str]:
    """Rows whose file or function is not there."""
    wrong = []
    for path, name, _ in ROW.findall(page):
        file = SOURCE / path
        if not file.is_file():
            wrong.append(f"{path}: no such file")
        elif name and name not in definitions(file.read_text(encoding="utf-8")):
            wrong.append(f"{path}: no {name}")
    return wrong


def test_every_step_of_the_walks_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(ROW.findall(page)) == len(re.findall(r"^\| `[\w/]+\.py`", page, re.MULTILINE)) > 60
    assert not wrong_rows(page), "\n".join(wrong_rows(page))


def test_other_names_on_the_page_are_there() -> None:
    """What stands in the sentences: `Class.method` is defined somewhere, and so are classes."""
    known = set().union(*(definitions(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")))
    named = set(re.findall(r"`([A-Z][a-zA-Z0-9]+(?:\.[a-z_]+)?)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 40 and "TargetLook" in named and "Column.fit" in named
    assert named <= known, sorted(named - known)


def test_control_a_name_that_is_gone_is_noticed() -> None:
    page = "| `core/attend.py` | `attend` | x |\n"
    assert ROW.findall(page) and not wrong_rows(page)
    assert wrong_rows(page.replace("`attend`", "`attends`")) and wrong_rows(page.replace("core/", "cores/"))
    assert wrong_rows("| `training/trainer.py` | `Session.walk_away` | x |\n")
