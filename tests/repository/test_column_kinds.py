"""What a kind of column is, only its own file knows: no other code compares kinds of column to choose a path."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from anyformer.data.columns.kinds import kinds
from tests.repository.source import modules

HOME = "anyformer.data.columns."
OWN = [kind for kind in kinds() if kind.__module__.startswith(HOME)]
NAMES = {kind.kind for kind in OWN} | {kind.modality.name for kind in OWN}
CLASSES = {kind.__name__ for kind in OWN} | {kind.modality.__name__ for kind in OWN}
HOLDERS = ("kind", "kinds", "part", "parts")  # what names of kinds are held in

ALLOWED = {
    "anyformer.data.files.path_kinds": "kinds of files, not of columns",
    "anyformer.data.gather": "kinds of files, not of columns",
    "anyformer.inspection.figure": "names of pictures, not of columns",
}


def compared(source: str) -> Iterator[tuple[int, str]]:
    """Where a source compares kinds of column: by name, by class, or in a table of either."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(HOME.rstrip("."))
        for alias in node.names
    }
    classes = {name for name, original in imported.items() if original in CLASSES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(holds(side) for side in sides) and any(named(side) for side in sides):
                yield node.lineno, "compares the name of a kind"
            if any(isinstance(side, ast.Name) and side.id in classes for side in sides):
                yield node.lineno, "compares a kind"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            if classes & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}:
                yield node.lineno, "asks for the class of a column"
        if isinstance(node, ast.Dict) and sum(named(key) for key in node.keys if key is not None) > 1:
            yield node.lineno, "has a table by kinds"
        if isinstance(node, ast.Dict) and any(isinstance(key, ast.Name) and key.id in classes for key in node.keys):
            yield node.lineno, "has a table by kinds"
        if isinstance(node, ast.match_case):
            if any(isinstance(one, ast.MatchValue) and named(one.value) for one in ast.walk(node.pattern)):
                yield node.pattern.lineno, "matches the name of a kind"


def holds(node: ast.expr) -> bool:
    """Whether an expression is named like something that holds kinds: `facts.kind`, `part`, `sizes.parts`."""
    if isinstance(node, ast.Subscript):
        return holds(node.value)
    return (isinstance(node, ast.Attribute) and node.attr in HOLDERS) or (
        isinstance(node, ast.Name) and node.id in HOLDERS
    )


def named(node: ast.expr) -> bool:
    """Whether an expression holds the name of a kind."""
    return any(
        isinstance(one, ast.Constant) and one.value in NAMES
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


def test_no_code_but_their_own_compares_kinds_of_column():
    wrong = [
        f"{module}:{line} {what}: let the column say it"
        for module, path in modules().items()
        if not module.startswith(HOME) and module not in ALLOWED
        for line, what in compared(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed():
    known = modules()
    assert [name for name in ALLOWED if name not in known or not list(compared(known[name].read_text()))] == []


@pytest.mark.parametrize(
    "source",
    [
        'if column.kind == "text": pass',
        'if facts[name].kind != "number": pass',
        'if kind in ("image", "audio"): pass',
        'if sizes.parts == ["table"]: pass',
        'if "image" in preprocess.parts: pass',
        'if sizes.parts[0] == "audio": pass',
        "from anyformer.data.columns.kinds import Image\nif isinstance(column, Image): pass",
        "from anyformer.data.columns.text import Text as Words\nx = isinstance(column, (int, Words))",
        "from anyformer.data.columns.kinds import Date\nx = [c for c in columns if type(c) is Date]",
        'PARSERS = {"number": float, "text": str}',
        "from anyformer.data.columns.kinds import Date\nPARSERS = {Date: str}",
        'match column.kind:\n    case "date": pass',
    ],
)
def test_control_a_comparison_is_seen(source):
    assert list(compared(source))


@pytest.mark.parametrize(
    "source",
    [
        "if column.is_text: pass",
        'if name == "text": pass',
        'if kind == "folder-of-text": pass',
        "from anyformer.data.columns.image import Image\ncolumn = Image(name='image')",
        "if facts.column.is_time: pass",
        'names = {"label": 1, "text": 2}',
    ],
)
def test_control_asking_the_column_is_not(source):
    assert not list(compared(source))
