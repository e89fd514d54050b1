"""Every way in which a file of a run can be broken, and every verb that opens a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

DEEP = 100_000  # brackets within brackets: deeper than any parser's stack
WRONG: tuple[Any, ...] = (None, "text\x1b[31m\nerror: forged", [], {}, [[]], {"a": {}}, -1, 2**70, 1e999, True)


@dataclass(frozen=True)
class Damage:
    """`apply` breaks one thing in the folder of a run."""

    name: str
    apply: Callable[[Path], None]
    path: Path  # of the file or folder, within the run


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    removed(path)
    make(path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: max(1, path.stat().st_size // 2)])


def deep(path: Path) -> None:
    path.write_text('{"a":' * DEEP if path.suffix in (".json", ".jsonl") else "[" * DEEP)


FILE_DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": removed,
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "truncated": truncated,
    "deeply nested": deep,
    "not an object": lambda path: path.write_text("[1, 2]\n"),
    "a folder": lambda path: replaced(path, Path.mkdir),
    "a link to nothing": lambda path: replaced(path, lambda p: p.symlink_to("nothing")),
    "a link to itself": lambda path: replaced(path, lambda p: p.symlink_to(p.name)),
    "a pipe": lambda path: replaced(path, os.mkfifo),
}
FOLDER_DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": removed,
    "a file": lambda path: replaced(path, lambda p: p.write_text("no folder")),
    "a link to nothing": lambda path: replaced(path, lambda p: p.symlink_to("nothing")),
    "a pipe": lambda path: replaced(path, os.mkfifo),
    "empty": lambda path: replaced(path, Path.mkdir),
}


def file_damages(run: Path) -> Iterator[Damage]:
    """Each file and folder of a run, broken in each way; of the checkpoints the newest."""
    newest = max((run / "checkpoints").iterdir()).name
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if name.parts[0] == "checkpoints" and len(name.parts) > 1 and name.parts[1] != newest:
            continue
        for how, apply in (FOLDER_DAMAGES if path.is_dir() else FILE_DAMAGES).items():
            yield Damage(f"{name} {how}", partial(damage_one, name, apply), name)


def key_damages(run: Path) -> Iterator[Damage]:
    """Each key of each JSON file of a run, and of each line of its tables, with values of other types."""
    for name in ("run.json", "plan.json", "evaluation.json", "data.json", "env.json"):
        for path in paths_of(json.loads((run / name).read_text())):
            for value in WRONG:
                shown = f"{name} {'.'.join(map(str, path))} = {str(value)[:8]!r}"
                yield Damage(shown, partial(edit_json, name, path, value), Path(name))
    for name in ("metrics.jsonl", "speed.jsonl", "events.jsonl"):
        lines = (run / name).read_text().splitlines()
        kinds = {tuple(json.loads(line)): at for at, line in enumerate(lines)}
        for at in kinds.values():
            for path in [*paths_of(json.loads(lines[at])), ()]:
                for value in WRONG:
                    shown = f"{name}:{at} {'.'.join(map(str, path))} = {str(value)[:8]!r}"
                    yield Damage(shown, partial(edit_line, name, at, path, value), Path(name))


def paths_of(tree: Any, depth: int = 2) -> Iterator[tuple[Any, ...]]:
    """The paths of a tree of JSON, as far down as `depth`."""
    if isinstance(tree, dict) and depth:
        for key, inner in tree.items():
            yield (key,)
            yield from ((key, *rest) for rest in paths_of(inner, depth - 1))


def with_value(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    return {**tree, path[0]: with_value(tree[path[0]], path[1:], value)}


def damage_one(name: Path, apply: Callable[[Path], object], run: Path) -> None:
    apply(run / name)


def edit_json(name: str, keys: tuple[Any, ...], value: Any, run: Path) -> None:
    path = run / name
    path.write_text(json.dumps(with_value(json.loads(path.read_text()), keys, value)))


def edit_line(name: str, at: int, keys: tuple[Any, ...], value: Any, run: Path) -> None:
    path = run / name
    lines = path.read_text().splitlines()
    lines[at] = json.dumps(with_value(json.loads(lines[at]), keys, value))
    path.write_text("\n".join(lines) + "\n")
