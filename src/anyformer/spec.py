"""Spec: a small frozen tree of settings whose *type* is the choice and whose *fields* are the settings.

A subclass is implicitly a keyword-only frozen dataclass. It is validated when created, its repr is the call that
creates it, and it converts to a dictionary (JSON, YAML) and back. There is no registry: a variant exists once its
class has been imported.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from anyformer.about import About
from anyformer.errors import UserError, did_you_mean, nearest
from anyformer.extras import require
from anyformer.other_names import OLD_ANSWERS, field_called
from anyformer.own_parts import UnknownPart

FORMAT = 1  # version of the saved form; a change of meaning raises it and adds an entry to MIGRATIONS
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # from version n to n + 1


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Spec:
    """One part's settings. Subclass it (through a slot such as `Mixer`), annotate the fields, give it a `build`."""

    abstract: ClassVar[bool] = True  # a slot is an interface, never instantiated
    about: ClassVar[About | None] = None  # formula, source and cost, for the page of all parts

    def __init_subclass__(cls, *, slot: bool = False) -> None:
        super().__init_subclass__()
        cls.abstract = slot
        dataclass(frozen=True, kw_only=True, repr=False)(cls)
        cls.__init__ = guarded(cls, cls.__init__)  # type: ignore[method-assign]
        if comes_from_outside(cls):
            refuse_old_answers(cls)
        if "build" in vars(cls) and comes_from_outside(cls):
            cls.build = recording(cls.build)  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        for name, kind in fields_of(type(self)).items():
            value = checked(getattr(self, name), kind, where=f"{type(self).__name__}.{name}")
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise an error for contradictory settings. Overridden by parts whose fields depend on one another."""

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.settings().items() if value != default_of(self, name)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def settings(self) -> dict[str, Any]:
        """Field name to value, in the order of definition."""
        return {name: getattr(self, name) for name in fields_of(type(self))}

    def replace(self, **changes: Any) -> Self:
        """The same spec with some fields changed, validated again."""
        unknown = set(changes) - set(fields_of(type(self)))
        if unknown:
            raise unknown_field(type(self), min(unknown))
        return typing.cast(Self, dataclasses.replace(typing.cast(Any, self), **changes))

    def walk(self, path: str = "") -> Iterator[tuple[str, Spec]]:
        """This spec and every spec below it, each with its dotted path."""
        yield path, self
        for name, value in self.settings().items():
            for key, child in children(name, value):
                yield from child.walk(f"{path}.{key}" if path else key)

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON and YAML; the inverse of `from_dict`."""
        return {"type": type(self).__name__} | {name: plain(value) for name, value in self.settings().items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, complete: bool = False) -> Self:
        """The spec from the dictionary of `to_dict`.

        `complete` is for saved files: there a missing field is an error, because today's default must not change
        yesterday's model. Settings written by hand may leave fields out.
        """
        return typing.cast(Self, parse(data, cls, complete=complete))

    def to_json(self) -> str:
        """The saved form: the dictionary with the version of the format."""
        return json.dumps({"anyformer": FORMAT} | self.to_dict(), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the saved form; older versions are migrated, newer ones are an error."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"not JSON: {error.msg}", where=f"line {error.lineno}") from None
        except RecursionError:
            raise UserError("nested too deeply to be a spec") from None
        if not isinstance(data, dict) or not isinstance(data.get("anyformer"), int):
            raise UserError("no format version found", fix='a saved spec begins with {"anyformer": 1, "type": ...}')
        version = data.pop("anyformer")
        if version > FORMAT or version < 1:
            raise UserError(f"saved in format {version}, this anyformer reads 1 to {FORMAT}", fix="upgrade anyformer")
        for old in range(version, FORMAT):
            data = MIGRATIONS[old](data)
        return cls.from_dict(data, complete=True)

    def to_yaml(self) -> str:
        """The same dictionary as YAML (needs pyyaml, part of the `cli` extra)."""
        require("yaml", "settings in YAML need")
        import yaml

        return yaml.safe_dump({"anyformer": FORMAT} | self.to_dict(), sort_keys=False, width=120)

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Settings written by hand: fields may be left out, unknown ones are errors."""
        require("yaml", "settings in YAML need")
        import yaml

        try:
            data = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise UserError(f"not YAML: {' '.join(str(error).split())[:160]}", fix="write it anew") from None
        if not isinstance(data, dict):
            raise UserError("not a mapping of settings", fix="begin with `type: Model`")
        data.pop("anyformer", None)
        return cls.from_dict(data)

    def save(self, path: str | Path) -> None:
        """Write the saved form to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")


def guarded(kind: type[Spec], make: Callable[..., None]) -> Callable[..., None]:
    """A dataclass's __init__, with user errors for unknown and missing settings."""

    @wraps(make)
    def initialise(self: Any, *values: Any, **settings: Any) -> None:
        if kind.abstract:
            parts = ", ".join(sorted(part.__name__ for part in subclasses(kind)))
            raise UserError(f"{kind.__name__} is a slot, not a part", fix=f"use one of {parts}")
        described = dataclasses.fields(typing.cast(Any, kind))
        unknown = [name for name in settings if name not in {f.name for f in described}]
        if unknown:
            raise unknown_field(kind, unknown[0])
        positional = [f.name for f in described if not f.kw_only]
        if len(values) > len(positional):
            raise UserError(
                f"{kind.__name__} takes settings by name", fix=f"write {kind.__name__}({described[0].name}=...)"
            )
        given = {*settings, *positional[: len(values)]}
        missing = [f.name for f in described if f.name not in given and no_default(f)]
        if missing:
            raise UserError(
                f"{kind.__name__} misses {', '.join(missing)}", fix=f"write {kind.__name__}({missing[0]}=...)"
            )
        make(self, *values, **settings)

    return initialise


MADE_OUTSIDE: weakref.WeakSet[Any] = weakref.WeakSet()  # modules built by user-defined parts


def comes_from_outside(kind: type) -> bool:
    """Whether a class is defined outside the library."""
    return kind.__module__.partition(".")[0] != __name__.partition(".")[0]


def refuse_old_answers(kind: type) -> None:
    """Reject a class that overrides a slot's method by its former name, which is no longer called."""
    for old, new in OLD_ANSWERS.items():
        if old in vars(kind) and new in dir(kind):
            raise UserError(f"{old} is called {new} now", where=kind.__name__, fix="rename it")


def built_outside(module: Any) -> bool:
    """Whether a user-defined part built this module."""
    return module in MADE_OUTSIDE


def recording(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the `build` of a user-defined part to record its modules, which may be plain torch layers like ours."""

    @wraps(build)
    def built(self: Any, *values: Any, **settings: Any) -> Any:
        module = build(self, *values, **settings)
        if module is not None:
            MADE_OUTSIDE.add(module)
        return module

    return built


RESOLVED: dict[type[Spec], dict[str, Any]] = {}  # cache: resolving annotations is slow, and specs are created often


def fields_of(kind: type[Spec]) -> dict[str, Any]:
    """Field name to resolved annotation of a spec class."""
    if kind not in RESOLVED:
        hints = typing.get_type_hints(kind)
        RESOLVED[kind] = {f.name: hints[f.name] for f in dataclasses.fields(typing.cast(Any, kind))}
    return RESOLVED[kind]


def default_of(spec: Spec, name: str) -> Any:
    """The default of a field, or MISSING where it must be given."""
    described = next(f for f in dataclasses.fields(typing.cast(Any, spec)) if f.name == name)
    return described.default_factory() if described.default_factory is not MISSING else described.default


def children(name: str, value: Any) -> Iterator[tuple[str, Spec]]:
    """The specs directly inside one field, each with its path relative to the owner."""
    if isinstance(value, Spec):
        yield name, value
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from children(f"{name}[{i}]", item)


def subclasses(slot: type[Spec]) -> Iterator[type[Spec]]:
    """Every concrete subclass of a slot."""
    for kind in slot.__subclasses__():
        if not kind.abstract:
            yield kind
        yield from subclasses(kind)


def unknown_field(kind: type[Spec], name: str) -> UserError:
    """The error for an unknown setting of a part."""
    known = fields_of(kind)
    ours = field_called(name, known)
    fix = did_you_mean(name, known) if ours is None else f"did you mean {ours!r}?"
    return UserError(f"{kind.__name__} has no setting {name!r}", fix=fix)


# ---------------------------------------------------------------- dictionary <-> spec


def plain(value: Any) -> Any:
    """A value as JSON-compatible data."""
    if isinstance(value, Spec):
        return value.to_dict()
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def parse(data: Any, kind: Any, *, complete: bool) -> Any:
    """The inverse of `plain` for a value whose annotation is `kind`."""
    if isinstance(data, Mapping):
        return parse_spec(data, kind, complete=complete)
    if isinstance(data, list | tuple):
        items = []
        for i, item in enumerate(data):
            try:
                items.append(parse(item, kind, complete=complete))
            except UserError as error:
                raise error.inside(f"[{i}]") from None
        return tuple(items)
    slots = slots_in(kind)
    if isinstance(data, str) and slots and not literals_in(kind):  # `norm: RMSNorm` is a part with its defaults
        return parse_spec({"type": data}, kind, complete=complete)
    return data


def parse_spec(data: Mapping[str, Any], kind: Any, *, complete: bool) -> Spec:
    slots = slots_in(kind)
    if not slots:
        raise UserError("a part is not expected here", fix="give a plain value")
    known = {part.__name__: part for slot in slots for part in (slot, *subclasses(slot)) if not part.abstract}
    name = data.get("type")
    if name is None and len(known) == 1:
        (name,) = known
    if not isinstance(name, str):
        raise UserError("no part named", fix="add type: " + " | ".join(sorted(known)))
    if name not in known:
        slot = slots[0].__name__
        raise UnknownPart.named(name, f"{name!r} is not a known {slot}", known, where="type")
    part = known[name]
    annotated = fields_of(part)
    given: dict[str, Any] = {}
    for key, value in data.items():
        if key == "type":
            continue
        if key not in annotated:
            raise unknown_field(part, str(key))
        try:
            given[key] = parse(value, annotated[key], complete=complete)
        except UserError as error:
            raise error.inside(key) from None
    # Parts gain fields: one whose default is None may be missing in a file older than the field.
    required = {f.name for f in dataclasses.fields(typing.cast(Any, part))
                if no_default(f) or (complete and f.default is not None)}  # fmt: skip
    missing = [key for key in annotated if key in required and key not in given]
    if missing:
        raise UserError(f"{name} misses {', '.join(missing)}", fix="write every field" if complete else "set it")
    return part(**given)


def no_default(described: dataclasses.Field[Any]) -> bool:
    return described.default is MISSING and described.default_factory is MISSING


def arms_of(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the annotation alone."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def slots_in(kind: Any) -> list[type[Spec]]:
    """The spec classes an annotation admits, also inside tuples."""
    found: list[type[Spec]] = []
    for arm in arms_of(kind):
        if isinstance(arm, type) and issubclass(arm, Spec):
            found.append(arm)
        elif typing.get_origin(arm) is tuple:
            found += [slot for inner in typing.get_args(arm) if inner is not Ellipsis for slot in slots_in(inner)]
    return found


def literals_in(kind: Any) -> list[Any]:
    return [value for arm in arms_of(kind) if typing.get_origin(arm) is Literal for value in typing.get_args(arm)]


# ---------------------------------------------------------------- checking a value against its annotation


def checked(value: Any, kind: Any, *, where: str) -> Any:
    """`value` converted to its annotated type (int to float, list to tuple), or an error with the expected type."""
    for arm in arms_of(kind):
        fits, exact = fit(value, arm)
        if fits:
            return exact
    if isinstance(value, str) and (names := [name for name in literals_in(kind) if isinstance(name, str)]):
        names_only = all(typing.get_origin(arm) is Literal for arm in arms_of(kind))
        fix = did_you_mean(value, names) if names_only or nearest(value, names) else f"expected {described(kind)}"
        raise UserError(f"{value!r} is not a choice", where=where, fix=fix)
    raise UserError(f"{value!r} does not fit", where=where, fix=f"expected {described(kind)}")


def fit(value: Any, arm: Any) -> tuple[bool, Any]:
    if arm is None or arm is type(None):
        return value is None, value
    if arm is Any:
        return True, value
    if typing.get_origin(arm) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(arm)), value
    if typing.get_origin(arm) is tuple:
        return fit_tuple(value, typing.get_args(arm))
    if arm is float and isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value), float(value)
    if isinstance(arm, type) and issubclass(arm, Spec):
        return isinstance(value, arm) and not type(value).abstract, value
    return type(value) is arm, value


def fit_tuple(value: Any, inner: tuple[Any, ...]) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, value
    arms = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(arms) != len(value) or (inner[-1] is Ellipsis and not value):
        return False, value
    pairs = [
        next((p for a in arms_of(arm) if (p := fit(item, a))[0]), (False, item))
        for item, arm in zip(value, arms, strict=True)
    ]
    return all(ok for ok, _ in pairs), tuple(exact for _, exact in pairs)


WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}


def described(kind: Any) -> str:
    """An annotation in readable words."""
    words = []
    for arm in arms_of(kind):
        if typing.get_origin(arm) is Literal:
            words += [repr(choice) for choice in typing.get_args(arm)]
        elif typing.get_origin(arm) is tuple:
            inner = typing.get_args(arm)
            many = "a list" if inner[-1] is Ellipsis else f"a list of {len(inner)}"
            words.append(f"{many}, each {described(inner[0])}")
        elif isinstance(arm, type) and issubclass(arm, Spec):
            names = sorted(part.__name__ for part in (arm, *subclasses(arm)) if not part.abstract)
            words.append(f"a {arm.__name__} ({', '.join(names)})")
        else:
            words.append(WORDS.get(arm, getattr(arm, "__name__", str(arm))))
    return " or ".join(words)


# ---------------------------------------------------------------- changing a tree by path


def replace_in(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    """The same tree with the values at dotted paths replaced; a value may be a spec, a name of one, or plain.

    >>> from anyformer import preset, Rope
    >>> replace_in(preset("gpt2-tiny"), {"stack.block.relative": Rope(), "stack.depth": 3}).stack.depth
    3
    """
    tree = spec.to_dict()  # all changes first, then one validation: width and heads may change together
    for path, value in changes.items():
        put(tree, type(spec), path.split("."), plain(value), path)
    return type(spec).from_dict(tree)


def put(tree: dict[str, Any], root: type[Spec], steps: list[str], value: Any, path: str) -> None:
    """Set one value in a tree of dictionaries; a step into a tuple without an index means all its items."""
    kind = next((part for part in (root, *subclasses(root)) if part.__name__ == tree["type"]), root)
    name, _, index = steps[0].partition("[")
    annotated = fields_of(kind)
    if name not in annotated:
        raise UserError(f"{kind.__name__} has no setting {name!r}", where=path, fix=did_you_mean(name, annotated))
    if len(steps) == 1 and not index:
        tree[name] = value
        return
    inner = tree[name]
    slots = slots_in(annotated[name])
    parts = [part.__name__ for slot in slots for part in (slot, *subclasses(slot)) if not part.abstract]
    if isinstance(inner, str) and inner in parts:
        inner = tree[name] = {"type": inner}  # expand a part given by name
    if index:
        at = int(index.rstrip("]"))
        if not isinstance(inner, list) or not -len(inner) <= at < len(inner):
            raise UserError(f"{name} has no item {at}", where=path, fix=f"give 0 to {len(inner) - 1 if inner else 0}")
        if len(steps) == 1:
            inner[at] = value
            return
        inner = inner[at]
    for item in inner if isinstance(inner, list) else [inner]:
        if not isinstance(item, dict):
            raise UserError(
                f"{name} is {item!r} and has no settings inside", where=path, fix=f"set {name} itself first"
            )
        put(item, slots_in(annotated[name])[0], steps[1:], value, path)
