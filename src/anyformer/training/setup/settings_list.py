"""All settings with type, default and description, as printed by `anyformer settings`.

A setting's description is the string below its field, as editors and documentation tools read it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import typing
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from itertools import pairwise
from typing import Any, Literal

# Parts register on import, and all of them must be listed.
import anyformer.core.pyramid
import anyformer.nets  # noqa: F401
from anyformer.errors import UserError
from anyformer.spec import Spec, arms_of, fields_of, plain, slots_in
from anyformer.training.setup.setting_paths import SECTIONS, inside, parts_of, roots, suggestion


@dataclass(frozen=True)
class Setting:
    """One setting of one part. Several parts may have a setting at the same path."""

    path: str
    part: str
    type: str
    default: Any  # as a JSON value; None also if there is no default
    required: bool
    about: str


def list_settings(path: str = "") -> list[Setting]:
    """All settings, or those at and below a path. Each part is listed once, at its first occurrence.

    >>> [setting.path for setting in list_settings("training.schedule")][:2]
    ['training.schedule', 'training.schedule.warmup']
    """
    if not path:
        return [setting for section in SECTIONS for setting in list_settings(section)]
    section, *steps = path.split(".")
    kinds = roots(section)
    if not kinds:
        raise UserError("no such setting", where=path[:100], fix=suggestion(path))
    owners: list[type[Spec]] = []
    for step in steps:
        name = re.sub(r"\[-?\d+\]$", "", step)
        owners, kinds = [kind for kind in kinds if name in fields_of(kind)], inside(kinds, name) or []
        if not owners:
            raise UserError("no such setting", where=path[:100], fix=suggestion(path))
    own = [setting for kind in owners for setting in settings_of(kind, path.rpartition(".")[0]) if setting.path == path]
    return [*own, *below(kinds, path)]


def below(kinds: Iterable[type[Spec]], path: str) -> Iterator[Setting]:
    """The settings of the parts that fit at a path, then those nested in them, breadth first."""
    waiting = deque((path, kind) for kind in kinds)
    seen: set[type[Spec]] = set()
    while waiting:
        place, kind = waiting.popleft()
        if kind not in seen:
            seen.add(kind)
            yield from settings_of(kind, place)
            for name, annotation in fields_of(kind).items():
                waiting.extend((f"{place}.{name}", part) for part in parts_of(slots_in(annotation)))


def settings_of(kind: type[Spec], place: str) -> Iterator[Setting]:
    """The settings of a part at a path."""
    sentences = field_sentences(kind)
    for described in dataclasses.fields(typing.cast(Any, kind)):
        default = described.default if described.default_factory is MISSING else described.default_factory()
        yield Setting(
            f"{place}.{described.name}", kind.__name__, type_name(fields_of(kind)[described.name]),
            None if default is MISSING else plain(default), default is MISSING, sentences.get(described.name, ""),
        )  # fmt: skip


def field_sentences(kind: type[Spec]) -> dict[str, str]:
    """Description by field name, of a part and its base classes; empty without source code."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not issubclass(owner, Spec) or "__annotations__" not in vars(owner):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for statement, after in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    found[statement.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def type_name(annotation: Any) -> str:
    """An annotation as a short name; a value of null is how YAML writes None.

    >>> type_name(int | None), type_name(tuple[str, ...]), type_name(Literal["auto"] | bool)
    ('int or null', 'list of str', 'auto or bool')
    """
    names = []
    for arm in arms_of(annotation):
        if arm is type(None):
            names.append("null")
        elif typing.get_origin(arm) is Literal:
            names += [str(choice) for choice in typing.get_args(arm)]
        elif typing.get_origin(arm) is tuple:
            inner = typing.get_args(arm)
            count = "" if inner[-1] is Ellipsis else f"{len(inner)} "
            names.append(f"list of {count}{type_name(inner[0])}")
        else:
            names.append(getattr(arm, "__name__", str(arm)))
    return " or ".join(names)


def default_text(setting: Setting) -> str:
    """A default as typed on the command line; a part by its name."""
    if setting.required:
        return "required"
    value = setting.default
    if isinstance(value, dict):
        return str(value["type"])
    return value if isinstance(value, str) and value else json.dumps(value)


def settings_table(settings: list[Setting]) -> list[str]:
    """Table lines, with a blank line between parts."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.path.rpartition(".")[0], setting.part), []).append(setting)
    for (place, part), members in groups.items():
        rows = [(one.path, one.type, default_text(one), one.about) for one in members]
        paths, types, defaults = (max(len(row[column]) for row in rows) for column in range(3))
        lines += [""] * bool(lines)
        lines.append(f"{place} ({part})")
        lines += [f"  {a:<{paths}}  {b:<{types}}  {c:<{defaults}}  {d}" for a, b, c, d in rows]
    return lines
