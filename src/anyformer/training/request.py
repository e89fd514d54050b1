"""What somebody asked for, before anything is known of the data: files, flags, a settings file, `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.objectives import OBJECTIVES
from anyformer.spec import Spec, fields_of, replace_in

SECTIONS = ("data", "model", "objective", "training")
TASKS = tuple(OBJECTIVES)


@dataclass
class Request:
    """One training as asked for. `settings` are dotted paths: {"training.save_every": 10, "model.stack.depth": 8}."""

    source: Any  # a list of paths, or data in Python
    task: str | None = None
    preset: str | None = None
    start: Path | None = None
    out: Path | None = None
    device: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    command: str = ""  # the line to repeat it by

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise UserError(f"no task is called {self.task!r}", where="--task", fix=did_you_mean(self.task, TASKS))
        for path in self.settings:
            section = path.partition(".")[0]
            if section not in SECTIONS or "." not in path:
                known = [f"{name}." for name in SECTIONS]
                near = did_you_mean(path, settings_paths())
                raise UserError(f"no setting {path!r}", where="settings", fix=near if path else f"begin with {known}")

    def section(self, name: str) -> dict[str, Any]:
        """The settings below one name, without it."""
        return {path.partition(".")[2]: value for path, value in self.settings.items() if path.startswith(f"{name}.")}

    def data(self) -> Data:
        """The settings of the data."""
        return changed(Data(), self.section("data"), "data")


def changed(spec: Spec, changes: Mapping[str, Any], where: str) -> Any:
    """A spec with the values at some paths replaced; errors name the whole path."""
    try:
        return replace_in(spec, changes) if changes else spec
    except UserError as error:
        raise error if error.where.startswith(where) else error.inside(where) from None


def settings_paths() -> list[str]:
    """The paths a typo may have meant, two levels deep."""
    from anyformer.training.settings import Training

    found = [f"training.{name}" for name in fields_of(Training)]
    for name in fields_of(Data):
        found.append(f"data.{name}")
        value = getattr(Data(), name)
        if isinstance(value, Spec):
            found += [f"data.{name}.{inner}" for inner in fields_of(type(value))]
    return found + ["model.stack.width", "model.stack.depth", "objective.smoothing"]


def parsed(words: list[str], where: str = "--set") -> dict[str, Any]:
    """`training.batch=16` and the like as paths and values; values are read as YAML.

    >>> parsed(["training.batch=16", "training.ema=null"])
    {'training.batch': 16, 'training.ema': None}
    """
    import yaml

    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise UserError(f"{word!r} does not say path=value", where=where, fix="write --set training.batch=16")
        try:
            found[path.strip()] = number(yaml.safe_load(text))
        except yaml.YAMLError:
            raise UserError(
                f"{text!r} is not a value", where=f"{where} {path}", fix="write 16, 0.1, true or a name"
            ) from None
    return found


def number(value: Any) -> Any:
    """YAML takes 1e-3 for text; people mean a number."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value[0] in "0123456789.+-" else value
        except ValueError:
            return value
    return value


def from_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A settings file: nested sections as dotted paths, and what stands at the top (task, preset, start)."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read ({type(error).__name__})", where=str(path), fix="give a YAML file") from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError("not YAML", where=place, fix="mend the line") from None
    if not isinstance(data, dict):
        raise UserError("not a mapping of settings", where=str(path), fix="write training: {batch: 16}")
    top: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in data.items():
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise UserError(f"{name} is not a mapping", where=str(path), fix=f"write {name}: {{...}}")
            settings |= flat(value, str(name))
        elif name in ("task", "preset", "start"):
            top[name] = value
        elif name != "anyformer" and name != "type":
            known = (*SECTIONS, "task", "preset", "start")
            raise UserError(f"no setting {name!r}", where=str(path), fix=did_you_mean(str(name), known))
    return settings, top


def flat(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Nested settings by dotted path; a mapping that names its part (`type:`) stays whole."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "type":
            continue
        inner = f"{path}.{name}"
        if isinstance(value, dict) and "type" not in value:
            found |= flat(value, inner)
        else:
            found[inner] = number(value)
    return found
