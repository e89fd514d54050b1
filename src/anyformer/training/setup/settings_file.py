"""Settings from the user: a YAML file of sections, or arguments like `training.batch_size=16`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import UserError, did_you_mean, nearest
from anyformer.extras import require
from anyformer.training.setup.setting_paths import SECTIONS

if TYPE_CHECKING:
    import yaml

TOP = ("task", "preset", "start")
LARGEST = 2**20  # bytes of a file of settings
MOST = 20_000  # values in it


@dataclass
class Written:
    """A parsed settings file: settings by dotted path, the top-level entries, and the file position of each."""

    settings: dict[str, Any] = field(default_factory=dict)
    top: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def parse_settings(words: list[str], where: str = "--set") -> dict[str, Any]:
    """Parse `training.batch_size=16` and the like into paths and values; values are YAML.

    >>> parse_settings(["training.batch_size=16", "training.ema=null"])
    {'training.batch_size': 16, 'training.ema': None}
    """
    if not words:
        return {}
    require("yaml", "settings of a run need", where=where)
    import yaml

    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path.strip():
            raise UserError(
                f"{word[:80]!r} does not say path=value", where=where, fix="write --set training.batch_size=16"
            )
        try:
            found[path.strip()] = number(yaml.safe_load(text))
        except (yaml.YAMLError, RecursionError, ValueError):
            fix = "write 16, 0.1, true or a name"
            raise UserError(f"{text[:80]!r} is not a value", where=f"{where} {path[:80]}", fix=fix) from None
    return found


def number(value: Any) -> Any:
    """YAML reads 1e-3 as text; turn it into a number."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value[0] in "0123456789.+-" else value
        except ValueError:
            return value
    return value


def from_file(path: Path) -> Written:
    """Read a YAML settings file, such as a run's `config.yaml`, with the line of each setting."""
    require("yaml", "a file of settings needs", where=str(path))
    import yaml

    try:
        if path.is_dir():
            raise UserError("a folder, not a file of settings", where=str(path), fix=f"give {path / 'config.yaml'}")
        if path.stat().st_size > LARGEST:
            raise UserError("too large for a file of settings", where=str(path), fix="give a YAML file")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        by_stem = {Path(name).stem: name for name in beside(path)}
        near = nearest(path.stem, by_stem)
        fix = f"did you mean {by_stem[near]!r}?" if near is not None else "give a YAML file, as a run's config.yaml"
        raise UserError("no such file", where=str(path), fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        why = "is not text" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
        raise UserError(f"the file {why}", where=str(path), fix="give a YAML file") from None
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        why = getattr(error, "problem", None) or "nested too deeply"
        raise UserError(f"not YAML ({why[:80]})", where=place, fix="fix the line") from None
    if data is None:
        raise UserError("no settings in the file", where=str(path), fix="write training: {batch_size: 16}")
    if not isinstance(data, dict):
        raise UserError("not a mapping of settings", where=str(path), fix="write training: {batch_size: 16}")
    places = {name: f"{path.name}:{line}" for name, line in lines(tree, path)}
    return sections(data, path, places)


def beside(path: Path) -> list[str]:
    """YAML files in the same folder."""
    folder = path.parent
    return (
        sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml")) if folder.is_dir() else []
    )


def lines(tree: yaml.Node | None, path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted path in a file with its line; duplicate names are an error."""
    import yaml

    waiting: list[tuple[str, Any]] = [("", tree)]
    count = 0
    while waiting:
        above, node = waiting.pop()
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, value in node.value:
            count += 1
            if count > MOST:
                raise UserError("too many settings", where=str(path), fix="write them out without anchors")
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise UserError(f"{name!r} is there twice", where=f"{path}:{line}", fix="keep one of them")
            seen.add(name)
            inner = f"{above}.{name}" if above else name
            yield inner, line
            waiting.append((inner, value))


def sections(data: dict[str, Any], path: Path, places: dict[str, str]) -> Written:
    """The sections of a file as dotted paths."""
    found = Written(places=places)
    for name, value in data.items():
        place = places.get(str(name), str(path))
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise UserError(f"{name} is not a mapping", where=place, fix=f"write {name}: {{...}}")
            found.settings |= flat(value, str(name))
        elif name in TOP:
            if value is not None and not isinstance(value, str):
                raise UserError(f"{name} {value!r} is not a name", where=place, fix=f"write {name}: a word")
            found.top[name] = value or ""
        elif name not in ("anyformer", "type"):
            from anyformer.training.setup.setting_paths import suggestion

            top = did_you_mean(str(name), (*SECTIONS, *TOP))
            fix = top if "did you mean" in top else suggestion(str(name))
            raise UserError(f"no setting {str(name)[:80]!r}", where=place, fix=fix)
    return found


def flat(tree: dict[Any, Any], path: str) -> dict[str, Any]:
    """Nested settings by dotted path; a mapping that names its part (`type:`) stays whole."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "type":
            continue
        inner = f"{path}.{name}"
        if inner == "data.types" and isinstance(value, dict):
            found[inner] = [f"{column}={kind}" for column, kind in value.items()]
        elif isinstance(value, dict) and "type" not in value:
            found |= flat(value, inner)
        else:
            found[inner] = number(value)
    return found
