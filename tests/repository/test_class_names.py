"""A class name means one thing in the whole package: who searches for it finds one class."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.repository.source import modules


def places(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Every class, inside functions and classes too, with the modules that define one of its name."""
    found: dict[str, list[str]] = {}
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{module}:{node.lineno}")
    return found


def shared(sources: Mapping[str, str]) -> list[str]:
    """One line for each name that more than one class has."""
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places(sources).items()) if len(where) > 1]


def test_a_class_name_means_one_thing() -> None:
    sources = {module: path.read_text(encoding="utf-8") for module, path in modules().items()}
    assert len(places(sources)) > 500
    assert not shared(sources), "give each a second word:\n" + "\n".join(shared(sources))


def test_control_a_second_class_of_a_name_is_seen() -> None:
    one = {"a": "class Rows: pass\n", "b": "class Table: pass\n"}
    assert shared(one) == []
    assert shared(one | {"c": "def f():\n    class Rows: pass\n"}) == ["Rows: a:1, c:2"]
